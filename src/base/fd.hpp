// Owning file descriptors that stay with their process: a forked child closes every one that it was not given, so
// no child keeps another worker's socket open and end-of-file always means what it says.
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
  /// Gives the number away; it is then an ordinary descriptor that children inherit.
  [[nodiscard]] int release();

 private:
  int number_ = -1;
  std::uint64_t generation_ = 0;
};

/// How many forks lie between the process that first asked and this one. An object made in another generation
/// belongs to another process.
std::uint64_t process_generation();

/// While it lives, a fork by this thread leaves these descriptors to the child.
class KeepAcrossFork {
 public:
  explicit KeepAcrossFork(std::span<const int> numbers);
  ~KeepAcrossFork();
  KeepAcrossFork(const KeepAcrossFork&) = delete;
  KeepAcrossFork& operator=(const KeepAcrossFork&) = delete;
};

}  // namespace miniray
