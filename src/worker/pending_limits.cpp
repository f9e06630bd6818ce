#include "worker/pending_limits.hpp"

#include "base/check.hpp"

namespace miniray {

void PendingLimits::add(const std::string& address, Number number) {
  Numbers& numbers = by_address_[address];
  if (!numbers.empty()) by_size_.erase(size_of(numbers));
  MINIRAY_CHECK(numbers.empty() || *numbers.rbegin() < number, number);
  numbers.insert(number);
  by_size_.emplace(size_of(numbers), *numbers.begin());
  ++count_;
}

void PendingLimits::remove(const std::string& address, Number number) {
  const auto found = by_address_.find(address);
  if (found == by_address_.end() || !found->second.contains(number)) return;
  Numbers& numbers = found->second;
  by_size_.erase(size_of(numbers));
  numbers.erase(number);
  --count_;
  if (numbers.empty())
    by_address_.erase(found);
  else
    by_size_.emplace(size_of(numbers), *numbers.begin());
  MINIRAY_CHECK(by_size_.size() == by_address_.size(), by_size_.size(), by_address_.size());
}

std::optional<PendingLimits::Number> PendingLimits::surplus(const std::string& address) const {
  const auto found = by_address_.find(address);
  if (found != by_address_.end() && found->second.size() >= of_address_max_) return *found->second.begin();
  return count_ >= all_max_ ? oldest_of_busiest() : std::nullopt;
}

std::optional<PendingLimits::Number> PendingLimits::oldest_of_busiest() const {
  if (by_size_.empty()) return std::nullopt;
  return by_size_.rbegin()->second;
}

}  // namespace miniray
