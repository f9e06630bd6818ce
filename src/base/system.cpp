#include "base/system.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.hpp"
#include "base/free_memory.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray::system {
namespace {

int require(int result, const char* operation) {
  if (result < 0) throw SystemError(operation, errno);
  return result;
}

// Turns the result of a call that moves bytes into an outcome. An unexpected error is {moved, 0}: the caller, which
// knows the operation, throws.
Transfer transfer_outcome(ssize_t result) {
  using enum Transfer::Outcome;
  if (result > 0) return {moved, static_cast<std::size_t>(result)};
  if (result == 0) return {closed};
  switch (errno) {
    case EAGAIN:
      return {would_block};
    case EINTR:
      return {interrupted};
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:  // from here on: the peer's host is gone, or cannot be reached
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ECONNABORTED:
      return {closed, 0, errno};
    default:
      return {moved, 0};
  }
}

// Gives every received descriptor an owner, so that none leaks, whatever the caller does with them.
void take_descriptors(msghdr& message, std::vector<Fd>& descriptors) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(number);
    }
  }
}

ssize_t send_pieces(int socket, std::span<const iovec> pieces, std::span<const int> descriptors) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(limits::descriptors_per_message_max * sizeof(int))> control;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = std::min<std::size_t>(pieces.size(), IOV_MAX);
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

std::pair<Fd, Fd> socket_pair() {
  std::array<int, 2> ends{};
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "make a socket pair");
  return {Fd(ends[0]), Fd(ends[1])};
}

Transfer receive(int socket, std::span<std::byte> room, Block block, std::vector<Fd>* descriptors) {
  MINIRAY_CHECK(!room.empty());
  const int flags = MSG_CMSG_CLOEXEC | (block == Block::yes ? 0 : MSG_DONTWAIT);
  ssize_t result = 0;
  if (descriptors == nullptr) {
    result = recv(socket, room.data(), room.size(), flags);
  } else {
    iovec piece{room.data(), room.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(limits::descriptors_per_message_max * sizeof(int))> control;
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    result = recvmsg(socket, &message, flags);
    if (result >= 0 && message.msg_controllen > 0) take_descriptors(message, *descriptors);
    if (result >= 0 && (message.msg_flags & MSG_CTRUNC) != 0)  // the kernel could not install all descriptors
      throw SystemError("receive shared memory from the peer (raise the limit on open files, `ulimit -n`)", EMFILE);
  }
  const Transfer transfer = transfer_outcome(result);
  if (result < 0 && transfer.outcome == Transfer::Outcome::moved) throw SystemError("receive from a socket", errno);
  return transfer;
}

Transfer send(int socket, std::span<const iovec> pieces, std::span<const int> descriptors) {
  MINIRAY_CHECK(!pieces.empty() && descriptors.size() <= limits::descriptors_per_message_max, descriptors.size());
  ssize_t result = 0;
  if (pieces.size() == 1 && descriptors.empty()) {  // send() is cheaper than sendmsg()
    result = ::send(socket, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    result = send_pieces(socket, pieces, descriptors);
  }
  const Transfer transfer = transfer_outcome(result);
  if (result < 0 && transfer.outcome == Transfer::Outcome::moved) throw SystemError("send to a socket", errno);
  return transfer;
}

Transfer read_some(int descriptor, std::span<std::byte> room) {
  const ssize_t result = read(descriptor, room.data(), room.size());
  const Transfer transfer = transfer_outcome(result);
  if (result < 0 && transfer.outcome == Transfer::Outcome::moved) throw SystemError("read", errno);
  return transfer;
}

Transfer write_some(int descriptor, std::string_view bytes) {
  const ssize_t result = write(descriptor, bytes.data(), bytes.size());
  const Transfer transfer = transfer_outcome(result);
  if (result < 0 && transfer.outcome == Transfer::Outcome::moved) throw SystemError("write", errno);
  return transfer;
}

// A pipe or a terminal is opened once more, because O_NONBLOCK belongs to what all holders of a descriptor share.
std::size_t write_without_waiting(int descriptor, std::string_view bytes) noexcept {
  struct stat kind{};
  if (fstat(descriptor, &kind) != 0) return 0;
  ssize_t written = 0;
  if (S_ISSOCK(kind.st_mode)) {
    written = ::send(descriptor, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (S_ISFIFO(kind.st_mode) || S_ISCHR(kind.st_mode)) {
    pollfd look{descriptor, POLLOUT, 0};
    if (::poll(&look, 1, 0) != 1 || look.revents != POLLOUT) return 0;  // full, or a pipe that has no reader any more
    std::array<char, 32> path{};
    std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", descriptor);
    const Fd own(open(path.data(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    // Where that is not allowed, a pipe that polls as writable takes PIPE_BUF bytes.
    written = own.valid() ? write(own.get(), bytes.data(), bytes.size())
                          : write(descriptor, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
  } else {
    written = write(descriptor, bytes.data(), bytes.size());
  }
  return written > 0 ? static_cast<std::size_t>(written) : 0;
}

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    const Transfer transfer = send(socket, std::span(&piece, 1), {});
    if (transfer.outcome == Transfer::Outcome::closed) throw EndOfStream("the peer has closed the connection");
    if (transfer.outcome == Transfer::Outcome::would_block) (void)poll_one(socket, POLLOUT, -1);
    bytes.remove_prefix(transfer.bytes);
  }
}

void receive_all(int socket, std::span<std::byte> room) {
  while (!room.empty()) {
    const Transfer transfer = receive(socket, room, Block::yes, nullptr);
    if (transfer.outcome == Transfer::Outcome::closed) throw EndOfStream("the peer has closed the connection");
    room = room.subspan(transfer.bytes);
  }
}

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{};
  require(pipe2(ends.data(), O_CLOEXEC), "make a pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

Fd duplicate(int descriptor) { return Fd(require(fcntl(descriptor, F_DUPFD_CLOEXEC, 0), "duplicate a descriptor")); }

Fd try_duplicate(int descriptor) {
  const int number = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return number < 0 ? Fd() : Fd(number);
}

void change_folder(const std::string& path, const char* called) {
  if (chdir(path.c_str()) != 0) throw SystemError("change to the folder " + path + " (" + called + ")", errno);
}

Fd open_null() { return Fd(require(open("/dev/null", O_RDWR | O_CLOEXEC), "open /dev/null")); }

void make_private_folder(const char* path) { require(mkdir(path, 0700), "make a private folder"); }

void replace_descriptor(int descriptor, int number) { require(dup2(descriptor, number), "redirect a descriptor"); }

void set_receive_timeout_ms(int socket, int timeout_ms) {
  const timeval timeout{timeout_ms / 1000, (timeout_ms % 1000) * 1000L};
  require(setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)), "set a socket's time-out");
}

void shut_down_writing(int socket) { shutdown(socket, SHUT_WR); }

void shut_down(int socket) { shutdown(socket, SHUT_RDWR); }

void set_no_delay(int socket) {
  const int on = 1;
  require(setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "set TCP_NODELAY");
}

bool is_unix_socket(int socket) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  require(getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size), "ask a descriptor which kind of socket it is");
  return domain == AF_UNIX;
}

int poll_one(int descriptor, short events, int timeout_ms) {
  pollfd one{descriptor, events, 0};
  return poll_many(std::span(&one, 1), timeout_ms) ? one.revents : -1;
}

bool poll_many(std::span<pollfd> descriptors, int timeout_ms) {
  const int count = poll(descriptors.data(), descriptors.size(), timeout_ms);
  if (count < 0 && errno == EINTR) return false;
  require(count, "wait for descriptors");
  return true;
}

Epoll::Epoll() : fd_(require(epoll_create1(EPOLL_CLOEXEC), "make an epoll set")) {}

void Epoll::add(int descriptor, void* tag, Interest interest) {
  epoll_event event{};
  event.events = interest == Interest::readable ? EPOLLIN : interest == Interest::writable ? EPOLLOUT : EPOLLRDHUP;
  event.data.ptr = tag;
  if (epoll_ctl(fd_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return;
  if (errno != EEXIST) throw SystemError("watch a descriptor", errno);  // EEXIST: add() replaces tag and interest
  require(epoll_ctl(fd_.get(), EPOLL_CTL_MOD, descriptor, &event), "watch a descriptor");
}

void Epoll::remove(int descriptor) { epoll_ctl(fd_.get(), EPOLL_CTL_DEL, descriptor, nullptr); }

bool Epoll::wait(std::vector<void*>& ready, int timeout_ms) {
  std::array<epoll_event, 256> events;
  const int count = epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  if (count < 0 && errno == EINTR) return false;
  require(count, "wait for descriptors");
  for (int i = 0; i < count; ++i) ready.push_back(events[static_cast<std::size_t>(i)].data.ptr);
  return true;
}

Mapping::Mapping(int descriptor, std::size_t bytes, Kind kind) {
  const int flags = kind == Kind::shared ? MAP_SHARED | MAP_POPULATE : MAP_PRIVATE;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (at == MAP_FAILED) throw SystemError("map shared memory", errno);
  bytes_ = {static_cast<std::byte*>(at), bytes};
}

// mremap replaces the old mapping in one step, so that other threads always find memory at this address.
bool Mapping::replace_by(void* copy) {
  if (mremap(copy, bytes_.size(), bytes_.size(), MREMAP_MAYMOVE | MREMAP_FIXED, bytes_.data()) != MAP_FAILED)
    return true;
  munmap(copy, bytes_.size());
  return false;
}

bool Mapping::make_private() {
  copy_for_child();
  void* const copy = std::exchange(child_copy_, nullptr);
  return copy != nullptr && replace_by(copy);
}

void Mapping::copy_for_child() {
  MINIRAY_CHECK(child_copy_ == nullptr);
  void* copy = mmap(nullptr, bytes_.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;
  std::memcpy(copy, bytes_.data(), bytes_.size());
  child_copy_ = copy;
}

void Mapping::drop_child_copy() {
  if (void* const copy = std::exchange(child_copy_, nullptr)) munmap(copy, bytes_.size());
}

void Mapping::adopt_child_copy() {
  if (void* const copy = std::exchange(child_copy_, nullptr)) (void)replace_by(copy);
}

void Mapping::unmap() {
  drop_child_copy();
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

Fd sealed_memory(const char* name, std::size_t bytes) {
  // The kernel would try, and kill other processes for want of memory.
  if (!has_room(bytes)) return {};
  const int number = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (number < 0) return {};
  Fd memory(number);
  // All pages are allocated now: here a lack of room is a result, later it would be a SIGBUS.
  if (posix_fallocate(number, 0, static_cast<off_t>(bytes)) != 0) return {};
  require(fcntl(number, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), "seal shared memory");
  return memory;
}

std::size_t sealed_memory_bytes(int descriptor) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  struct stat status{};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(descriptor, &status) != 0) return 0;
  return static_cast<std::size_t>(status.st_size);
}

void write_memory(int descriptor, std::span<const std::byte> bytes) {
  off_t at = 0;
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor, bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    require(written > 0 ? 0 : -1, "fill shared memory");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at += written;
  }
}

Fd memory_file(const char* name) { return Fd(require(memfd_create(name, MFD_CLOEXEC), "make a file in memory")); }

std::size_t memory_file_bytes(int descriptor) {
  struct stat found{};
  return fstat(descriptor, &found) == 0 ? static_cast<std::size_t>(found.st_size) : 0;
}

void clear_memory_file(int descriptor) {
  require(ftruncate(descriptor, 0), "empty a file in memory");
  require(static_cast<int>(lseek(descriptor, 0, SEEK_SET)), "go to the start of a file in memory");
}

std::string read_memory_file(int descriptor, std::size_t bytes_max) {
  std::string text(bytes_max, '\0');
  const ssize_t size = pread(descriptor, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

void sleep_ns(std::int64_t duration) {
  constexpr std::int64_t second = 1'000'000'000;
  const timespec time{duration / second, duration % second};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
}

void yield() { sched_yield(); }

int current_cpu() { return sched_getcpu(); }

int usable_cpus() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

std::vector<int> usable_cpu_list() {
  cpu_set_t cpus;
  std::vector<int> list;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &cpus)) list.push_back(cpu);
  return list;
}

std::vector<int> pin_to_cpus(const std::vector<int>& wanted) {
  const std::vector<int> usable = usable_cpu_list();
  std::vector<int> both;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : wanted) {
    if (std::ranges::find(usable, cpu) == usable.end()) continue;
    CPU_SET(cpu, &cpus);
    both.push_back(cpu);
  }
  if (both.empty() || sched_setaffinity(0, sizeof(cpus), &cpus) != 0) return {};
  return both;
}

std::int64_t time_of_day_ns() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// A folder has a link from each of its subfolders, one per thread, besides its own two.
int thread_count() {
  struct stat tasks{};
  return stat("/proc/self/task", &tasks) == 0 ? static_cast<int>(tasks.st_nlink) - 2 : 1;
}

std::string read_small_file(const char* path) {
  const int number = open(path, O_RDONLY | O_CLOEXEC);
  if (number < 0) return {};
  const Fd file(number);
  std::string text(32768, '\0');
  const ssize_t size = read(number, text.data(), text.size());
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

std::size_t terminal_columns(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

Room room_at(const char* path) {
  struct statvfs found{};
  if (statvfs(path, &found) != 0) return {};
  return {found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail};
}

std::uint64_t locked_memory_limit() {
  rlimit limit{};
  require(getrlimit(RLIMIT_MEMLOCK, &limit), "ask for the limit on locked memory");
  return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

std::uint64_t raise_descriptor_limit() {
  rlimit limit{};
  require(getrlimit(RLIMIT_NOFILE, &limit), "ask for the limit on open files");
  set_descriptor_limit(limit.rlim_max);
  return limit.rlim_cur;
}

std::uint64_t descriptor_limit() {
  rlimit limit{};
  require(getrlimit(RLIMIT_NOFILE, &limit), "ask for the limit on open files");
  return limit.rlim_cur;
}

void set_descriptor_limit(std::uint64_t number) {
  rlimit limit{};
  require(getrlimit(RLIMIT_NOFILE, &limit), "ask for the limit on open files");
  limit.rlim_cur = number;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void set_environment(const std::string& name, const std::string& value) {
  require(setenv(name.c_str(), value.c_str(), 1), "set an environment variable");  // NOLINT(concurrency-mt-unsafe)
}

void remove_from_environment(const std::string& name) {
  require(unsetenv(name.c_str()), "remove an environment variable");  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace miniray::system
