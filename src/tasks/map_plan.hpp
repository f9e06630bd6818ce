// How the items of a map go out: in chunks as long as their measured time suggests, so that every worker has something
// to do until the end, and a message is worth its cost. Which items those are, and what they are, is the caller's
// business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace miniray {

class MapPlan {
 public:
  struct Options {
    std::optional<std::size_t> total = {};  ///< how many items there are; unknown of an iterator that may have no end
    std::optional<std::size_t> chunk_size = {};
    bool one_by_one = false;  ///< each call has terms of its own, such as a time-out
    std::size_t workers = 1;
    double mean_ns = 0;  ///< what an item takes, as measured before; 0: not known
  };
  explicit MapPlan(const Options& options);

  /// Whether another chunk may go out, while so many are on their way, and so many have come back and were not taken.
  [[nodiscard]] bool has_room(std::size_t under_way, std::size_t not_taken = 0) const;
  /// How many items the next chunk has, if there are as many.
  [[nodiscard]] std::size_t next_length() const;
  /// So many items went out.
  void sent(std::size_t items) { sent_ += items; }
  /// So many items took that long together.
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
