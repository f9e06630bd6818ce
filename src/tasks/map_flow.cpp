#include "tasks/map_flow.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace miniray {

MapFlow::MapFlow(const Options& options, Tally& tally)
    : tally_(tally),
      function_(options.function),
      plan_({.total = options.total,
             .chunk_size = options.chunk_size,
             .one_by_one = options.one_by_one,
             .workers = options.workers,
             .mean_ns = tally.mean_ns(options.function)}),
      ordered_(options.ordered),
      bytes_max_(options.results_bytes_max),
      retries_(options.retries) {}

void MapFlow::check_invariants() const {
  MINIRAY_CHECK(items_under_way_ + held_ + arrived_ <= begun_ && begun_ <= read_, items_under_way_, held_, arrived_,
                begun_, read_);
  MINIRAY_CHECK(under_way_.empty() == (items_under_way_ == 0), under_way_.size(), items_under_way_);
  MINIRAY_CHECK(pieces_.empty() || pieces_.begin()->first >= next_piece_, next_piece_);
}

// Sending.

std::size_t MapFlow::wanted() const {
  if (!reads_on() || is_full() || !plan_.has_room(under_way_.size(), pieces_.size())) return 0;
  return plan_.next_length();
}

std::optional<std::size_t> MapFlow::read(std::size_t count, std::size_t wanted) {
  MINIRAY_CHECK(count <= wanted && wanted > 0, count, wanted);
  if (!reads_on()) return std::nullopt;
  exhausted_ = count < wanted;
  plan_.sent(count);
  const std::size_t first = read_;
  read_ += count;
  return first;
}

void MapFlow::begin(const Chunk& chunk) {
  MINIRAY_CHECK(chunk.count > 0 && chunk.first + chunk.count <= read_, chunk.first, chunk.count, read_);
  const bool is_new = under_way_.emplace(chunk.number, chunk).second;
  MINIRAY_CHECK(is_new, chunk.number);
  items_under_way_ += chunk.count;
  if (chunk.first < begun_) {  // once more
    MINIRAY_CHECK(held_ >= chunk.count, held_, chunk.count);
    held_ -= chunk.count;
  } else {
    begun_ = chunk.first + chunk.count;
  }
  check_invariants();
}

void MapFlow::withdraw(std::int64_t number) {
  const auto found = under_way_.find(number);
  MINIRAY_CHECK(found != under_way_.end(), number);
  items_under_way_ -= found->second.count;
  held_ += found->second.count;
  under_way_.erase(found);
}

// Outcomes.

MapFlow::Fate MapFlow::finish(std::int64_t number, TaskOutcome::Kind kind, Chunk* finished) {
  const auto found = under_way_.find(number);
  MINIRAY_CHECK(found != under_way_.end(), number);
  *finished = found->second;
  withdraw(number);
  if (abandoned_ && kind == TaskOutcome::Kind::cancelled) {
    held_ -= finished->count;
    return Fate::dropped;
  }
  if (abandoned_) return Fate::arrives;
  const bool may_be_another = kind == TaskOutcome::Kind::died && finished->count > 1;
  return may_be_another && finished->first < failed_item_ ? Fate::sent_singly : Fate::arrives;
}

void MapFlow::measure(std::size_t items, std::int64_t ns) {
  plan_.measured(items, ns);
  tally_.set_mean_ns(function_, plan_.mean_ns());
}

void MapFlow::arrive(const Piece& piece, std::size_t done, std::size_t failed) {
  MINIRAY_CHECK(done + failed <= piece.count && piece.count <= held_, done, failed, piece.count, held_);
  MINIRAY_CHECK(piece.count > 0 && piece.first + piece.count <= begun_, piece.first, piece.count, begun_);
  const bool is_new = pieces_.emplace(ordered_ ? piece.first : last_piece_++, piece).second;
  MINIRAY_CHECK(is_new, piece.first);
  bytes_ += piece.bytes;
  held_ -= piece.count;
  arrived_ += piece.count;
  tally_.count(done, failed);
  check_invariants();
}

std::vector<std::int64_t> MapFlow::fail(std::size_t item) {
  failed_item_ = std::min(failed_item_, item);
  stop();
  return under_way_from(failed_item_ + 1);
}

// Returns the newest first.
std::vector<std::int64_t> MapFlow::under_way_from(std::size_t item) const {
  std::vector<std::int64_t> numbers;
  for (const auto& [number, chunk] : under_way_)
    if (chunk.first >= item) numbers.push_back(number);
  std::ranges::reverse(numbers);
  return numbers;
}

// Results.

std::optional<MapFlow::Piece> MapFlow::take() {
  const auto found = pieces_.find(next_piece_);
  if (found == pieces_.end()) return std::nullopt;
  const Piece piece = found->second;
  pieces_.erase(found);
  next_piece_ += ordered_ ? piece.count : 1;
  check_invariants();
  return piece;
}

bool MapFlow::hand_out(std::size_t bytes) {
  MINIRAY_CHECK(bytes <= bytes_, bytes, bytes_);
  const bool was_full = is_full();
  bytes_ -= bytes;
  return was_full && !is_full();
}

// What was read before stop() may never go out. Otherwise all that was read arrives.
bool MapFlow::is_settled() const {
  return stopped_ ? under_way_.empty() && held_ == 0 : exhausted_ && arrived_ == read_;
}

std::vector<std::int64_t> MapFlow::abandon() {
  abandoned_ = true;
  return under_way_from(0);
}

}  // namespace miniray
