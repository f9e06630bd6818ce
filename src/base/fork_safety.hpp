// Detects what does not survive a fork: CUDA contexts and the thread pool of GNU OpenMP. It looks only at libraries
// that the program has already loaded.
#pragma once

#include <vector>

namespace miniray {

/// Returns whether this process has a live CUDA context. A forked child could use neither this context nor a new one.
[[nodiscard]] bool cuda_context_is_live();

/// Keeps a forked child from waiting forever for the threads of GNU OpenMP, which a fork does not copy. Create it
/// before the fork and call run_in_child() in the child; the parallel regions of the child then run on one thread.
class OpenMpAfterFork {
 public:
  OpenMpAfterFork();
  [[nodiscard]] bool needed() const { return !set_num_threads_.empty(); }
  void run_in_child() const;

 private:
  std::vector<void (*)(int)> set_num_threads_;  // omp_set_num_threads of each loaded copy of the library
};

}  // namespace miniray
