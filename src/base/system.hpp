// The system calls that MiniRay makes, one wrapper each: EINTR, close-on-exec, owning descriptors, and errors that
// say what was tried. Calls that move bytes report "would block" and "closed" as values, since both are expected.
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
  int error_number = 0;  ///< why it is closed, if not in good order
};
enum class Block { no, yes };

/// Reads once. Descriptors that came along are appended to `descriptors` if it is given.
Transfer receive(int socket, std::span<std::byte> room, Block block, std::vector<Fd>* descriptors);
/// Writes once, without blocking. `descriptors` go along with the first byte.
Transfer send(int socket, std::span<const iovec> pieces, std::span<const int> descriptors);

/// The same for pipes and anything else, without blocking if the descriptor says so.
Transfer read_some(int descriptor, std::span<std::byte> room);
Transfer write_some(int descriptor, std::string_view bytes);
/// All of it, waiting as long as it takes. EndOfStream if the peer has gone.
void send_all(int socket, std::string_view bytes);
void receive_all(int socket, std::span<std::byte> room);
/// One end to read and one to write.
std::pair<Fd, Fd> make_pipe();
Fd duplicate(int descriptor);
/// `called` is the setting that asked for it, for the error's text.
void change_folder(const std::string& path, const char* called);
/// Nothing to read, and whatever is written vanishes.
Fd open_null();
/// For its owner alone. It must not exist yet.
void make_private_folder(const char* path);
/// Makes `number` the same as `descriptor`, for this process and for the programs that it runs.
void replace_descriptor(int descriptor, int number);

void set_receive_timeout_ms(int socket, int timeout_ms);
/// The peer sees the end of the stream after what was sent.
void shut_down_writing(int socket);
/// Both ways; whoever waits for the socket wakes, here and at the other end.
void shut_down(int socket);
void set_no_delay(int socket);
bool is_unix_socket(int socket);

/// Waits at most timeout_ms. Returns what happened: 0 on time-out, POLLIN and so on; -1 if a signal came.
int poll_one(int descriptor, short events, int timeout_ms);
/// The same for several; false if a signal came.
bool poll_many(std::span<pollfd> descriptors, int timeout_ms);

enum class Interest : std::uint8_t { readable, writable, hangup };

/// Interest is level-triggered.
class Epoll {
 public:
  Epoll();
  void add(int descriptor, void* tag, Interest interest = Interest::readable);
  void remove(int descriptor);
  /// Appends the tags of what is ready; returns false if a signal came.
  bool wait(std::vector<void*>& ready, int timeout_ms);

 private:
  Fd fd_;
};

/// A mapped stretch of memory shared through a descriptor.
class Mapping {
 public:
  /// A private copy sees what is there, and keeps what is written to it for itself.
  enum class Kind : std::uint8_t { shared, private_copy };
  Mapping(int descriptor, std::size_t bytes, Kind kind = Kind::shared);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// Puts a copy in its place, at the same address, that is shared with nobody. False if there is no memory for it.
  bool make_private();

 private:
  std::span<std::byte> bytes_;
};

/// Anonymous shared memory that can neither grow nor shrink. An invalid Fd when the system has no room.
Fd sealed_memory(const char* name, std::size_t bytes);
/// The size of memory made by sealed_memory; 0 if it is not sealed, so that it could shrink under its reader.
std::size_t sealed_memory_bytes(int descriptor);

/// Fills such memory from its start.
void write_memory(int descriptor, std::span<const std::byte> bytes);

/// A file in memory without a name, to be written by a child and read by its parent.
Fd memory_file(const char* name);
std::size_t memory_file_bytes(int descriptor);
/// What is written next goes to its start again.
void clear_memory_file(int descriptor);
/// From its start, whatever was written, up to a limit.
std::string read_memory_file(int descriptor, std::size_t bytes_max);

/// A moment's rest for a processor that looks at the same memory again and again.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
/// A signal ends it early.
void sleep_ns(std::int64_t duration);
/// Lets another process run here, if one is waiting for this core.
void yield();
int usable_cpus();
std::vector<int> usable_cpu_list();
/// This thread, and those that it starts, run on those of the CPUs that are usable; returns which. If none is, nothing
/// changes.
std::vector<int> pin_to_cpus(const std::vector<int>& wanted);
int thread_count();
/// Nanoseconds since 1970.
std::int64_t time_of_day_ns();
std::string read_small_file(const char* path);
/// How many characters fit in a line of the terminal; 0 if it is not known, or the descriptor is not a terminal.
std::size_t terminal_columns(int descriptor);
struct Room {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};
/// Of the file system that a path is on; nothing if there is no such path.
Room room_at(const char* path);

/// As many descriptors as the system allows; returns how many were allowed before.
std::uint64_t raise_descriptor_limit();
std::uint64_t descriptor_limit();
/// Of memory that may be locked, in bytes; UINT64_MAX: no limit.
std::uint64_t locked_memory_limit();
void set_descriptor_limit(std::uint64_t limit);
/// Changes this process's environment. Not while other threads read it.
void set_environment(const std::string& name, const std::string& value);
void remove_from_environment(const std::string& name);

}  // namespace miniray::system
