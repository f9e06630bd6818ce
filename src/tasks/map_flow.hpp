// The flow of a map, for both languages: which items are on their way, which go out next, what is sent again, and which
// results may be taken. It knows items by their positions. A language reads the items, encodes and submits chunks of
// them, decodes the replies and hands out the results.
//
// Not thread-safe: each call is one step, and its user makes one step at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tasks/map_plan.hpp"
#include "tasks/tally.hpp"
#include "tasks/task.hpp"

namespace miniray {

class MapFlow {
 public:
  struct Options {
    std::string function = {};  ///< the name under which the tally keeps the time that an item takes
    std::optional<std::size_t> total = {};
    std::optional<std::size_t> chunk_size = {};
    bool one_by_one = false;
    std::size_t workers = 1;
    bool ordered = true;  ///< results are taken in the order of their items, not as they arrive
    /// No chunk goes out while the results that were not handed out have more bytes than this.
    std::size_t results_bytes_max = SIZE_MAX;
    int retries = 0;  ///< how often an item that failed may be sent again
  };
  /// Items that travel together, as the task of this number.
  struct Chunk {
    std::int64_t number = 0;
    std::size_t first = 0, count = 0;
    int tries = 0;  ///< how often its item had failed before
  };
  /// What its user does with a chunk that has an outcome.
  enum class Fate : std::uint8_t {
    arrives,      ///< make results or errors of it: arrive()
    sent_singly,  ///< send each of its items again, by itself
    dropped,      ///< nothing: nobody waits for it
  };
  struct Piece {
    std::size_t first = 0, count = 0, bytes = 0;
  };

  /// The tally must outlive it.
  MapFlow(const Options& options, Tally& tally);

  // Sending.
  /// Returns how many items to read, and to send as one chunk; 0 if none may go out now, or none will any more.
  [[nodiscard]] std::size_t wanted() const;
  /// Notes that `count` items were read where `wanted` were asked for. Fewer mean that there are no others. Returns the
  /// position of the first. Returns nothing if the map has ended meanwhile: then the items are not to be sent.
  std::optional<std::size_t> read(std::size_t count, std::size_t wanted);
  /// Notes a chunk of items that were read, before it is submitted: from now on abandon() names it.
  void begin(const Chunk& chunk);
  /// Notes that a chunk could not be submitted. Its items are sent otherwise, or arrive() as errors.
  void withdraw(std::int64_t number);
  /// Notes that no item is read any more: there are none, or they cannot be sent.
  void stop() { stopped_ = exhausted_ = true; }
  /// Sends all that is left, however many bytes of results there are.
  void hurry() { hurries_ = true; }
  /// Whether there may be more items to read.
  [[nodiscard]] bool reads_on() const { return !exhausted_ && !abandoned_; }

  // Outcomes.
  /// Notes the outcome of a chunk, and returns what is to be done with it. After the death of a worker the items of a
  /// chunk are sent one by one, even those that had been done: any of them may have killed it.
  Fate finish(std::int64_t number, TaskOutcome::Kind kind, Chunk* finished);
  /// Whether an item of this chunk may be sent again after it failed.
  [[nodiscard]] bool may_retry(const Chunk& chunk) const { return chunk.tries < retries_ && !abandoned_; }
  /// Notes what workers took for a number of items.
  void measure(std::size_t items, std::int64_t ns);
  /// Notes that these items have results, or errors in the place of some. The tally counts those that are done and
  /// those that failed; an item that was cancelled is neither.
  void arrive(const Piece& piece, std::size_t done, std::size_t failed);
  /// Notes that the item failed, and that nobody wants those behind it. Returns the chunks that are on their way behind
  /// it, for their cancellation.
  [[nodiscard]] std::vector<std::int64_t> fail(std::size_t item);

  // Results.
  /// Returns the results that come next, if they are there.
  [[nodiscard]] std::optional<Piece> take();
  /// Notes that taken results were handed out. Returns whether sending, which had paused for them, goes on.
  bool hand_out(std::size_t bytes);
  /// Whether no more results will arrive.
  [[nodiscard]] bool is_settled() const;

  // The end.
  /// Notes that nobody will ask for the rest. Returns the chunks that are on their way, the newest first: a worker gets
  /// none of those that wait when the one that it runs is cancelled. May be called again.
  [[nodiscard]] std::vector<std::int64_t> abandon();
  [[nodiscard]] bool abandoned() const { return abandoned_; }

 private:
  [[nodiscard]] bool is_full() const { return bytes_ > bytes_max_ && !hurries_; }
  [[nodiscard]] std::vector<std::int64_t> under_way_from(std::size_t item) const;
  void check_invariants() const;

  Tally& tally_;
  const std::string function_;
  MapPlan plan_;
  const bool ordered_;
  const std::size_t bytes_max_;
  const int retries_;
  bool exhausted_ = false;  // no more items are read
  bool stopped_ = false;    // what was read may never go out
  bool abandoned_ = false, hurries_ = false;
  // Items. Those that were begun are under way, held by the user between two steps, or have arrived.
  std::size_t read_ = 0, begun_ = 0, items_under_way_ = 0, held_ = 0, arrived_ = 0;
  std::size_t failed_item_ = SIZE_MAX;
  std::size_t bytes_ = 0;  // of results that were not handed out
  std::map<std::int64_t, Chunk> under_way_;
  std::map<std::size_t, Piece> pieces_;  // not taken: by their first item, or in the order in which they came
  std::size_t next_piece_ = 0, last_piece_ = 0;
};

}  // namespace miniray
