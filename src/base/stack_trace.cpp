#include "base/stack_trace.hpp"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#ifdef MINIRAY_HAS_BACKTRACE
#include <backtrace.h>
#endif

namespace miniray {
namespace {

// The longest cycle of calls that is folded: a recursion through this many functions.
constexpr std::size_t cycle_calls = 4;
// A handler that raises its signal again makes at most this many calls to do so.
constexpr std::size_t handler_calls = 8;

[[gnu::format(printf, 2, 3)]] void write_line(int descriptor, const char* format, ...) {
  std::array<char, limits::crash_line_bytes_max> line{};
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
  if (length <= 0) return;
  const std::size_t bytes = std::min(static_cast<std::size_t>(length), line.size() - 1);
  line[bytes - 1] = '\n';  // also if the line was cut
  [[maybe_unused]] const ssize_t written = write(descriptor, line.data(), bytes);
}

// Returns the address to which a function returns that was interrupted at its first instruction; 0 if it is not known.
std::uintptr_t return_address(const void* interrupted) {
  const mcontext_t& machine = static_cast<const ucontext_t*>(interrupted)->uc_mcontext;
#if defined(__x86_64__)
  std::uintptr_t found = 0;
  iovec here{&found, sizeof(found)};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): of a register. The kernel reads it, because it may point anywhere.
  iovec there{reinterpret_cast<void*>(machine.gregs[REG_RSP]), sizeof(found)};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == sizeof(found) ? found : 0;
#elif defined(__aarch64__)
  return machine.regs[30];
#else
  (void)machine;
  return 0;
#endif
}

}  // namespace

void StackTrace::take(const void* interrupted, bool raised_again) noexcept {
  clear();
  struct Walk {
    StackTrace& stack;
    bool raised_again;
    int signals;
  } walk{*this, raised_again, 0};
  _Unwind_Backtrace(
      [](_Unwind_Context* context, void* argument) {
        auto& now = *static_cast<Walk*>(argument);
        int is_interrupted = 0;
        const std::uintptr_t address = _Unwind_GetIPInfo(context, &is_interrupted);
        // Only a signal interrupts a function between two instructions: what was called before it is the handler. The
        // handler may have been called by another one, that of Python for example, which has raised the signal again.
        if (is_interrupted != 0) {
          ++now.signals;
          const bool is_first_handler = now.raised_again && now.signals == 2 && now.stack.size_ <= handler_calls;
          if (now.signals == 1 || is_first_handler) now.stack.clear();
        }
        if (address == 0 && is_interrupted == 0) return _URC_END_OF_STACK;
        now.stack.add(is_interrupted != 0 ? address : address - 1);  // a return address follows its call
        return _URC_NO_REASON;
      },
      &walk);
  // A call of a null pointer has no frame to unwind, but has left its return address.
  if (size_ == 1 && interrupted != nullptr) {
    if (const std::uintptr_t caller = return_address(interrupted); caller != 0) add(caller - 1);
  }
}

void StackTrace::add(std::uintptr_t address) noexcept {
  if (size_ > 0 && calls_[size_ - 1].address == address && calls_[size_ - 1].cycle_times == 0) {
    ++calls_[size_ - 1].times;
    return;
  }
  if (size_ == calls_max) {
    left_out_ += calls_[limits::crash_frames_max].times;
    std::copy(calls_.begin() + limits::crash_frames_max + 1, calls_.end(), calls_.begin() + limits::crash_frames_max);
    --size_;
  }
  calls_[size_++] = {address, 1, 0, 0};
  for (std::size_t length = 2; length <= cycle_calls; ++length) {
    if (fold(length)) return;
  }
}

// Drops the last calls if they repeat those before them, which count the repetition instead.
bool StackTrace::fold(std::size_t length) noexcept {
  if (size_ < 2 * length) return false;
  Call* const cycle = calls_.data() + size_ - 2 * length;
  for (std::size_t i = 0; i < length; ++i) {
    const Call &first = cycle[i], &second = cycle[length + i];
    const bool folded_alike = first.cycle_times == 0 || (i + 1 == length && first.cycle_length == length);
    if (first.address != second.address || first.times != second.times || second.cycle_times != 0 || !folded_alike)
      return false;
  }
  Call& last = cycle[length - 1];
  last.cycle_length = static_cast<std::uint32_t>(length);
  last.cycle_times = std::max(last.cycle_times, 1U) + 1;
  size_ -= length;
  return true;
}

void StackTrace::write_addresses(int descriptor) const noexcept {
  std::array<void*, calls_max> addresses{};
  for (std::size_t i = 0; i < size_; ++i)
    addresses[i] = reinterpret_cast<void*>(calls_[i].address);  // NOLINT(performance-no-int-to-ptr)
  backtrace_symbols_fd(addresses.data(), static_cast<int>(size_), descriptor);
}

#ifdef MINIRAY_HAS_BACKTRACE
namespace {

struct Naming {
  int descriptor;
  backtrace_state* state;
};

void ignore_error(void*, const char*, int) {}

// Whether a symbol is that of a function whose name debug information gives without its scope: "call<int>". A mangled
// name has the length before each part, and "cl" for operator().
bool is_symbol_of(const char* function, const char* symbol) {
  if (std::strncmp(symbol, "_Z", 2) != 0) return std::strcmp(function, symbol) == 0;
  if (std::strcmp(function, "operator()") == 0) {
    const char* found = nullptr;
    for (const char* at = std::strstr(symbol, "clE"); at != nullptr; at = std::strstr(at + 1, "clE")) found = at;
    // What follows are parameters; if a lambda's type ends there, it is an argument of a template around the operator.
    return found != nullptr && std::strstr(found, "_E") == nullptr;
  }
  std::array<char, limits::crash_line_bytes_max> part{};
  const int length = static_cast<int>(std::strcspn(function, "<"));
  (void)std::snprintf(part.data(), part.size(), "%d%.*s", length, length, function);
  return std::strstr(symbol, part.data()) != nullptr;
}

// Called for each function that was inlined at an address, innermost first, and for the function itself. Debug
// information may give a name without its scope; then the symbol table has a better one.
int on_function(void* data, std::uintptr_t address, const char* file, int line, const char* function) {
  const auto& naming = *static_cast<const Naming*>(data);
  const char* name = function;
  if (function == nullptr || std::strncmp(function, "_Z", 2) != 0) {
    backtrace_syminfo(
        naming.state, address,
        [](void* found, std::uintptr_t, const char* symbol, std::uintptr_t, std::uintptr_t) {
          if (symbol != nullptr) *static_cast<const char**>(found) = symbol;
        },
        ignore_error, &name);
    // The symbol is that of the function which contains the address, not of one that was inlined into it.
    if (function != nullptr && !is_symbol_of(function, name)) name = function;
  }
  if (name != nullptr)
    write_line(naming.descriptor, "in\t%.*s\t%d\t%s\n", limits::crash_name_chars_max, name, line,
               file != nullptr ? file : "");
  return 0;
}

// Returns the program or library that has this code; without a name if there is none. dladdr() finds nothing in a
// program that was linked with -static.
Dl_info module_of(std::uintptr_t address) {
  Dl_info module{};
  if (dladdr(reinterpret_cast<void*>(address), &module) != 0) return module;  // NOLINT(performance-no-int-to-ptr)
  struct Search {
    std::uintptr_t address;
    Dl_info& module;
  } search{address, module = {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        const auto& [wanted, found] = *static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || wanted < begin || wanted - begin >= segment.p_memsz) continue;
          found.dli_fname = program_invocation_short_name;
          found.dli_fbase = reinterpret_cast<void*>(info->dlpi_addr);  // NOLINT(performance-no-int-to-ptr)
          return 1;
        }
        return 0;
      },
      &search);
  return module;
}

// Whether MiniRay is in a library of its own: then all calls within that library are MiniRay's.
bool is_library(const Dl_info& module) {
  const std::uintptr_t base = reinterpret_cast<std::uintptr_t>(module.dli_fbase);
  const std::uintptr_t headers_of_program = getauxval(AT_PHDR);  // they follow the first bytes of the program
  return module.dli_fbase != nullptr && (headers_of_program < base || headers_of_program - base > 4096);
}

}  // namespace

// Writes "call", how often, whether it is MiniRay's, and its place in a module; then a line "in" for each function with
// its line and file. base/stack_text.cpp reads it.
void StackTrace::write_names(int descriptor) const noexcept {
  static backtrace_state* const state = backtrace_create_state(nullptr, 1, ignore_error, nullptr);
  if (state == nullptr) return;
  Dl_info self{};
  (void)dladdr(reinterpret_cast<const void*>(&is_library), &self);
  Naming naming{descriptor, state};
  for (std::size_t i = 0; i < size_; ++i) {
    const Call& call = calls_[i];
    if (i == limits::crash_frames_max && left_out_ > 0)
      write_line(descriptor, "call\t1\t0\t0\t0\t... %zu calls that are left out\n", left_out_);
    const Dl_info module = module_of(call.address);
    if (module.dli_fname == nullptr) {
      write_line(descriptor, "call\t%u\t0\t0\t0\t0x%zx, where there is no code\n", call.times, call.address);
      continue;
    }
    const bool is_ours = module.dli_fbase == self.dli_fbase && is_library(self);
    const char* const path = module.dli_fname;
    const char* const slash = std::strrchr(path, '/');
    write_line(descriptor, "call\t%u\t%u\t%u\t%d\t%s+0x%zx\n", call.times, call.cycle_length, call.cycle_times,
               is_ours ? 1 : 0, slash != nullptr ? slash + 1 : path,
               call.address - reinterpret_cast<std::uintptr_t>(module.dli_fbase));
    backtrace_pcinfo(state, call.address, on_function, ignore_error, &naming);
  }
}
#else
void StackTrace::write_names(int) const noexcept {}
#endif

}  // namespace miniray
