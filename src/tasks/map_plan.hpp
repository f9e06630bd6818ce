// Decides how many items of a map go out together: as many as their measured time suggests, so that every worker has
// something to do until the end, and a message is worth its cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace miniray {

class MapPlan {
 public:
  struct Options {
    std::optional<std::size_t> total = {};  ///< how many items there are; unset for an iterator
    std::optional<std::size_t> chunk_size = {};
    bool one_by_one = false;  ///< each item has terms of its own, such as a time-out
    std::size_t workers = 1;
    double mean_ns = 0;  ///< how long an item takes, as measured before; 0 if that is not known
  };
  explicit MapPlan(const Options& options);

  /// Returns whether another chunk may go out, while `under_way` chunks are on their way, and the results of
  /// `not_taken` have come and were not taken.
  [[nodiscard]] bool has_room(std::size_t under_way, std::size_t not_taken = 0) const;
  /// Returns how many items the next chunk has, if there are as many.
  [[nodiscard]] std::size_t next_length() const;
  /// Notes that items went out.
  void sent(std::size_t items) { sent_ += items; }
  /// Notes how long a number of items took together.
  void measured(std::size_t items, std::int64_t ns);
  [[nodiscard]] double mean_ns() const { return mean_ns_; }

 private:
  [[nodiscard]] std::size_t items_in(double ns, std::size_t at_most) const;

  std::optional<std::size_t> total_, chunk_size_;
  std::size_t workers_;
  std::size_t sent_ = 0;
  double mean_ns_;
};

}  // namespace miniray
