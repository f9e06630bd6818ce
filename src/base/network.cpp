#include "base/network.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>

#include "base/shown_text.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray::network {
namespace {

Address unix_address(const std::string& path) {
  sockaddr_un name{};
  if (path.size() >= sizeof(name.sun_path))
    throw UsageError("the path of the socket is too long: " + path + ". It may have " +
                     std::to_string(sizeof(name.sun_path) - 1) + " characters");
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  Address address;
  address.size = sizeof(name);
  if (path.starts_with('@')) {  // an abstract name: it begins with a null character, and its length counts
    name.sun_path[0] = '\0';
    address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  std::memcpy(&address.storage, &name, sizeof(name));
  return address;
}

Address name_of_socket(int socket, int (*get)(int, sockaddr*, socklen_t*)) {
  Address address;
  address.size = sizeof(address.storage);
  if (get(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) address.size = 0;
  return address;
}

int port_of(const Address& address) {
  if (address.storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  if (address.storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  return 0;
}

void set_option(int socket, int level, int name, int value, const char* what) {
  if (setsockopt(socket, level, name, &value, sizeof(value)) != 0) throw SystemError(what, errno);
}

// Returns the inode of the socket that listens on a port, from the kernel's tables; empty if there is none.
std::string listening_inode(int port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(system::read_small_file(table));
    std::string line;
    while (std::getline(lines, line)) {
      unsigned local_port = 0, state = 0;
      char inode[32] = {};
      const int found =
          std::sscanf(line.c_str(), "%*s %*[0-9A-F]:%x %*s %x %*s %*s %*s %*s %*s %31s", &local_port, &state, inode);
      constexpr unsigned listening = 0x0A;
      if (found == 3 && state == listening && local_port == static_cast<unsigned>(port)) return inode;
    }
  }
  return {};
}

}  // namespace

std::string owner_of_port(int port) {
  // A process that has the socket has a descriptor which links to its inode.
  const std::string wanted = "socket:[" + listening_inode(port) + "]";
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), &closedir);
  while (const dirent* process = processes ? readdir(processes.get()) : nullptr) {
    if (std::strspn(process->d_name, "0123456789") != std::strlen(process->d_name)) continue;
    const std::string folder = "/proc/" + std::string(process->d_name);
    const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir((folder + "/fd").c_str()), &closedir);
    while (const dirent* descriptor = descriptors ? readdir(descriptors.get()) : nullptr) {
      std::array<char, 64> target{};
      const ssize_t size = readlink((folder + "/fd/" + descriptor->d_name).c_str(), target.data(), target.size() - 1);
      if (size <= 0 || wanted != target.data()) continue;
      std::string command = system::read_small_file((folder + "/cmdline").c_str());
      std::ranges::replace_if(command, [](unsigned char c) { return c < ' '; }, ' ');
      while (command.ends_with(' ')) command.pop_back();
      return "process " + std::string(process->d_name) + " (" + command.substr(0, 200) + ")";
    }
  }
  return "another process";
}

bool is_path(const std::string& host) { return host.starts_with('@') || host.find('/') != std::string::npos; }

std::string other_user(int socket) {
  if (!system::is_unix_socket(socket)) return {};
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "its user is not known";
  // Users that have no number in this user namespace all appear as the one in /proc/sys/kernel/overflowuid. If this
  // process has that number too, it cannot tell them from its own user, and only the key decides.
  if (peer.uid == 0 || peer.uid == geteuid()) return {};
  return "its process belongs to the user with the number " + std::to_string(peer.uid) + ", and this process to " +
         std::to_string(geteuid()) + ". Run both as the same user";
}

std::string Address::text() const {
  if (storage.ss_family == AF_UNIX) {
    const auto* name = reinterpret_cast<const sockaddr_un*>(&storage);
    if (size <= sizeof(sa_family_t)) return "a process of this machine";
    if (name->sun_path[0] != '\0')
      return shown({name->sun_path, strnlen(name->sun_path, size - offsetof(sockaddr_un, sun_path))}, Colours::escape);
    return "@" + shown({name->sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1}, Colours::escape);
  }
  std::array<char, NI_MAXHOST> host{};
  if (size == 0 || getnameinfo(get(), size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "an unknown address";
  const std::string port = ":" + std::to_string(port_of(*this));
  return storage.ss_family == AF_INET6 ? "[" + std::string(host.data()) + "]" + port : host.data() + port;
}

std::string Address::host() const {
  std::array<char, NI_MAXHOST> host{};
  if (size == 0 || getnameinfo(get(), size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return host.data();
}

std::string Address::source() const {
  if (storage.ss_family == AF_UNIX) return "this machine";
  if (storage.ss_family != AF_INET6) return host();
  sockaddr_in6 name{};
  std::memcpy(&name, &storage, sizeof(name));
  in6_addr& number = name.sin6_addr;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&number))
    return inet_ntop(AF_INET, &number.s6_addr[12], text.data(), text.size()) != nullptr ? text.data() : std::string();
  if (IN6_IS_ADDR_LOOPBACK(&number)) return host();
  std::fill(std::begin(number.s6_addr) + 8, std::end(number.s6_addr), 0);
  return inet_ntop(AF_INET6, &number, text.data(), text.size()) != nullptr ? text.data() + std::string("/64")
                                                                           : std::string();
}

std::vector<Address> resolve(const std::string& host, int port) {
  if (is_path(host)) return {unix_address(host)};
  if (port < 0 || port > 65535)
    throw UsageError("the port is " + std::to_string(port) + "; give a number from 0 to 65535");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host.empty() ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    throw UnknownHost("cannot find the host \"" + host + "\": " + gai_strerror(error) +
                      ". Check the name: `getent hosts " + host + "` shows what this machine knows about it");
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &freeaddrinfo);
  std::vector<Address> addresses;
  // "localhost" is both ::1 and 127.0.0.1. Servers mostly listen on the latter, so IPv4 comes first.
  for (const bool version_4 : {true, false}) {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      if ((one->ai_family == AF_INET) != version_4) continue;
      Address& address = addresses.emplace_back();
      std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
      address.size = one->ai_addrlen;
    }
  }
  return addresses;
}

Fd listen(const Address& address) {
  const bool is_unix = address.storage.ss_family == AF_UNIX;
  const int number = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (number < 0) throw SystemError("make a socket", errno);
  Fd listener(number);
  // Otherwise a server could not listen again until the old connections of its port have timed out.
  if (!is_unix) set_option(number, SOL_SOCKET, SO_REUSEADDR, 1, "set SO_REUSEADDR");
  if (bind(number, address.get(), address.size) != 0 || ::listen(number, limits::accept_backlog) != 0) {
    if (errno == EADDRINUSE && !is_unix)
      throw SystemError("listen on " + address.text() + ", because " + owner_of_port(port_of(address)) +
                            " listens there. End that process, or choose another port (0: any free port)",
                        EADDRINUSE);
    throw SystemError("listen on " + address.text(), errno);
  }
  return listener;
}

int local_port(int socket) { return port_of(name_of_socket(socket, getsockname)); }
std::string local_host(int socket) {
  const Address address = name_of_socket(socket, getsockname);
  return address.storage.ss_family == AF_UNIX ? std::string() : address.host();
}

bool stays_on_machine(int socket) {
  const Address here = name_of_socket(socket, getsockname), there = name_of_socket(socket, getpeername);
  if (here.storage.ss_family == AF_UNIX) return true;
  return here.host() == there.host() || (is_loopback(here.host()) && is_loopback(there.host()));
}

std::optional<Accepted> accept(int listener) {
  Address address;
  address.size = sizeof(address.storage);
  const int number =
      accept4(listener, reinterpret_cast<sockaddr*>(&address.storage), &address.size, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (number >= 0) return Accepted{Fd(number), address.text(), address.source()};
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    throw SystemError("accept a connection (raise the limit on open files, `ulimit -n`)", errno);
  return std::nullopt;  // no connection waits, or the one that did has closed again
}

Fd begin_connect(const Address& address) {
  const int number = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (number < 0) throw SystemError("make a socket (is the limit on open files, `ulimit -n`, reached?)", errno);
  Fd connecting(number);
  if (connect(number, address.get(), address.size) != 0 && errno != EINPROGRESS)
    throw SystemError("connect to " + address.text(), errno);
  return connecting;
}

int connect_error(int socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

void set_blocking(int descriptor, bool blocking) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || fcntl(descriptor, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) != 0)
    throw SystemError("set whether a descriptor blocks", errno);
}

// The kernel probes an idle connection: first after one step, then `probes` times, and closes it if no probe is
// answered.
void notice_dead_peer(int socket, int after_ms) {
  if (system::is_unix_socket(socket)) return;  // both ends are on this machine
  constexpr int probes = limits::keepalive_probes;
  constexpr int step_s_max = 32767;  // the kernel's limit
  const int step_s = std::clamp(after_ms / 1000 / (probes + 1), 1, step_s_max);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1, "set SO_KEEPALIVE");
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, step_s, "set TCP_KEEPIDLE");
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, step_s, "set TCP_KEEPINTVL");
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, probes, "set TCP_KEEPCNT");
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0, "set TCP_USER_TIMEOUT");
}

void notice_deaf_peer(int socket, int after_ms) {
  if (system::is_unix_socket(socket)) return;
  notice_dead_peer(socket, after_ms);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, after_ms, "set TCP_USER_TIMEOUT");
}

std::string ssh_arrived_at() {
  const char* connection = std::getenv("SSH_CONNECTION");  // "client port server port"
  std::istringstream words(connection != nullptr ? connection : "");
  std::string client, client_port, server;
  words >> client >> client_port >> server;
  return server;
}

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1" || host.starts_with("::ffff:127.");
}

std::vector<Interface> interfaces() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) throw SystemError("list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, &freeifaddrs);
  std::vector<Interface> all;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || (one->ifa_flags & IFF_UP) == 0) continue;
      Address address;
      address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&address.storage, one->ifa_addr, address.size);
      const std::string host = address.host();
      if (!host.empty() && host.find('%') == std::string::npos)  // "%eth0" marks a link-local address
        all.push_back({one->ifa_name, host, (one->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return all;
}

std::string machine_id() {
  std::array<char, 64> name_space{};
  const ssize_t size = readlink("/proc/self/ns/net", name_space.data(), name_space.size() - 1);
  return system::read_small_file("/proc/sys/kernel/random/boot_id") + (size > 0 ? name_space.data() : "");
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

}  // namespace miniray::network
