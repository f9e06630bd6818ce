#include "tasks/resources.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/check.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr double rounding = 1e-9;   // shares such as 0.1 do not add up exactly
constexpr double drift_max = 1e-6;  // of many of them: more than that is a mistake in counting

double amount_of(const Amounts& amounts, const std::string& name) {
  const auto found = amounts.find(name);
  return found == amounts.end() ? 0 : found->second;
}

// How many GPUs a demand has something of.
std::size_t gpu_count(const Demand& demand) {
  return demand.gpus > 0 ? static_cast<std::size_t>(std::ceil(demand.gpus)) : 0;
}

std::string number(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

std::string text_of(const Demand& demand) {
  std::string text = "num_cpus=" + number(demand.cpus);
  if (demand.gpus > 0) text += ", num_gpus=" + number(demand.gpus);
  for (const auto& [name, amount] : demand.custom) text += ", " + name + "=" + number(amount);
  if (!demand.node.empty()) text += ", node=\"" + demand.node + "\"";
  return text;
}

void check(const Demand& demand) {
  const auto refuse = [](const std::string& what, double given, const char* allowed) {
    throw UsageError(what + " is " + allowed + ", not " + number(given));
  };
  if (!(demand.cpus >= 0) || !std::isfinite(demand.cpus)) refuse("num_cpus", demand.cpus, "0 or more");
  if (!(demand.gpus >= 0) || !std::isfinite(demand.gpus)) refuse("num_gpus", demand.gpus, "0 or more");
  if (demand.gpus > 1 && demand.gpus != std::floor(demand.gpus))
    refuse("num_gpus", demand.gpus, "a share of one GPU, or a whole number of them");
  for (const auto& [name, amount] : demand.custom)
    if (!(amount >= 0) || !std::isfinite(amount)) refuse("the resource " + name, amount, "0 or more");
}

NodeResources::NodeResources(double cpus, std::size_t gpus, Amounts custom)
    : cpus_(cpus), free_cpus_(cpus), free_gpus_(gpus, 1.0), custom_(std::move(custom)), free_custom_(custom_) {}

std::string NodeResources::missing(const Demand& demand) const {
  std::string text;
  const auto lacks = [&](const std::string& name, double wanted, double has) {
    if (wanted <= has + rounding) return;
    if (!text.empty()) text += ", ";
    text += name + " " + number(wanted) + " (it has " + number(has) + ")";
  };
  lacks("num_cpus", demand.cpus, cpus_);
  lacks("num_gpus", demand.gpus, static_cast<double>(free_gpus_.size()));
  for (const auto& [name, amount] : demand.custom) lacks(name, amount, amount_of(custom_, name));
  return text;
}

bool NodeResources::could_ever_fit(const Demand& demand) const { return missing(demand).empty(); }

std::optional<std::vector<std::size_t>> NodeResources::choose_gpus(double wanted) const {
  std::vector<std::size_t> chosen;
  if (wanted <= 0) return chosen;
  if (wanted < 1) {  // the fullest that has room, so that whole ones stay whole
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < free_gpus_.size(); ++i)
      if (free_gpus_[i] + rounding >= wanted && (!best || free_gpus_[i] < free_gpus_[*best])) best = i;
    if (!best) return std::nullopt;
    chosen.push_back(*best);
    return chosen;
  }
  for (std::size_t i = 0; i < free_gpus_.size() && static_cast<double>(chosen.size()) < wanted; ++i)
    if (free_gpus_[i] + rounding >= 1) chosen.push_back(i);
  if (static_cast<double>(chosen.size()) < wanted) return std::nullopt;
  return chosen;
}

bool NodeResources::fits(const Demand& demand) const {
  if (demand.cpus > free_cpus_ - spoken_cpus_ + rounding) return false;
  if (demand.gpus > 0 && (spoken_gpus_ > 0 || !choose_gpus(demand.gpus))) return false;
  return std::ranges::all_of(demand.custom, [&](const auto& asked) {
    return asked.second <= amount_of(free_custom_, asked.first) - amount_of(spoken_custom_, asked.first) + rounding;
  });
}

std::vector<std::size_t> NodeResources::gpus_for(const Demand& demand) const {
  return choose_gpus(demand.gpus).value_or(std::vector<std::size_t>{});
}

std::vector<std::size_t> NodeResources::take(const Demand& demand) {
  std::vector<std::size_t> gpus = gpus_for(demand);
  MINIRAY_CHECK(gpus.size() == gpu_count(demand), gpus.size(), demand.gpus);
  ++holders_;
  free_cpus_ -= demand.cpus;
  MINIRAY_CHECK(free_cpus_ >= -drift_max, free_cpus_, demand.cpus);
  for (const std::size_t gpu : gpus) free_gpus_[gpu] -= std::min(1.0, demand.gpus);
  for (const auto& [name, amount] : demand.custom) {
    double& free = free_custom_[name];
    free -= amount;
    MINIRAY_CHECK(free >= -drift_max, name, free, amount);
  }
  return gpus;
}

void NodeResources::give_back(const Demand& demand, const std::vector<std::size_t>& gpus) {
  MINIRAY_CHECK(holders_ > 0 && gpus.size() == gpu_count(demand), holders_, gpus.size(), demand.gpus);
  free_cpus_ += demand.cpus;
  MINIRAY_CHECK(free_cpus_ <= cpus_ + drift_max, free_cpus_, cpus_);
  for (const std::size_t gpu : gpus) {
    free_gpus_.at(gpu) += std::min(1.0, demand.gpus);
    MINIRAY_CHECK(free_gpus_[gpu] <= 1 + drift_max, gpu, free_gpus_[gpu]);
  }
  for (const auto& [name, amount] : demand.custom) free_custom_[name] += amount;
  if (--holders_ > 0) return;
  // Sums of shares are not exact. Where nobody has anything, all is free, and the errors do not add up for ever.
  free_cpus_ = cpus_;
  std::ranges::fill(free_gpus_, 1.0);
  free_custom_ = custom_;
}

void NodeResources::check_invariants(const std::vector<Held>& held) const {
  const auto near = [](double one, double other) { return std::abs(one - other) <= drift_max; };
  double cpus = free_cpus_;
  std::vector<double> gpus = free_gpus_;
  Amounts custom = free_custom_;
  for (const Held& each : held) {
    cpus += each.demand->cpus;
    MINIRAY_CHECK(each.gpus->size() == gpu_count(*each.demand), each.gpus->size(), each.demand->gpus);
    for (const std::size_t gpu : *each.gpus) gpus.at(gpu) += std::min(1.0, each.demand->gpus);
    for (const auto& [name, amount] : each.demand->custom) custom[name] += amount;
  }
  MINIRAY_CHECK(held.size() == holders_, held.size(), holders_);
  MINIRAY_CHECK(near(cpus, cpus_) && free_cpus_ >= -drift_max, cpus, cpus_, free_cpus_);
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu)
    MINIRAY_CHECK(near(gpus[gpu], 1) && free_gpus_[gpu] >= -drift_max, gpu, gpus[gpu], free_gpus_[gpu]);
  for (const auto& [name, amount] : custom)
    MINIRAY_CHECK(near(amount, amount_of(custom_, name)) && amount_of(free_custom_, name) >= -drift_max, name, amount);
}

void NodeResources::speak_for(const Demand& demand) {
  spoken_for_ = true;
  spoken_cpus_ += demand.cpus;
  spoken_gpus_ += demand.gpus;
  for (const auto& [name, amount] : demand.custom) spoken_custom_[name] += amount;
}

void NodeResources::clear_spoken_for() {
  if (!spoken_for_) return;
  spoken_for_ = false;
  spoken_cpus_ = spoken_gpus_ = 0;
  spoken_custom_.clear();
}

}  // namespace miniray
