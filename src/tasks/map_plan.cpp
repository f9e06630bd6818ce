#include "tasks/map_plan.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

constexpr double chunk_ns = limits::chunk_ms * 1e6;
constexpr double shortest_ns = limits::chunk_min_us * 1e3;
constexpr double newest_weight = 0.3;  // how much the last chunk counts in the mean

}  // namespace

MapPlan::MapPlan(const Options& options)
    : total_(options.total),
      chunk_size_(options.one_by_one ? std::optional<std::size_t>(1) : options.chunk_size),
      workers_(std::max<std::size_t>(1, options.workers)),
      mean_ns_(options.mean_ns) {
  MINIRAY_CHECK(chunk_size_ != std::size_t{0} && mean_ns_ >= 0, mean_ns_);
}

// There is room for what the workers can be busy with, and one more for each. An iterator runs only a little ahead of
// the thread that takes the results.
bool MapPlan::has_room(std::size_t under_way, std::size_t not_taken) const {
  if (!total_ && under_way + not_taken >= limits::lazy_chunks_max * workers_) return false;
  return under_way < 2 * workers_;
}

std::size_t MapPlan::items_in(double ns, std::size_t at_most) const {
  return static_cast<std::size_t>(std::clamp(ns / mean_ns_, 1.0, static_cast<double>(at_most)));
}

std::size_t MapPlan::next_length() const {
  if (chunk_size_) return *chunk_size_;
  // The first chunks are a small part of each worker's share, because its items may take long.
  if (mean_ns_ == 0)
    return total_ ? std::clamp<std::size_t>(*total_ / (limits::first_chunks_per_share * workers_), 1,
                                            limits::first_chunk_items_max)
                  : 1;
  const std::size_t length = items_in(chunk_ns, total_ ? limits::chunk_items_max : limits::lazy_chunk_items_max);
  if (!total_) return length;
  // The last ones are short, so that no worker is left with much to do.
  const std::size_t left = *total_ - std::min(sent_, *total_);
  return std::min(length, std::max(items_in(shortest_ns, limits::chunk_items_max), left / (2 * workers_)));
}

void MapPlan::measured(std::size_t items, std::int64_t ns) {
  MINIRAY_CHECK(items > 0);
  const double of_one_ns = static_cast<double>(ns) / static_cast<double>(items);
  mean_ns_ = std::max(1.0, mean_ns_ == 0 ? of_one_ns : mean_ns_ + newest_weight * (of_one_ns - mean_ns_));
}

}  // namespace miniray
