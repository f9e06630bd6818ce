// What a node has, what of it is free, and what a task asks for: CPUs, GPUs (whole ones or shares), and resources that
// the user has named.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "miniray/task_options.hpp"

namespace miniray {

/// What a task asks for. Equal demands are queued together.
struct Demand {
  double cpus = 1;
  double gpus = 0;  ///< below 1: a share of one; else whole ones
  Amounts custom = {};
  std::string node = {};  ///< by name; empty: any
  Strategy strategy = Strategy::spread;
  friend auto operator<=>(const Demand&, const Demand&) = default;
};

/// "num_cpus=2, num_gpus=1, licence=1"
[[nodiscard]] std::string text_of(const Demand& demand);
/// Throws UsageError if no task can ask for that.
void check(const Demand& demand);

class NodeResources {
 public:
  NodeResources(double cpus, std::size_t gpus, Amounts custom);

  [[nodiscard]] bool could_ever_fit(const Demand& demand) const;
  /// Returns what of the demand this node does not have at all; an empty text if it has everything.
  [[nodiscard]] std::string missing(const Demand& demand) const;
  /// Returns whether the demand fits now, beside what is reserved.
  [[nodiscard]] bool fits(const Demand& demand) const;
  /// Returns the GPUs that the demand would get now; none if there are not enough.
  [[nodiscard]] std::vector<std::size_t> gpus_for(const Demand& demand) const;
  /// Takes the demand, which must fit, and returns its GPUs.
  [[nodiscard]] std::vector<std::size_t> take(const Demand& demand);
  void give_back(const Demand& demand, const std::vector<std::size_t>& gpus);
  /// Reserves what a task needs that came first and waits, so that later ones do not get it.
  void speak_for(const Demand& demand);
  void clear_spoken_for();
  [[nodiscard]] bool is_spoken_for() const { return spoken_for_; }
  /// Returns the share of the CPUs that is free, from 0 to 1.
  [[nodiscard]] double free_share() const { return cpus_ > 0 ? free_cpus_ / cpus_ : 0; }

  /// What a member has of this node.
  struct Held {
    const Demand* demand;
    const std::vector<std::size_t>* gpus;
  };
  /// Checks that what is free and what is held make up all that there is. `held` is all that was taken and not given
  /// back.
  void check_invariants(const std::vector<Held>& held) const;

 private:
  [[nodiscard]] std::optional<std::vector<std::size_t>> choose_gpus(double wanted) const;

  double cpus_, free_cpus_;
  std::vector<double> free_gpus_;
  Amounts custom_, free_custom_;
  std::size_t holders_ = 0;
  bool spoken_for_ = false;
  double spoken_cpus_ = 0, spoken_gpus_ = 0;
  Amounts spoken_custom_;
};

}  // namespace miniray
