// Memory for a key. It is in a page of its own, which the kernel leaves out of core dumps and gives to a forked child
// full of zeros, so that no worker inherits a key. It is overwritten when its last owner is destroyed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace miniray {

/// Bytes that copies of this object share.
class Secret {
 public:
  /// Makes room for this many bytes, which are zeros. Throws SystemError if there is no memory.
  explicit Secret(std::size_t bytes);

  /// Throws UsageError in a process that was forked after the secret was made, because the bytes are not there.
  [[nodiscard]] std::span<unsigned char> get() const;
  [[nodiscard]] std::string_view text() const { return {reinterpret_cast<const char*>(get().data()), get().size()}; }

 private:
  struct Page;
  std::shared_ptr<const Page> page_;
};

/// Overwrites what functions that have returned left on this thread's stack. Call it after a computation with a key.
void wipe_stack();
/// Removes a variable from the environment, and overwrites its value there and in the block that the process started
/// with, which /proc/self/environ shows. No other thread may read the environment meanwhile.
void wipe_from_environment(std::string_view name);
/// Finds that block, so that the processes which this one forks need not look for it.
void prepare_to_wipe_environment();

}  // namespace miniray
