// Shows the limit of the system: processes that use only read and write, on one socket pair each. `peer_sockets
// WORKERS` reads orders from standard input ("calls 1000") and prints how many answers were right; `peer_sockets first`
// is the shortest program that prints 49, computed by another process.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr std::size_t small_bytes = 64;
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t at_once_bytes = 65536;  // one write may have this many bytes before the other side reads

enum Kind : std::uint64_t { small = 1, echo, count_only };

// Every message starts with this head. A small message has nothing else.
struct Header {
  std::uint64_t kind = small;
  std::uint64_t bytes = 0;
  char payload[small_bytes - 16] = {};
};
static_assert(sizeof(Header) == small_bytes);

void check(bool fine, const char* what) {
  if (!fine) {
    std::perror(what);
    std::exit(1);
  }
}

void write_all(int fd, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = write(fd, at, bytes);
    check(done > 0, "write");
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

bool read_all(int fd, void* data, std::size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = read(fd, at, bytes);
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

std::uint8_t expected_at(std::size_t position) { return static_cast<std::uint8_t>(position / page_bytes % 251); }

std::vector<std::uint8_t> pattern(std::size_t bytes) {
  std::vector<std::uint8_t> made(bytes);
  for (std::size_t at = 0; at < bytes; at += page_bytes) made[at] = expected_at(at);
  return made;
}

bool is_right(const std::vector<std::uint8_t>& got) {
  for (std::size_t at = 0; at < got.size(); at += page_bytes)
    if (got[at] != expected_at(at)) return false;
  return true;
}

// Reads as much as has arrived, and answers the small messages of one read in one write.
[[noreturn]] void serve(int fd) {
  std::vector<char> input(at_once_bytes);
  std::vector<std::uint8_t> large;
  std::size_t have = 0;
  for (;;) {
    const ssize_t got = read(fd, input.data() + have, input.size() - have);
    if (got <= 0) _exit(0);
    have += static_cast<std::size_t>(got);
    Header header;
    if (have >= small_bytes) std::memcpy(&header, input.data(), small_bytes);
    if (have >= small_bytes && header.kind != small) {
      large.resize(header.bytes);
      const std::size_t early =
          have - small_bytes;  // the sender waits for an answer, so all of it belongs to this message
      std::memcpy(large.data(), input.data() + small_bytes, early);
      if (!read_all(fd, large.data() + early, header.bytes - early)) _exit(0);
      have = 0;
      if (header.kind == echo) {
        write_all(fd, large.data(), large.size());
      } else {
        header.bytes = is_right(large) ? large.size() : 0;
        write_all(fd, &header, small_bytes);
      }
      continue;
    }
    const std::size_t whole = have / small_bytes * small_bytes;
    write_all(fd, input.data(), whole);
    std::memmove(input.data(), input.data() + whole, have - whole);
    have -= whole;
  }
}

struct Workers {
  std::vector<int> sockets;
  std::vector<pid_t> children;

  explicit Workers(int count) {
    for (int i = 0; i < count; ++i) {
      int ends[2];
      check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
      const pid_t child = fork();
      check(child >= 0, "fork");
      if (child == 0) {
        close(ends[0]);
        for (const int other : sockets) close(other);
        serve(ends[1]);
      }
      close(ends[1]);
      sockets.push_back(ends[0]);
      children.push_back(child);
    }
  }
  ~Workers() {
    for (const int fd : sockets) close(fd);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
};

std::size_t call(int fd, std::size_t count) {
  std::size_t right = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Header request{.bytes = i}, reply;
    write_all(fd, &request, small_bytes);
    check(read_all(fd, &reply, small_bytes), "read");
    right += reply.bytes == i;
  }
  return right;
}

std::size_t call_in_flight(int fd, std::size_t count) {
  std::size_t right = 0;
  std::vector<Header> requests(at_once_bytes / small_bytes), replies(requests.size());
  for (std::size_t done = 0; done < count;) {
    const std::size_t some = std::min(requests.size(), count - done);
    for (std::size_t i = 0; i < some; ++i) requests[i].bytes = done + i;
    write_all(fd, requests.data(), some * small_bytes);
    check(read_all(fd, replies.data(), some * small_bytes), "read");
    for (std::size_t i = 0; i < some; ++i) right += replies[i].bytes == done + i;
    done += some;
  }
  return right;
}

std::size_t echo_once(int fd, const std::vector<std::uint8_t>& data, std::vector<std::uint8_t>& back) {
  const Header header{.kind = echo, .bytes = data.size()};
  back.resize(data.size());
  write_all(fd, &header, small_bytes);
  write_all(fd, data.data(), data.size());
  check(read_all(fd, back.data(), back.size()), "read");
  return is_right(back) ? back.size() : 0;
}

void broadcast(const Workers& workers, const std::vector<std::uint8_t>& data) {
  const Header header{.kind = count_only, .bytes = data.size()};
  for (const int fd : workers.sockets) {
    write_all(fd, &header, small_bytes);
    write_all(fd, data.data(), data.size());
  }
  for (const int fd : workers.sockets) {
    Header reply;
    check(read_all(fd, &reply, small_bytes), "read");
    std::printf("%llu ", static_cast<unsigned long long>(reply.bytes));
  }
  std::printf("\n");
}

void obey(const Workers& workers) {
  std::string order;
  std::size_t number = 0;
  std::vector<std::uint8_t> data, back;
  while (std::cin >> order >> number) {
    std::size_t right = 0;
    if ((order == "echo" || order == "broadcast") && data.size() != number) data = pattern(number);
    if (order == "broadcast") {
      broadcast(workers, data);
    } else {
      if (order == "calls") right = call(workers.sockets[0], number);
      if (order == "flight") right = call_in_flight(workers.sockets[0], number);
      if (order == "echo") right = echo_once(workers.sockets[0], data, back);
      if (order == "each")
        for (const int fd : workers.sockets) right += call(fd, 1);
      std::printf("%zu\n", right);
    }
    std::fflush(stdout);
  }
}

int first() {
  int ends[2];
  check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  int x = 7;
  if (fork() == 0) {
    check(read_all(ends[1], &x, sizeof x), "read");
    x *= x;
    write_all(ends[1], &x, sizeof x);
    _exit(0);
  }
  write_all(ends[0], &x, sizeof x);
  check(read_all(ends[0], &x, sizeof x), "read");
  std::printf("%d\n", x);
  std::fflush(stdout);
  std::getchar();
  wait(nullptr);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: peer_sockets WORKERS | first\n");
    return 2;
  }
  if (std::string(argv[1]) == "first") return first();
  const Workers workers(std::stoi(argv[1]));
  obey(workers);
  return 0;
}
