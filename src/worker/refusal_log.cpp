#include "worker/refusal_log.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/check.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr std::int64_t refusal_window_ns = limits::refusal_window_s * 1'000'000'000LL;

// "4,132 connections"
std::string connections_text(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t from_end = 3; from_end < digits.size(); from_end += 4)
    digits.insert(digits.size() - from_end, 1, ',');
  return digits + (count == 1 ? " connection" : " connections");
}

std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

void RefusalLog::refused(const std::string& address, const std::string& peer, const std::string& why,
                         std::int64_t now_ns) {
  tick(now_ns);
  if (counts_.empty()) began_ns_ = now_ns;
  const bool room = counts_.size() < limits::refusal_addresses_max || counts_.contains(address);
  Count& count = room ? counts_[address] : others_;
  ++count.refused;
  count.last_why = why;
  if (count.shown >= limits::refusals_logged_of_address_max || shown_ >= limits::refusals_logged_max) return;
  ++count.shown;
  ++shown_;
  print_("refused " + peer + ": " + why);
}

void RefusalLog::tick(std::int64_t now_ns) {
  if (!counts_.empty() && now_ns - began_ns_ >= refusal_window_ns) summarise(now_ns);
}

void RefusalLog::summarise(std::int64_t now_ns) {
  const std::int64_t seconds = std::max<std::int64_t>(1, (now_ns - began_ns_) / 1'000'000'000);
  const std::string period =
      " in the last " + (std::abs(seconds - limits::refusal_window_s) <= 1 ? "minute" : std::to_string(seconds) + " s");
  std::vector<std::pair<std::string, Count>> hidden;
  for (auto& [address, count] : counts_)
    if (count.refused > count.shown) hidden.emplace_back(address, std::move(count));
  std::ranges::sort(hidden,
                    [](const auto& one, const auto& other) { return one.second.refused > other.second.refused; });
  std::uint64_t others = others_.refused;
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const auto& [address, count] = hidden[i];
    if (i >= limits::refusal_summaries_max)
      others += count.refused;
    else
      print_("refused " + connections_text(count.refused) + " from " + address + period +
             "; the last: " + first_line_of(count.last_why));
  }
  if (others > 0) print_("refused " + connections_text(others) + " from other addresses" + period);
  counts_.clear();
  others_ = {};
  shown_ = 0;
}

}  // namespace miniray
