// Pool::map: items go out in chunks, as long as their measured time suggests, and their results come back in order.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "calls/call_desk.hpp"
#include "tasks/pool_inside.hpp"

namespace miniray {
namespace {

constexpr std::size_t first_items_max = 64;

class Mapping {
 public:
  Mapping(PoolInside& inside, std::shared_ptr<const TaskTerms> terms, std::string function, List items,
          std::optional<std::size_t> chunk_size)
      : inside_(inside),
        terms_(std::move(terms)),
        function_(std::move(function)),
        items_(std::move(items)),
        chunk_size_(chunk_size),
        workers_(std::max<std::size_t>(1, inside.worker_count())) {
    if (terms_->timeout_s) chunk_size_ = 1;  // which is of one call
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  // Nobody asks for the rest, be it that an interrupt or a callback threw.
  ~Mapping() {
    given_up_ = true;
    for (const std::shared_ptr<Chunk>& chunk : std::vector(under_way_)) inside_.cancel(chunk->number);
  }

  /// As many chunks as the workers can be busy with, and one more for each.
  void feed() {
    for (const std::size_t item : std::exchange(again_, {})) send(item, 1);
    while (next_ < items_.size() && !failure_ && under_way_.size() < 2 * workers_) {
      const std::size_t length = std::min(chunk_length(), items_.size() - next_);
      send(std::exchange(next_, next_ + length), length);
    }
  }
  [[nodiscard]] bool done() const {
    return under_way_.empty() && again_.empty() && (failure_ || next_ == items_.size());
  }
  /// Whether something has come since it was last asked.
  [[nodiscard]] bool heard_something() { return std::exchange(heard_, false); }
  /// What the items became.
  [[nodiscard]] List take() {
    if (failure_) std::rethrow_exception(failure_);
    return std::move(items_);
  }

 private:
  class Chunk : public TaskOwner {
   public:
    Chunk(Mapping& of, std::size_t first_item, std::size_t item_count)
        : TaskOwner(of.function_), first(first_item), count(item_count), mapping_(of) {}
    void settle(CallReply reply, const std::exception_ptr& failure, const std::string& worker) override {
      mapping_.settle(*this, std::move(reply), failure, worker);
    }
    const std::size_t first, count;

   private:
    Mapping& mapping_;
  };

  [[nodiscard]] std::size_t chunk_length() const {
    if (chunk_size_) return *chunk_size_;
    // A small part of each worker's share: not much is lost if that is long.
    if (mean_ns_ == 0) return std::clamp<std::size_t>(items_.size() / (32 * workers_), 1, first_items_max);
    const auto items_in = [&](double ns) {
      return static_cast<std::size_t>(std::clamp<double>(ns / mean_ns_, 1, limits::chunk_items_max));
    };
    // The last ones are short, so that no worker is left with much to do; but less is not worth a message.
    const std::size_t shortest = items_in(limits::chunk_ms * 1e6 / 8);
    return std::min(items_in(limits::chunk_ms * 1e6), std::max(shortest, (items_.size() - next_) / (2 * workers_)));
  }

  void send(std::size_t first, std::size_t count) {
    auto chunk = std::make_shared<Chunk>(*this, first, count);
    const auto begin = items_.begin() + static_cast<std::ptrdiff_t>(first);
    List items(begin, begin + static_cast<std::ptrdiff_t>(count));  // kept, should they have to go out again
    const Value body = map_body(function_, std::move(items));
    try {
      inside_.submit(chunk, CallVerb::map, body, terms_);
    } catch (const Unsendable& error) {
      return unsendable(first, body.at(1).list(), error);
    }
    under_way_.push_back(std::move(chunk));
  }

  void unsendable(std::size_t first, const List& items, const Unsendable& otherwise) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      try {
        (void)encode(items[i]);
      } catch (const Unsendable& error) {
        const std::string text = "item " + std::to_string(first + i) + " of the map of " + function_ + ": ";
        return fail(first + i, std::make_exception_ptr(Unsendable(text + error.what())));
      }
    }
    fail(first, std::make_exception_ptr(otherwise));
  }

  // Throws nothing: there are other outcomes to be handed out.
  void settle(const Chunk& chunk, CallReply reply, std::exception_ptr failure, const std::string& worker) {
    heard_ = true;
    const std::size_t first = chunk.first, count = chunk.count;
    std::erase_if(under_way_, [&](const auto& held) { return held.get() == &chunk; });
    if (given_up_) return;
    if (!failure) failure = wrong_reply(reply, count, worker);
    if (failure && count > 1 && is_death(failure) && first < failed_item_) {
      // One of its items may have killed the worker: each is tried by itself, even those that had been done.
      for (std::size_t i = 0; i < count; ++i) again_.push_back(first + i);
      return;
    }
    if (failure) return fail(first, failure);
    if (!reply.failures.empty()) {
      CallReply of_item;
      of_item.verb = ReplyVerb::error;
      of_item.failure = std::move(reply.failures.front().second);
      return fail(first + reply.failures.front().first, failure_in(of_item, function_, worker));
    }
    const double ns = static_cast<double>(reply.ns) / static_cast<double>(count);
    mean_ns_ = std::max(1.0, mean_ns_ == 0 ? ns : mean_ns_ + chunk_weight * (ns - mean_ns_));
    std::ranges::move(reply.value.list(), items_.begin() + static_cast<std::ptrdiff_t>(first));
  }

  static bool is_death(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const WorkerDied&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  std::exception_ptr wrong_reply(CallReply& reply, std::size_t count, const std::string& worker) const {
    if (reply.value.kind() == Value::Kind::map) {  // from Python
      reply.verb = ReplyVerb::pickle;
      return failure_in(reply, function_, worker);
    }
    const bool right = reply.verb == ReplyVerb::values && reply.value.kind() == Value::Kind::list &&
                       reply.value.list().size() == count &&
                       std::ranges::all_of(reply.failures, [&](const auto& failed) { return failed.first < count; });
    if (right) return {};
    return std::make_exception_ptr(ProtocolError(worker + " answered a map of " + function_ + " with something else"));
  }

  // The first item that failed is told of: those before it are still waited for, and those after it need not begin.
  void fail(std::size_t item, std::exception_ptr failure) {
    if (item >= failed_item_) return;
    failed_item_ = item;
    failure_ = std::move(failure);
    for (const std::shared_ptr<Chunk>& chunk : std::vector(under_way_))
      if (chunk->first > item && !inside_.is_running(chunk->number)) inside_.cancel(chunk->number);
  }

  static constexpr double chunk_weight = 0.3;

  PoolInside& inside_;
  const std::shared_ptr<const TaskTerms> terms_;
  const std::string function_;
  List items_;  // and then what they became
  std::optional<std::size_t> chunk_size_;
  const std::size_t workers_;
  std::size_t next_ = 0;            // the first that has not gone out
  std::vector<std::size_t> again_;  // items that go out once more
  std::vector<std::shared_ptr<Chunk>> under_way_;
  double mean_ns_ = 0;  // of an item; 0: not known
  std::size_t failed_item_ = SIZE_MAX;
  std::exception_ptr failure_;
  bool heard_ = false;
  bool given_up_ = false;
};

}  // namespace

List map_in_chunks(PoolInside& inside, const std::shared_ptr<const TaskTerms>& terms, const std::string& function,
                   List items, const MapOptions& options) {
  if (options.chunk_size == std::size_t{0}) throw UsageError("chunk_size is 1 or more, not 0");
  const Deadline deadline = Deadline::in_seconds(options.timeout_s);
  Mapping mapping(inside, terms, function, std::move(items), options.chunk_size);
  while (true) {
    mapping.feed();
    if (mapping.done()) return mapping.take();
    if (!inside.wait([&] { return mapping.heard_something(); }, deadline))
      throw TimeoutError("the map of " + function + " is not done after " + std::to_string(*options.timeout_s) +
                         " s, and what was left of it is cancelled");
  }
}

}  // namespace miniray
