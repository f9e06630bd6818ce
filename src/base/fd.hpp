// A file descriptor with an owner. A forked child closes every Fd of its parent that it was not explicitly given. So no
// child keeps the socket of another worker open, and the end of a stream always means that the peer has closed it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace miniray {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int number);
  Fd(Fd&& other) noexcept : number_(std::exchange(other.number_, -1)), generation_(other.generation_) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] bool valid() const { return number_ >= 0; }
  void reset();
  /// Returns the number and stops owning it. The caller then owns an ordinary descriptor, which children inherit.
  [[nodiscard]] int release();

 private:
  int number_ = -1;
  std::uint64_t generation_ = 0;
};

/// Returns how many forks lie between the process that called this first and the current process. An object that was
/// created in another generation belongs to another process.
std::uint64_t process_generation();

/// As long as this object lives, a child that this thread forks keeps these descriptors open.
class KeepAcrossFork {
 public:
  explicit KeepAcrossFork(std::span<const int> numbers);
  ~KeepAcrossFork();
  KeepAcrossFork(const KeepAcrossFork&) = delete;
  KeepAcrossFork& operator=(const KeepAcrossFork&) = delete;
};

}  // namespace miniray
