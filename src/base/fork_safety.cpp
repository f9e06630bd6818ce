#include "base/fork_safety.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/system.hpp"

namespace miniray {
namespace {

template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Returns handles of the loaded libraries whose path contains a word. It does not search on disk, as dlopen would.
std::vector<void*> loaded_libraries(const char* word) {
  struct Search {
    const char* word;
    std::vector<std::string> paths;
  } search{word, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        auto& found = *static_cast<Search*>(argument);
        if (info->dlpi_name != nullptr && std::strstr(info->dlpi_name, found.word) != nullptr)
          found.paths.emplace_back(info->dlpi_name);
        return 0;
      },
      &search);
  std::vector<void*> handles;
  for (const std::string& path : search.paths) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY)) {
      dlclose(handle);  // the program's own reference keeps the library loaded
      handles.push_back(handle);
    }
  }
  return handles;
}

struct Range {
  std::uintptr_t begin, end;
  [[nodiscard]] bool contains(std::uintptr_t address) const { return address >= begin && address < end; }
};

// Returns the address ranges of the code of the loaded libraries whose path contains a word.
std::vector<Range> code_of(const char* word) {
  struct Search {
    const char* word;
    std::vector<Range> ranges;
  } search{word, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        auto& found = *static_cast<Search*>(argument);
        if (info->dlpi_name == nullptr || std::strstr(info->dlpi_name, found.word) == nullptr) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
          if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0)
            found.ranges.push_back({begin, begin + part.p_memsz});
        }
        return 0;
      },
      &search);
  return search.ranges;
}

// Returns whether a thread of this process waits inside that code, or was called by it, as its stack shows. A running
// thread cannot be examined, and counts as inside.
bool is_in(const std::vector<Range>& code, const std::string& thread) {
  const std::string state = system::read_small_file(("/proc/self/task/" + thread + "/syscall").c_str());
  const std::size_t last = state.rfind(' ');
  const std::size_t before = last == std::string::npos ? last : state.rfind(' ', last - 1);
  if (before == std::string::npos) return true;  // "running"
  const std::uintptr_t stack = std::strtoull(state.c_str() + before, nullptr, 16);
  const std::uintptr_t at = std::strtoull(state.c_str() + last, nullptr, 16);
  std::array<std::uintptr_t, 1024> words{};
  iovec here{words.data(), sizeof(words)};
  iovec there{reinterpret_cast<void*>(stack), sizeof(words)};  // NOLINT(performance-no-int-to-ptr): the kernel's
  // The stack may end sooner than that, and the read then fails: shorter reads follow.
  ssize_t bytes = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  for (std::size_t size = sizeof(words); bytes < 0 && size > 256; size /= 2) {
    here.iov_len = there.iov_len = size;
    bytes = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  }
  if (bytes < 0) return true;
  const auto is_inside = [&](std::uintptr_t address) {
    return std::ranges::any_of(code, [&](const Range& range) { return range.contains(address); });
  };
  return is_inside(at) ||
         std::any_of(words.begin(), words.begin() + bytes / static_cast<ssize_t>(sizeof(words[0])), is_inside);
}

// Threads of other libraries do not count: libraries for linear algebra restore theirs after a fork.
bool has_threads_of(const char* word) {
  const std::vector<Range> code = code_of(word);
  if (code.empty()) return false;
  std::error_code unreadable;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", unreadable)) {
    const std::string number = thread.path().filename().string();
    if (number != std::to_string(gettid()) && is_in(code, number)) return true;
  }
  return static_cast<bool>(unreadable);
}

// int stands for CUresult and CUdevice; 0 is success. Before cuInit every call fails, and then there is no context.
bool has_live_context(void* driver) {
  auto* device_count = symbol<int(int*)>(driver, "cuDeviceGetCount");
  auto* context_state = symbol<int(int, unsigned*, int*)>(driver, "cuDevicePrimaryCtxGetState");
  int devices = 0;
  if (device_count == nullptr || context_state == nullptr || device_count(&devices) != 0) return false;
  for (int device = 0; device < devices; ++device) {
    unsigned flags = 0;
    int active = 0;
    if (context_state(device, &flags, &active) == 0 && active != 0) return true;
  }
  return false;
}

}  // namespace

bool cuda_context_is_live() {
  const std::vector<void*> drivers = loaded_libraries("libcuda.so");
  return std::any_of(drivers.begin(), drivers.end(), has_live_context);
}

OpenMpAfterFork::OpenMpAfterFork() {
  if (system::thread_count() == 1 || !has_threads_of("libgomp")) return;
  for (void* library : loaded_libraries("libgomp")) {
    if (auto* set = symbol<void(int)>(library, "omp_set_num_threads")) set_num_threads_.push_back(set);
  }
}

void OpenMpAfterFork::run_in_child() const {
  for (auto* set : set_num_threads_) set(1);
}

}  // namespace miniray
