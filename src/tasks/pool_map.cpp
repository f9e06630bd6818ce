// Pool::map: items go out in chunks, as long as their measured time suggests, and their results come back in order.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "calls/call_failures.hpp"
#include "tasks/map_plan.hpp"
#include "tasks/pool_inside.hpp"

namespace miniray {
namespace {

class Mapping {
 public:
  Mapping(PoolInside& inside, std::shared_ptr<const TaskTerms> terms, std::string function, List items,
          std::optional<std::size_t> chunk_size)
      : inside_(inside),
        terms_(std::move(terms)),
        function_(std::move(function)),
        items_(std::move(items)),
        plan_({.total = items_.size(),
               .chunk_size = chunk_size,
               .one_by_one = terms_->timeout_s || terms_->memory_bytes,
               .workers = inside.worker_count(),
               .mean_ns = inside.mean_ns(function_)}) {
    inside_.begin_map();
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  // If an interrupt or a callback threw, nobody asks for the rest.
  ~Mapping() {
    inside_.cancel(numbers_of(under_way_), true);
    inside_.end_map();
  }

  /// As many chunks as the workers can be busy with, and one more for each.
  void feed() {
    for (const std::size_t item : std::exchange(again_, {})) send(item, 1);
    while (next_ < items_.size() && !failure_ && plan_.has_room(under_way_.size())) {
      const std::size_t length = std::min(plan_.next_length(), items_.size() - next_);
      plan_.sent(length);
      send(std::exchange(next_, next_ + length), length);
    }
  }
  [[nodiscard]] bool done() const {
    return under_way_.empty() && again_.empty() && (failure_ || next_ == items_.size());
  }
  /// Waits for an outcome, and takes in all that there are. Returns false when the deadline has passed.
  bool wait(const Deadline& deadline) {
    std::vector<Arrival> arrived;
    const auto take = [&] {
      arrived.swap(inbox_->arrivals);
      return !arrived.empty();
    };
    if (!inside_.wait(take, deadline)) return false;
    for (Arrival& arrival : arrived) settle(std::move(arrival));
    return true;
  }
  /// What the items became.
  [[nodiscard]] List take() {
    if (failure_) std::rethrow_exception(failure_);
    return std::move(items_);
  }

 private:
  class Chunk;
  struct Arrival {
    std::shared_ptr<const Chunk> chunk;
    CallReply reply;
    std::exception_ptr failure;
    std::string worker;
  };
  // The pool's lock guards it.
  struct Inbox {
    std::vector<Arrival> arrivals;
  };
  class Chunk : public TaskOwner, public std::enable_shared_from_this<Chunk> {
   public:
    Chunk(const Mapping& of, std::size_t first_item, std::size_t item_count)
        : first(first_item), count(item_count), function_(of.function_), inbox_(of.inbox_) {}
    void on_outcome(CallReply reply, const std::exception_ptr& failure, const std::string& worker,
                    Callbacks& /*due*/) override {
      if (const std::shared_ptr<Inbox> inbox = inbox_.lock())
        inbox->arrivals.push_back({shared_from_this(), std::move(reply), failure, worker});
    }
    [[nodiscard]] const std::string& called() const override { return function_; }
    const std::size_t first, count;

   private:
    const std::string function_;
    const std::weak_ptr<Inbox> inbox_;  // gone with the map
  };

  static std::vector<std::int64_t> numbers_of(const std::vector<std::shared_ptr<Chunk>>& chunks) {
    std::vector<std::int64_t> numbers;
    for (const auto& chunk : chunks) numbers.push_back(chunk->number);
    return numbers;
  }

  void send(std::size_t first, std::size_t count) {
    auto chunk = std::make_shared<Chunk>(*this, first, count);
    const auto begin = items_.begin() + static_cast<std::ptrdiff_t>(first);
    List items(begin, begin + static_cast<std::ptrdiff_t>(count));  // kept, should they have to go out again
    const bool limited = terms_->memory_bytes.has_value();          // which is of one call
    const Value body = limited ? call_body(function_, std::move(items), {}, terms_->memory_bytes)
                               : map_body(function_, std::move(items));
    try {
      inside_.submit(chunk, limited ? CallVerb::call : CallVerb::map, body, terms_, true);
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

  void settle(Arrival arrival) {
    auto& [chunk, reply, failure, worker] = arrival;
    const std::size_t first = chunk->first, count = chunk->count;
    std::erase(under_way_, chunk);
    if (!failure && terms_->memory_bytes && reply.verb == ReplyVerb::value) {
      reply.verb = ReplyVerb::values;
      reply.value = List{std::move(reply.value)};
    }
    if (!failure) failure = wrong_values(reply, count, function_, worker);
    if (failure && count > 1 && is_death(failure) && first < failed_item_) {
      // One of its items may have killed the worker: each is tried by itself, even those that had been done.
      for (std::size_t i = 0; i < count; ++i) again_.push_back(first + i);
      return;
    }
    if (failure) return fail(first, failure);
    if (!reply.failures.empty()) {
      auto& [index, why] = reply.failures.front();
      return fail(first + index, failure_of_item(std::move(why), function_, worker));
    }
    plan_.measured(count, reply.ns);
    inside_.note_mean(function_, plan_.mean_ns());
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

  // The first item that failed is told of: those before it are still waited for, and those after it need not begin.
  void fail(std::size_t item, std::exception_ptr failure) {
    if (item >= failed_item_) return;
    failed_item_ = item;
    failure_ = std::move(failure);
    std::vector<std::int64_t> behind;
    for (const std::shared_ptr<Chunk>& chunk : under_way_)
      if (chunk->first > item) behind.push_back(chunk->number);
    inside_.cancel(std::move(behind), false);
  }

  PoolInside& inside_;
  const std::shared_ptr<const TaskTerms> terms_;
  const std::string function_;
  List items_;  // and then what they became
  MapPlan plan_;
  std::size_t next_ = 0;            // the first that has not gone out
  std::vector<std::size_t> again_;  // items that go out once more
  std::vector<std::shared_ptr<Chunk>> under_way_;
  std::size_t failed_item_ = SIZE_MAX;
  std::exception_ptr failure_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
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
    if (!mapping.wait(deadline))
      throw TimeoutError("the map of " + function + " is not done after " + std::to_string(*options.timeout_s) +
                         " s, and what was left of it is cancelled");
  }
}

}  // namespace miniray
