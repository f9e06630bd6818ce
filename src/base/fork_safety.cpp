#include "base/fork_safety.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
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

// Reads memory of this process, which another thread may be unmapping. Returns no words if it cannot be read.
std::vector<std::uintptr_t> read_words(std::uintptr_t begin, std::uintptr_t end) {
  std::vector<std::uintptr_t> words((end - begin) / sizeof(std::uintptr_t));
  const std::size_t bytes = words.size() * sizeof(words[0]);
  iovec here{words.data(), bytes};
  iovec there{reinterpret_cast<void*>(begin), bytes};  // NOLINT(performance-no-int-to-ptr): the kernel's
  if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != static_cast<ssize_t>(bytes)) words.clear();
  return words;
}

// The beginning of a thread's stack: its highest addresses. They hold the C library's record of the thread, its
// thread-local variables, and the first functions that it has called.
constexpr std::uintptr_t stack_top_bytes = 16384;
constexpr std::uintptr_t record_bytes = 4096;

// Returns the part of a mapping that is the beginning of a stack, if it is one.
std::optional<std::vector<std::uintptr_t>> stack_top_in(const Range& mapping, int thread) {
  const std::uintptr_t begin = std::max(mapping.begin, mapping.end - std::min(mapping.end, stack_top_bytes));
  std::vector<std::uintptr_t> words = read_words(begin, mapping.end);
  for (std::size_t i = words.size() - std::min(words.size(), record_bytes / sizeof(words[0])); i < words.size(); ++i) {
#if defined(__x86_64__)
    // The record begins with its own address, and has it again as its third word.
    const std::uintptr_t address = begin + i * sizeof(words[0]);
    if (words[i] != address || i + 2 >= words.size() || words[i + 2] != address) continue;
#endif
    const std::span<const std::uintptr_t> record(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
    const auto* const numbers = reinterpret_cast<const std::byte*>(record.data());
    for (std::size_t at = 0; at + sizeof(int) <= record.size_bytes(); at += sizeof(int)) {
      if (std::memcmp(numbers + at, &thread, sizeof(thread)) == 0) return words;
    }
#if !defined(__x86_64__)
    break;
#endif
  }
  return std::nullopt;
}

// Returns the mappings of this process that may be stacks: private memory without a file that can be written.
std::vector<Range> possible_stacks() {
  std::vector<Range> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    std::array<char, 5> rights{};
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %lu", &begin, &end, rights.data(), &inode) ==
            4 &&
        std::string_view(rights.data()) == "rw-p" && inode == 0)
      found.push_back({begin, end});
  }
  return found;
}

// Returns whether an address follows a call, so that a function returns to it. Other addresses of code get onto a stack
// too: of functions that were looked up, for example.
bool follows_call(std::uintptr_t address) {
  const auto* const after = reinterpret_cast<const std::uint8_t*>(address);  // NOLINT(performance-no-int-to-ptr)
#if defined(__x86_64__)
  if (after[-5] == 0xe8) return true;                                          // of a function with a fixed address
  return std::ranges::any_of(std::array{2, 3, 4, 6, 7}, [after](int length) {  // through a register or memory
    return after[-length] == 0xff && (after[1 - length] & 0x38) == 0x10;
  });
#elif defined(__aarch64__)
  std::uint32_t instruction = 0;
  std::memcpy(&instruction, after - sizeof(instruction), sizeof(instruction));
  return instruction >> 26 == 0x25 || (instruction & 0xfffffc1f) == 0xd63f0000;  // bl, blr
#else
  return after != nullptr;
#endif
}

// Returns whether that code has started a thread: it then is one of the first functions on the thread's stack. A thread
// that has only called it does not count, and neither does one whose stack is not found.
bool has_started(const std::vector<Range>& code, int thread, const std::vector<Range>& stacks) {
  for (const Range& stack : stacks) {
    const auto words = stack_top_in(stack, thread);
    if (!words) continue;
    return std::ranges::any_of(*words, [&](std::uintptr_t address) {
      return std::ranges::any_of(code, [&](const Range& range) {
        return range.contains(address) && address - range.begin >= 8 && follows_call(address);
      });
    });
  }
  return false;
}

// Threads of other libraries do not count: libraries for linear algebra restore theirs after a fork.
bool has_threads_of(const char* word) {
  const std::vector<Range> code = code_of(word);
  if (code.empty()) return false;
  const std::vector<Range> stacks = possible_stacks();
  std::error_code unreadable;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", unreadable)) {
    const int number = std::atoi(thread.path().filename().c_str());
    if (number != gettid() && number != getpid() && has_started(code, number, stacks)) return true;
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
