// Collective operations among workers. Those of one machine share memory; those of several are also connected by TCP:
//
//   coordinator:  miniray::create_group(workers);
//   each worker:  miniray::Group group = miniray::Group::join(handle);
//                 group.all_reduce(std::span(gradients));          // every worker has the sum now
//
// All ranks make the same calls in the same order. If a rank dies, leaves, or makes another call, the calls of all
// others throw an error that names the rank, within a second or two. docs/collectives.md has the details.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "miniray/array.hpp"
#include "miniray/export.hpp"
#include "miniray/handle.hpp"
#include "miniray/limits.hpp"
#include "miniray/owned.hpp"
#include "miniray/seconds.hpp"
#include "miniray/value.hpp"
#include "miniray/worker.hpp"

namespace MINIRAY_API miniray {

/// How a reduction combines the elements of two ranks. Complex numbers have no min and max.
enum class ReduceOp : std::uint8_t { sum, product, min, max };
[[nodiscard]] const char* name_of(ReduceOp op);
/// Throws UsageError if there is no such operation.
[[nodiscard]] ReduceOp parse_reduce_op(std::string_view name);

struct CollectiveOptions {
  /// How long a call of a rank waits for the others. Then it throws TimeoutError, which names the missing ranks.
  Seconds timeout_s = limits::group_timeout_ms / 1000.0;
  // If the workers are on several machines:
  /// The ports on which ranks listen while the group is made; 0: any free port.
  int first_port = 0, last_port = 0;
  /// A machine that does not answer for this long is treated as gone.
  Seconds unreachable_s = limits::unreachable_ms / 1000.0;
  /// False sends data between machines unencrypted, which is for networks that you trust. By default, it is encrypted
  /// unless all connections to workers on other machines were made with encrypt = false.
  std::optional<bool> encrypt = {};
};

/// A rank did not take part in a call: it has died, has left, or has made another call. The group cannot be used again.
class GroupBroken : public Error {
 public:
  using Error::Error;
};

/// Makes a group of these workers: the n-th worker has rank n. Sends each of them an invitation, which it must receive
/// by Group::join() as its next message.
/// If all workers are processes of this machine, it returns at once. Otherwise it waits until all ranks have joined and
/// are connected to each other. Then it throws GroupBroken, which names ranks, addresses and causes, if some cannot
/// connect; WorkerDied if a worker dies; TimeoutError, which names the missing ranks, after timeout_s. The other ranks
/// throw GroupBroken then, in Group::join() if they have not joined yet, and the workers can be used further. Messages
/// that a worker sent before it joined are kept for recv().
/// If a worker cannot be invited, because it has died, the others are invited all the same, and hear of that.
void create_group(std::span<Worker* const> workers, const CollectiveOptions& options = {});
void create_group(std::span<Worker> workers, const CollectiveOptions& options = {});

/// Returns whether a message that a worker has received is an invitation to a group.
[[nodiscard]] bool is_invitation(const Message& message);

namespace detail {

/// A range that has its elements in one piece, so that a std::span can refer to them.
template <class Range>
concept ElementRange = requires(Range& range) { std::span(range); };
template <class Range>
using ElementOf = typename decltype(std::span(std::declval<Range&>()))::value_type;

template <class Range>
std::span<std::byte> bytes_to_write(std::remove_reference_t<Range>& range) {
  using Element = typename decltype(std::span(range))::element_type;
  static_assert(!std::is_const_v<Element>, "the group writes to these elements, so they cannot be const");
  static_assert(std::is_lvalue_reference_v<Range> || std::ranges::enable_borrowed_range<Range>,
                "the group writes to these elements, so their container needs a name");
  if constexpr (std::is_const_v<Element>)
    return {};
  else
    return std::as_writable_bytes(std::span(range));
}
template <class Written, class Range>
std::span<const std::byte> bytes_to_read(const Range& range) {
  static_assert(std::is_same_v<ElementOf<const Range>, ElementOf<Written>>,
                "what a group reads and what it writes have elements of the same type");
  return std::as_bytes(std::span(range));
}

}  // namespace detail

/// A rank of a group, in a worker. It owns its part of the shared memory and its connections, and the elements stay the
/// caller's. One thread at a time may use it. It may be moved while no call is under way. A Group that was moved from
/// can be destroyed and assigned to, and every other call on it throws UsageError. The other ranks notice when it is
/// destroyed or assigned to.
class Group {
 public:
  /// Receives the invitation and waits until all ranks have joined. Throws UsageError if the next message is another
  /// one, TimeoutError and GroupBroken as the calls below do.
  [[nodiscard]] static Group join(Handle& handle, std::function<void()> on_interrupt = {});
  /// The same for an invitation that was received already.
  [[nodiscard]] static Group accept(Handle& handle, const Value& invitation, std::function<void()> on_interrupt = {});
  /// The same without a handle. Throws UsageError if the group is on several machines.
  explicit Group(const Value& invitation, std::function<void()> on_interrupt = {});
  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;

  // Each call waits for all ranks. It throws GroupBroken if a rank dies, leaves or makes another call, and TimeoutError
  // if a rank is missing for longer than CollectiveOptions::timeout_s. `root` is a rank. Every rank gets the same bits.

  // Elements are given as a range that has them in one piece: a std::vector, a std::array, a C array, a std::span. What
  // is written to has elements that are not const, and keeps its size.

  void barrier();
  /// Replaces the elements of every rank by their reduction over all ranks.
  template <detail::ElementRange Range>
  void all_reduce(Range&& elements, ReduceOp op = ReduceOp::sum) {
    all_reduce_bytes(detail::bytes_to_write<Range>(elements), dtype_of<detail::ElementOf<Range>>(), op);
  }
  /// The same, for the elements of an array; other ranks must have the same dtype and size.
  void all_reduce(Array& array, ReduceOp op = ReduceOp::sum);
  /// Replaces the elements of the root by the reduction over all ranks. Those of other ranks stay.
  template <detail::ElementRange Range>
  void reduce(Range&& elements, ReduceOp op = ReduceOp::sum, int root = 0) {
    reduce_bytes(detail::bytes_to_write<Range>(elements), dtype_of<detail::ElementOf<Range>>(), op, root);
  }
  /// Replaces the elements of every rank by those of the root.
  template <detail::ElementRange Range>
  void broadcast(Range&& elements, int root = 0) {
    broadcast_bytes(detail::bytes_to_write<Range>(elements), dtype_of<detail::ElementOf<Range>>(), root);
  }
  /// Gives each rank its part of the root's elements, which are the parts of all ranks in the order of ranks. Ranks
  /// other than the root pass an empty `all`.
  template <detail::ElementRange All, detail::ElementRange Part>
  void scatter(const All& all, Part&& part, int root = 0) {
    scatter_bytes(detail::bytes_to_read<Part>(all), detail::bytes_to_write<Part>(part),
                  dtype_of<detail::ElementOf<Part>>(), root);
  }
  /// Gives the root the parts of all ranks, in the order of ranks. Ranks other than the root pass an empty `all`.
  template <detail::ElementRange Part, detail::ElementRange All>
  void gather(const Part& part, All&& all, int root = 0) {
    gather_bytes(detail::bytes_to_read<All>(part), detail::bytes_to_write<All>(all), dtype_of<detail::ElementOf<All>>(),
                 root);
  }
  /// Gives every rank the parts of all ranks, in the order of ranks.
  template <detail::ElementRange Part, detail::ElementRange All>
  void all_gather(const Part& part, All&& all) {
    gather(part, std::forward<All>(all), every_rank);
  }
  /// Gives each rank its part of the reduction of `all` over all ranks.
  template <detail::ElementRange All, detail::ElementRange Part>
  void reduce_scatter(const All& all, Part&& part, ReduceOp op = ReduceOp::sum) {
    reduce_scatter_bytes(detail::bytes_to_read<Part>(all), detail::bytes_to_write<Part>(part),
                         dtype_of<detail::ElementOf<Part>>(), op);
  }

  // One rung lower, for language bindings: elements as bytes, with their dtype.
  static constexpr int every_rank = -1;
  void all_reduce_bytes(std::span<std::byte> elements, DType dtype, ReduceOp op);
  void reduce_bytes(std::span<std::byte> elements, DType dtype, ReduceOp op, int root);
  void broadcast_bytes(std::span<std::byte> elements, DType dtype, int root);
  void scatter_bytes(std::span<const std::byte> all, std::span<std::byte> part, DType dtype, int root);
  void gather_bytes(std::span<const std::byte> part, std::span<std::byte> all, DType dtype, int root);
  void reduce_scatter_bytes(std::span<const std::byte> all, std::span<std::byte> part, DType dtype, ReduceOp op);

  class State;  // for the library's own files

 private:
  explicit Group(std::unique_ptr<State> state);
  Owned<State> state_;
};

}  // namespace miniray
