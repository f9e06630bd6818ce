// What a pool has counted and measured, in either language: tasks that are done and that failed, and how long an item
// of a map takes. Any thread may use it.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "base/check.hpp"
#include "miniray/limits.hpp"

namespace miniray {

class Tally {
 public:
  /// Counts tasks that have ended. Each item of a map counts as a task. A cancelled task counts as neither.
  void count(std::size_t done, std::size_t failed) {
    done_ += done;
    failed_ += failed;
  }
  /// A task that was counted as failed is tried again.
  void uncount_failure() {
    const std::size_t before = failed_--;
    MINIRAY_CHECK(before > 0);
  }
  /// A task that was counted as done has a result that its caller cannot read.
  void count_unreadable() {
    const std::size_t before = done_--;
    MINIRAY_CHECK(before > 0);
    ++failed_;
  }
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] std::size_t failed() const { return failed_; }

  /// Returns how long an item of a map of this function takes, as measured last; 0 if that is not known.
  [[nodiscard]] double mean_ns(const std::string& function) const {
    const std::scoped_lock lock(mutex_);
    const auto known = means_ns_.find(function);
    return known == means_ns_.end() ? 0 : known->second;
  }
  void set_mean_ns(const std::string& function, double ns) {
    const std::scoped_lock lock(mutex_);
    // A program may make any number of functions, as lambdas do: the table starts over when it is full.
    if (means_ns_.size() >= limits::means_max && !means_ns_.contains(function)) means_ns_.clear();
    means_ns_[function] = ns;
  }

 private:
  std::atomic<std::size_t> done_ = 0, failed_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, double> means_ns_;
};

}  // namespace miniray
