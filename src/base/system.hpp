// One wrapper for each system call that MiniRay makes. The wrappers set close-on-exec, return descriptors with an
// owner, and throw SystemError with the name of the operation. Calls that move bytes return "would block",
// "interrupted" and "closed" as values, because all three are expected.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace miniray::system {

std::pair<Fd, Fd> socket_pair();

struct Transfer {
  enum class Outcome { moved, would_block, interrupted, closed } outcome;
  std::size_t bytes = 0;
  int error_number = 0;  ///< the errno with which the stream closed; 0 if it closed in good order
};
enum class Block { no, yes };

/// Reads once. Appends descriptors that the peer sent to `descriptors`, unless that is null.
Transfer receive(int socket, std::span<std::byte> room, Block block, std::vector<Fd>* descriptors);
/// Writes once, without blocking. `descriptors` go with the first byte.
Transfer send(int socket, std::span<const iovec> pieces, std::span<const int> descriptors);

/// Reads or writes once, on any kind of descriptor. Whether it blocks depends on the descriptor.
Transfer read_some(int descriptor, std::span<std::byte> room);
Transfer write_some(int descriptor, std::string_view bytes);
/// Writes as much as a descriptor takes at once, and returns how many bytes that was. It does not wait, even if the
/// descriptor blocks, and does not change that for others who have the same descriptor. It never throws.
std::size_t write_without_waiting(int descriptor, std::string_view bytes) noexcept;
/// Sends or receives all bytes, and waits as long as necessary. Throws EndOfStream if the peer has closed.
void send_all(int socket, std::string_view bytes);
void receive_all(int socket, std::span<std::byte> room);
/// Returns the end to read from and the end to write to.
std::pair<Fd, Fd> make_pipe();
Fd duplicate(int descriptor);
/// Returns an invalid Fd if the process has no room for another descriptor.
Fd try_duplicate(int descriptor);
/// Changes this process's working folder. `called` is the name of the setting that has the path, for the error's text.
void change_folder(const std::string& path, const char* called);
/// Opens /dev/null for reading and writing.
Fd open_null();
/// Makes a folder that only its owner may use. It must not exist yet.
void make_private_folder(const char* path);
/// Makes `number` refer to the same file as `descriptor`, for this process and for the programs that it runs.
void replace_descriptor(int descriptor, int number);

void set_receive_timeout_ms(int socket, int timeout_ms);
/// Closes the sending direction: the peer sees the end of the stream after the last byte.
void shut_down_writing(int socket);
/// Closes both directions. Threads and processes that wait for the socket wake up, at both ends.
void shut_down(int socket);
void set_no_delay(int socket);
bool is_unix_socket(int socket);

/// Waits at most timeout_ms for one descriptor. Returns its events (POLLIN and so on), 0 after the time-out, -1 if a
/// signal interrupted the wait.
int poll_one(int descriptor, short events, int timeout_ms);
/// Waits for several descriptors. Returns false if a signal interrupted the wait.
bool poll_many(std::span<pollfd> descriptors, int timeout_ms);

enum class Interest : std::uint8_t { readable, writable, hangup };

/// A set of descriptors to wait for. It is level-triggered.
class Epoll {
 public:
  Epoll();
  void add(int descriptor, void* tag, Interest interest = Interest::readable);
  void remove(int descriptor);
  /// Appends the tags of the ready descriptors to `ready`. Returns false if a signal interrupted the wait.
  bool wait(std::vector<void*>& ready, int timeout_ms);

 private:
  Fd fd_;
};

/// Maps the memory behind a descriptor into this process, until the object is destroyed.
class Mapping {
 public:
  /// A private copy begins with the memory's content, and what is written to it stays in this process.
  enum class Kind : std::uint8_t { shared, private_copy };
  Mapping(int descriptor, std::size_t bytes, Kind kind = Kind::shared);
  Mapping(Mapping&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), child_copy_(std::exchange(other.child_copy_, nullptr)) {}
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { unmap(); }
  /// Ends the mapping early.
  void unmap();
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// Replaces the shared memory by a copy at the same address, which only this process has. Returns false, and changes
  /// nothing, if there is no memory for a copy.
  bool make_private();
  /// Around a fork: copies the memory in advance, so that the child has a copy at the same address, and the parent
  /// keeps the shared memory. If there is no memory for a copy, parent and child share.
  void copy_for_child();
  void drop_child_copy();
  void adopt_child_copy();

 private:
  bool replace_by(void* copy);

  std::span<std::byte> bytes_;
  void* child_copy_ = nullptr;
};

/// Returns anonymous shared memory that can neither grow nor shrink; an invalid Fd if the system has no room for it.
Fd sealed_memory(const char* name, std::size_t bytes);
/// Returns the size of memory from sealed_memory(); 0 for any other descriptor, whose memory could shrink while it is
/// read.
std::size_t sealed_memory_bytes(int descriptor);

/// Writes the bytes to the start of memory from sealed_memory().
void write_memory(int descriptor, std::span<const std::byte> bytes);

/// Returns a file in memory without a name, which a child writes and its parent reads.
Fd memory_file(const char* name);
std::size_t memory_file_bytes(int descriptor);
/// Empties the file; the next write goes to its start.
void clear_memory_file(int descriptor);
/// Returns the file's content from its start, at most bytes_max of it.
std::string read_memory_file(int descriptor, std::size_t bytes_max);

/// Tells the processor that this thread spins, reading the same memory again and again.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
/// Sleeps. A signal ends the sleep early.
void sleep_ns(std::int64_t duration);
/// Lets another process run on this core, if one is waiting for it.
void yield();
int usable_cpus();
/// Returns the number of the CPU that runs this thread; -1 if the system does not say.
int current_cpu();
std::vector<int> usable_cpu_list();
/// Restricts this thread, and the threads that it starts later, to those of the wanted CPUs that this process may use.
/// Returns these CPUs. If there are none, changes nothing.
std::vector<int> pin_to_cpus(const std::vector<int>& wanted);
int thread_count();
/// Returns the nanoseconds since 1970.
std::int64_t time_of_day_ns();
/// Returns the first 32 KiB of a file; empty if it cannot be read.
std::string read_small_file(const char* path);
/// Returns how many characters fit into a line of the terminal; 0 if that is not known, or if it is not a terminal.
std::size_t terminal_columns(int descriptor);
struct Room {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};
/// Returns the space of the file system that a path is on; zeros if there is no such path.
Room room_at(const char* path);

/// Allows this process as many descriptors as the system permits. Returns how many were allowed before.
std::uint64_t raise_descriptor_limit();
std::uint64_t descriptor_limit();
/// Returns how many bytes of memory may be locked; UINT64_MAX if there is no limit.
std::uint64_t locked_memory_limit();
void set_descriptor_limit(std::uint64_t limit);
/// Changes this process's environment. No other thread may read the environment meanwhile.
void set_environment(const std::string& name, const std::string& value);
void remove_from_environment(const std::string& name);

}  // namespace miniray::system
