// Stream sockets between machines: finding hosts, listening, connecting without waiting, and noticing hosts that are
// gone. Errors name the address and say what to do.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace miniray::network {

/// Where a stream socket listens or connects to: a TCP address or the path of a Unix-domain socket; with a '@' before
/// it, a name that is in no folder, and goes with the socket.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] std::string text() const;  ///< "10.0.0.1:10000", "[::1]:10000" or the path
  [[nodiscard]] std::string host() const;  ///< "10.0.0.1", "::1"
};

/// The addresses of a host, or of a Unix-domain socket if the "host" is a path. Throws UnknownHost.
std::vector<Address> resolve(const std::string& host, int port);
[[nodiscard]] bool is_path(const std::string& host);

/// Listens, without blocking on accept. Says who has the port if it is taken.
Fd listen(const Address& address);
int local_port(int socket);
/// "process 1234 (python train.py)", as far as this user may know who listens on it.
std::string owner_of_port(int port);

struct Accepted {
  Fd socket;
  std::string peer;
};
/// The next connection; none if nobody waits. Throws SystemError when there are no descriptors left.
std::optional<Accepted> accept(int listener);

/// Begins to connect; the socket becomes writable when it is done, and connect_error says how it went (0: well).
Fd begin_connect(const Address& address);
int connect_error(int socket);
/// Sockets that connected, or were accepted, without blocking; a channel wants one that blocks.
void set_blocking(int descriptor, bool blocking);

/// An idle connection (one that has nothing on its way) to a host that is gone ends after about so long.
void notice_dead_peer(int socket, int after_ms);
/// The same for one that has something to say. Only for connections whose peer always reads: a peer that is alive but
/// takes nothing for so long is cut off too.
void notice_deaf_peer(int socket, int after_ms);

std::string host_name();
/// The address of this machine at which the ssh of this session arrived; empty if there is none.
std::string ssh_arrived_at();
/// Of an address in numbers.
[[nodiscard]] bool is_loopback(const std::string& host);

struct Interface {
  std::string name, host;
  bool loopback;
};
/// This machine's addresses on interfaces that are up: IPv4 first, and none that is good on its own link only.
std::vector<Interface> interfaces();

}  // namespace miniray::network
