#include "base/secret.hpp"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <sstream>
#include <string>

#include "base/check.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): not every libc declares it

namespace miniray {
namespace {

// The first byte of a page. A forked child finds 0 there. Without it, a child would take the zeros for a key, which
// everybody could guess.
constexpr unsigned char present = 1;

void overwrite_value(char* entry, std::string_view name, std::size_t bytes) {
  const std::string_view text(entry, bytes);
  if (text.size() > name.size() && text.starts_with(name) && text[name.size()] == '=')
    explicit_bzero(entry + name.size() + 1, text.size() - name.size() - 1);
}

// Returns the part of this process's memory that the kernel filled with the environment; empty if that is not known.
std::span<char> find_first_environment() {
  const std::string status = system::read_small_file("/proc/self/stat");
  const std::size_t name_end = status.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(status.substr(name_end + 1));
  constexpr int before_start = 47;  // fields between the name, which is field 2, and field 50, env_start
  std::string skipped;
  for (int i = 0; i < before_start; ++i) fields >> skipped;
  std::uintptr_t start = 0, end = 0;
  fields >> start >> end;
  if (!fields || start == 0 || end < start) return {};
  return {reinterpret_cast<char*>(start), end - start};  // NOLINT(performance-no-int-to-ptr): the kernel's own number
}

// It is where it was in the process that forked this one.
std::span<char> first_environment() {
  static const std::span<char> found = find_first_environment();
  return found;
}

}  // namespace

struct Secret::Page {
  explicit Page(std::size_t size) : bytes(size) {
    void* const mapped = mmap(nullptr, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw SystemError("get memory for a key", errno);
    start = static_cast<unsigned char*>(mapped);
    if (madvise(mapped, bytes + 1, MADV_WIPEONFORK) != 0) {
      const int error = errno;
      munmap(mapped, bytes + 1);
      throw SystemError("keep a key from forked processes (MADV_WIPEONFORK)", error);
    }
    (void)madvise(mapped, bytes + 1, MADV_DONTDUMP);
    *start = present;
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() {
    explicit_bzero(start, bytes + 1);
    munmap(start, bytes + 1);
  }
  std::size_t bytes;
  unsigned char* start;
};

Secret::Secret(std::size_t bytes) : page_(std::make_shared<const Page>(bytes)) { MINIRAY_CHECK(bytes > 0); }

std::span<unsigned char> Secret::get() const {
  if (*page_->start != present)
    throw UsageError(
        "this process was forked from the one that had the key, and a forked process does not inherit it. Make the "
        "server or the connection after the fork");
  return {page_->start + 1, page_->bytes};
}

[[gnu::noinline]] void wipe_stack() {
  std::array<unsigned char, limits::wiped_stack_bytes> room;
  explicit_bzero(room.data(), room.size());
}

void prepare_to_wipe_environment() { (void)first_environment(); }

void wipe_from_environment(std::string_view name) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    overwrite_value(*entry, name, strlen(*entry));
  // The program may have set the variable again, which leaves the first value where the kernel has put it.
  const std::span<char> first = first_environment();
  for (std::size_t at = 0; at < first.size();) {
    const std::size_t size = strnlen(first.data() + at, first.size() - at);
    overwrite_value(first.data() + at, name, size);
    at += size + 1;
  }
  // A forked process must not wait for unsetenv()'s lock without need: a thread that is not here may have it.
  const std::string variable(name);
  if (std::getenv(variable.c_str()) != nullptr)
    (void)unsetenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe): see the header
}

}  // namespace miniray
