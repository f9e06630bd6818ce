// Pool::map: gives a map's flow a list of items, and puts their results into their places.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.hpp"
#include "base/error_text.hpp"
#include "calls/call_failures.hpp"
#include "tasks/map_flow.hpp"
#include "tasks/pool_driver.hpp"

namespace miniray {
namespace {

class Mapping {
 public:
  Mapping(PoolDriver& pool, std::shared_ptr<const TaskTerms> terms, std::string function, List items,
          std::optional<std::size_t> chunk_size)
      : pool_(pool),
        terms_(std::move(terms)),
        function_(std::move(function)),
        items_(std::move(items)),
        flow_({.function = function_,
               .total = items_.size(),
               .chunk_size = chunk_size,
               .one_by_one = terms_->timeout_s || terms_->memory_bytes,
               .workers = pool.worker_count()},
              pool.tally()) {
    pool_.begin_map();
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  // If an interrupt or a callback threw, nobody asks for the rest.
  ~Mapping() {
    pool_.cancel(flow_.abandon(), true);
    pool_.end_map();
  }

  void feed() {
    while (const std::size_t wanted = flow_.wanted()) {
      const std::size_t count = std::min(wanted, items_.size() - next_);
      const std::optional<std::size_t> first = flow_.read(count, wanted);
      MINIRAY_CHECK(first == next_, next_);
      next_ += count;
      if (count > 0) send(*first, count);
    }
  }
  [[nodiscard]] bool is_settled() const { return flow_.is_settled(); }
  /// Waits for an outcome, and takes in all that there are. Returns false when the deadline has passed.
  bool wait(const Deadline& deadline) {
    std::vector<Arrival> arrived;
    const auto take = [&] {
      arrived.swap(inbox_->arrivals);
      return !arrived.empty();
    };
    if (!pool_.wait(take, deadline)) return false;
    for (Arrival& arrival : arrived) settle(std::move(arrival));
    return true;
  }
  /// Returns what the items became; throws the failure of the first that failed.
  [[nodiscard]] List take() {
    while (const std::optional<MapFlow::Piece> piece = flow_.take())
      if (const auto failed = failures_.find(piece->first); failed != failures_.end())
        std::rethrow_exception(failed->second);
    return std::move(items_);
  }

 private:
  class Chunk;
  struct Arrival {
    std::int64_t number;
    CallReply reply;
    std::exception_ptr failure;
    TaskOutcome::Kind kind;
    std::string worker;
  };
  // The pool's lock guards it.
  struct Inbox {
    std::vector<Arrival> arrivals;
  };
  class Chunk : public TaskOwner {
   public:
    Chunk(const Mapping& of, std::int64_t task_number) : function_(of.function_), inbox_(of.inbox_) {
      number = task_number;
    }
    void on_outcome(CallReply reply, const std::exception_ptr& failure, const TaskOutcome& outcome,
                    Callbacks& /*due*/) override {
      if (const std::shared_ptr<Inbox> inbox = inbox_.lock())
        inbox->arrivals.push_back({number, std::move(reply), failure, outcome.kind, outcome.worker});
    }
    [[nodiscard]] const std::string& called() const override { return function_; }

   private:
    const std::string function_;
    const std::weak_ptr<Inbox> inbox_;  // gone with the map
  };

  void send(std::size_t first, std::size_t count) {
    const auto chunk = std::make_shared<Chunk>(*this, pool_.next_number());
    flow_.begin({.number = chunk->number, .first = first, .count = count});
    const auto begin = items_.begin() + static_cast<std::ptrdiff_t>(first);
    List items(begin, begin + static_cast<std::ptrdiff_t>(count));  // the map keeps its own, to send them again
    const bool limited = terms_->memory_bytes.has_value();          // the limit is one of a call, not of a map
    const Value body = limited ? call_body(function_, std::move(items), {}, terms_->memory_bytes)
                               : map_body(function_, std::move(items));
    try {
      pool_.submit(chunk, limited ? CallVerb::call : CallVerb::map, body, terms_, true);
    } catch (const Unsendable& error) {
      flow_.withdraw(chunk->number);
      const auto [item, why] = unsendable(first, body.at(1).list(), error);
      fail({.first = first, .count = count}, 0, 1, item, why);
    }
  }

  [[nodiscard]] std::pair<std::size_t, std::exception_ptr> unsendable(std::size_t first, const List& items,
                                                                      const Unsendable& otherwise) const {
    for (std::size_t i = 0; i < items.size(); ++i) {
      try {
        (void)encode(items[i]);
      } catch (const Unsendable& error) {
        const std::string text = "item " + std::to_string(first + i) + " of the map of " + function_ + ": ";
        return {first + i, std::make_exception_ptr(Unsendable(text + error.what()))};
      }
    }
    return {first, std::make_exception_ptr(otherwise)};
  }

  void settle(Arrival arrival) {
    auto& [number, reply, failure, kind, worker] = arrival;
    MapFlow::Chunk chunk;
    const MapFlow::Fate fate = flow_.finish(number, kind, &chunk);
    const MapFlow::Piece piece{.first = chunk.first, .count = chunk.count};
    if (fate == MapFlow::Fate::sent_singly) {
      for (std::size_t i = 0; i < piece.count; ++i) send(piece.first + i, 1);
      return;
    }
    if (!failure && terms_->memory_bytes && reply.verb == ReplyVerb::value) {
      reply.verb = ReplyVerb::values;
      reply.value = List{std::move(reply.value)};
    }
    if (!failure) failure = wrong_values(reply, piece.count, function_, worker);
    if (failure) return fail(piece, 0, kind == TaskOutcome::Kind::cancelled ? 0 : piece.count, piece.first, failure);
    flow_.measure(piece.count, reply.ns);
    if (!reply.failures.empty()) {
      auto& [index, why] = reply.failures.front();
      const std::size_t failed = std::min(reply.failures.size(), piece.count);  // a worker may send one twice
      return fail(piece, piece.count - failed, failed, piece.first + index,
                  failure_of_item(std::move(why), function_, worker));
    }
    std::ranges::move(reply.value.list(), items_.begin() + static_cast<std::ptrdiff_t>(piece.first));
    flow_.arrive(piece, piece.count, 0);
  }

  // An item of a chunk failed. Chunks before it are still waited for, since one of their items may fail too; those
  // after it need not begin.
  void fail(const MapFlow::Piece& piece, std::size_t done, std::size_t failed, std::size_t item,
            std::exception_ptr failure) {
    failures_.emplace(piece.first, std::move(failure));
    flow_.arrive(piece, done, failed);
    pool_.cancel(flow_.fail(item), false);
  }

  PoolDriver& pool_;
  const std::shared_ptr<const TaskTerms> terms_;
  const std::string function_;
  List items_;            // and then what they became
  std::size_t next_ = 0;  // the first that has not gone out
  MapFlow flow_;
  std::map<std::size_t, std::exception_ptr> failures_;  // by the first item of the chunk
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
};

}  // namespace

List map_in_chunks(PoolDriver& pool, const std::shared_ptr<const TaskTerms>& terms, const std::string& function,
                   List items, const MapOptions& options) {
  if (options.chunk_size == std::size_t{0}) throw UsageError("chunk_size is 1 or more, not 0");
  const Deadline deadline = Deadline::in_seconds(options.timeout_s);
  Mapping mapping(pool, terms, function, std::move(items), options.chunk_size);
  while (true) {
    mapping.feed();
    if (mapping.is_settled()) return mapping.take();
    if (!mapping.wait(deadline))
      throw TimeoutError("the map of " + function + " is not done after " + number_text(*options.timeout_s) +
                         " s, and what was left of it is cancelled");
  }
}

}  // namespace miniray
