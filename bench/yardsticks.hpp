// The yardsticks of MiniRay: raw system calls, with blocking sockets, fork and nothing else.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

namespace bench {

using Ends = std::pair<int, int>;

inline Ends unix_ends() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) throw std::runtime_error("socketpair");
  return {ends[0], ends[1]};
}

inline void write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t wrote = write(fd, data, size);
    if (wrote <= 0) _exit(0);
    data += wrote;
    size -= static_cast<std::size_t>(wrote);
  }
}

inline bool read_all(int fd, char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t got = read(fd, data, size);
    if (got <= 0) return false;
    data += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

/// A forked process that sends every message of `bytes` bytes back.
class RawEcho {
 public:
  RawEcho(Ends ends, std::size_t bytes) : fd_(ends.first), buffer_(bytes, 'x') {
    child_ = fork();
    if (child_ == 0) {
      close(ends.first);
      while (read_all(ends.second, buffer_.data(), bytes)) write_all(ends.second, buffer_.data(), bytes);
      _exit(0);
    }
    close(ends.second);
  }
  RawEcho(const RawEcho&) = delete;
  RawEcho& operator=(const RawEcho&) = delete;
  ~RawEcho() {
    close(fd_);
    waitpid(child_, nullptr, 0);
  }
  void round_trip() {
    write_all(fd_, buffer_.data(), buffer_.size());
    if (!read_all(fd_, buffer_.data(), buffer_.size())) throw std::runtime_error("the echo is gone");
  }

 private:
  int fd_;
  pid_t child_;
  std::vector<char> buffer_;
};

/// A forked process that reads as fast as it can, and answers each time it has read a fixed number of bytes.
class RawSink {
 public:
  explicit RawSink(std::size_t messages, std::size_t bytes) : message_(bytes, 'x') {
    const Ends ends = unix_ends();
    fd_ = ends.first;
    child_ = fork();
    if (child_ == 0) {
      close(ends.first);
      std::vector<char> room(65536);
      for (;;) {
        std::size_t left = messages * bytes;
        while (left > 0) {
          const ssize_t got = read(ends.second, room.data(), room.size());
          if (got <= 0) _exit(0);
          left -= static_cast<std::size_t>(got);
        }
        write_all(ends.second, "d", 1);
      }
    }
    close(ends.second);
  }
  RawSink(const RawSink&) = delete;
  RawSink& operator=(const RawSink&) = delete;
  ~RawSink() {
    close(fd_);
    waitpid(child_, nullptr, 0);
  }
  void send() { write_all(fd_, message_.data(), message_.size()); }
  void wait() {
    char done = 0;
    if (!read_all(fd_, &done, 1)) throw std::runtime_error("the sink is gone");
  }

 private:
  int fd_ = -1;
  pid_t child_ = -1;
  std::vector<char> message_;
};

/// Starts a child with only fork and a socket pair, and waits for its first answer.
inline void bare_start() {
  const Ends ends = unix_ends();
  const pid_t child = fork();
  char byte = 'x';
  if (child == 0) {
    if (read(ends.second, &byte, 1) != 1 || write(ends.second, &byte, 1) != 1) _exit(1);
    _exit(0);
  }
  write_all(ends.first, &byte, 1);
  if (!read_all(ends.first, &byte, 1)) throw std::runtime_error("no answer");
  close(ends.first);
  close(ends.second);
  waitpid(child, nullptr, 0);
}

}  // namespace bench
