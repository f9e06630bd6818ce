#include "calls/memory_limit.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "miniray/error.hpp"

namespace miniray {
namespace {

std::uint64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "VmData:" && status >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace

MemoryLimit::MemoryLimit(std::uint64_t more_bytes) {
  if (getrlimit(RLIMIT_DATA, &before_) != 0) throw SystemError("cannot read the limit of a process's memory", errno);
  const std::uint64_t had = data_bytes();
  const rlim_t wanted = more_bytes < RLIM_INFINITY - had ? had + more_bytes : RLIM_INFINITY;
  const rlimit limit{std::min(wanted, before_.rlim_cur), before_.rlim_max};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) throw SystemError("cannot limit the memory of a call", errno);
}

MemoryLimit::~MemoryLimit() { (void)setrlimit(RLIMIT_DATA, &before_); }

std::string MemoryLimit::explain(std::uint64_t more_bytes, const std::string& why) {
  const std::string bytes = std::to_string(more_bytes);
  return "the task needed more than the " + bytes +
         " bytes that it may take beside what its worker had (memory_bytes=" + bytes + ")" +
         (why.empty() ? "" : ": " + why) + ". Give it less at a time, or raise memory_bytes";
}

}  // namespace miniray
