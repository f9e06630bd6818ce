// What does not survive a fork: CUDA contexts, other threads, and the thread pool of GNU OpenMP. Libraries are only
// looked at if the program has loaded them already.
#pragma once

#include <vector>

namespace miniray {

/// Whether a CUDA context lives in this process; a child could use neither it nor a new one.
[[nodiscard]] bool cuda_context_is_live();

/// A child that inherits the memory of GNU OpenMP's threads, but not the threads, waits for them for ever. Made before
/// the fork, called in the child: from then on parallel regions there run on one thread.
class OpenMpAfterFork {
 public:
  OpenMpAfterFork();
  [[nodiscard]] bool needed() const { return !set_num_threads_.empty(); }
  void run_in_child() const;

 private:
  std::vector<void (*)(int)> set_num_threads_;  // of each copy of the library
};

}  // namespace miniray
