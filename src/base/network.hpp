// Stream sockets between machines. The functions find hosts, listen, connect without waiting, and notice that a host is
// gone. Errors name the address and the cure.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace miniray::network {

/// The address that a stream socket listens on or connects to: a TCP address or the path of a Unix-domain socket. A
/// path that begins with '@' is a name outside the file system, which vanishes with the socket.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  /// Returns "10.0.0.1:10000", "[::1]:10000" or the path. A path's control characters are escaped, because another user
  /// may have chosen it.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string host() const;  ///< "10.0.0.1", "::1"
  /// Returns what limits count as one address: "10.0.0.1", also if it is written as IPv6; the network
  /// "2001:db8:1:2::/64" of an IPv6 address, because one machine may have all addresses of it; "this machine" for a
  /// Unix-domain socket.
  [[nodiscard]] std::string source() const;
};

/// Returns the addresses of a host, IPv4 first, or the address of a Unix-domain socket if `host` is a path. Throws
/// UnknownHost, or UsageError for a bad port or path.
std::vector<Address> resolve(const std::string& host, int port);
/// Returns whether `host` is the path of a Unix-domain socket.
[[nodiscard]] bool is_path(const std::string& host);

/// Returns a listening socket that does not block. Throws SystemError, which names the process that has the port if it
/// is taken.
Fd listen(const Address& address);
int local_port(int socket);
/// Returns the numeric address of this machine that a connected TCP socket uses; empty for another kind of socket.
std::string local_host(int socket);
/// Returns whether both ends of a connected socket are on this machine: it is a Unix-domain socket, or a TCP connection
/// between loopback addresses, or from an address of this machine to the same address.
[[nodiscard]] bool stays_on_machine(int socket);
/// Returns the process that listens on a port, such as "process 1234 (python train.py)", or "another process" if this
/// user may not see it.
std::string owner_of_port(int port);

struct Accepted {
  Fd socket;
  std::string peer;
  std::string source;  ///< Address::source() of the peer
};
/// Accepts the next connection. Returns nothing if none is waiting. Throws SystemError if there are no descriptors
/// left.
std::optional<Accepted> accept(int listener);

/// Returns nothing if the process at the other end of a connected Unix-domain socket belongs to this process's user or
/// to root, or if the socket is of another kind. Else returns the reason to refuse it, as words.
std::string other_user(int socket);

/// Begins to connect. The socket becomes writable when the attempt is over; connect_error() then returns its errno,
/// which is 0 if the socket is connected.
Fd begin_connect(const Address& address);
int connect_error(int socket);
/// Sockets from accept() and begin_connect() do not block. A channel needs one that blocks.
void set_blocking(int descriptor, bool blocking);

/// Makes an idle connection (one without unacknowledged bytes) end about `after_ms` after the peer's host is gone.
void notice_dead_peer(int socket, int after_ms);
/// Does the same for a connection that is not idle. Use it only if the peer always reads: it also ends the connection
/// to a live peer that reads nothing for `after_ms`.
void notice_deaf_peer(int socket, int after_ms);

std::string host_name();
/// Returns a text that is the same for all processes which reach each other at the loopback address: those with the
/// same kernel and network namespace.
std::string machine_id();
/// Returns the address of this machine to which the current ssh session is connected; empty outside ssh.
std::string ssh_arrived_at();
/// Returns whether a numeric address is a loopback address.
[[nodiscard]] bool is_loopback(const std::string& host);

struct Interface {
  std::string name, host;
  bool loopback;
};
/// Returns this machine's addresses on interfaces that are up, IPv4 first. It leaves out link-local addresses.
std::vector<Interface> interfaces();

}  // namespace miniray::network
