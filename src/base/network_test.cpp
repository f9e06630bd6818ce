#include "base/network.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/system.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

int option(int socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  REQUIRE(getsockopt(socket, level, name, &value, &size) == 0);
  return value;
}

// A listener, and both ends of a connection to it.
struct Connected {
  explicit Connected(const std::string& host)
      : listener(network::listen(network::resolve(host, 0).front())),
        here(network::begin_connect(network::resolve(host, network::local_port(listener.get())).front())) {
    REQUIRE((system::poll_one(listener.get(), POLLIN, 10'000) & POLLIN) != 0);
    std::optional<network::Accepted> accepted = network::accept(listener.get());
    REQUIRE(accepted);
    peer = accepted->peer;
    there = std::move(accepted->socket);
    REQUIRE((system::poll_one(here.get(), POLLOUT, 10'000) & POLLOUT) != 0);
  }
  Fd listener, here, there;
  std::string peer;
};

}  // namespace

TEST_CASE("a host is resolved to addresses, which have a text") {
  const network::Address four = network::resolve("127.0.0.1", 80).front();
  CHECK(four.text() == "127.0.0.1:80");
  CHECK(four.host() == "127.0.0.1");
  const network::Address six = network::resolve("::1", 8080).front();
  CHECK(six.text() == "[::1]:8080");
  CHECK(six.host() == "::1");
  CHECK(network::resolve("localhost", 1).front().text() == "127.0.0.1:1");  // IPv4 comes first
  CHECK(network::Address().text() == "an unknown address");
  CHECK(network::Address().host().empty());
}

TEST_CASE("limits count an IPv4 address by itself, and a network of IPv6 addresses as one") {
  const auto source = [](const char* host) { return network::resolve(host, 80).front().source(); };
  CHECK(source("10.0.0.7") == "10.0.0.7");
  CHECK(source("::ffff:10.0.0.7") == "10.0.0.7");  // so a server that listens on :: sees it
  CHECK(source("2001:db8:1:2:3:4:5:6") == "2001:db8:1:2::/64");
  CHECK(source("2001:db8:1:2::9") == "2001:db8:1:2::/64");
  CHECK(source("2001:db8:1:3::9") == "2001:db8:1:3::/64");
  CHECK(source("::1") == "::1");
  CHECK(source("@name") == "this machine");
}

TEST_CASE("an impossible address is refused with the reason") {
  CHECK_THROWS_WITH_AS((void)network::resolve("localhost", 65536),
                       doctest::Contains("the port is 65536; give a number from 0 to 65535"), UsageError);
  CHECK_THROWS_AS((void)network::resolve("localhost", -1), UsageError);
  CHECK_THROWS_WITH_AS((void)network::resolve("256.256.256.256.", 1), doctest::Contains("`getent hosts"), UnknownHost);
  CHECK_THROWS_WITH_AS((void)network::resolve("/" + std::string(200, 'x'), 0), doctest::Contains("107 characters"),
                       UsageError);
}

TEST_CASE("a path is the name of a Unix-domain socket, and so is a name with an @") {
  CHECK(network::is_path("/tmp/socket"));
  CHECK(network::is_path("./socket"));
  CHECK(network::is_path("@name"));
  CHECK_FALSE(network::is_path("host.example"));
  CHECK(network::resolve("/tmp/socket", 0).front().text() == "/tmp/socket");
  const std::string name = "@miniray-test-" + std::to_string(getpid());
  CHECK(network::resolve(name, 0).front().text() == name);
  const Connected both(name);
  CHECK(both.peer == "a process of this machine");
  CHECK(network::local_port(both.listener.get()) == 0);
  CHECK_THROWS_WITH_AS((void)network::listen(network::resolve(name, 0).front()), doctest::Contains(name.c_str()),
                       SystemError);
}

TEST_CASE("a listener accepts a waiting connection, and does not wait for one") {
  const Connected both("127.0.0.1");
  CHECK(both.peer.starts_with("127.0.0.1:"));
  CHECK(network::connect_error(both.here.get()) == 0);
  CHECK_FALSE(network::accept(both.listener.get()));
  CHECK(system::write_some(both.here.get(), "hello").bytes == 5);
}

TEST_CASE("the error for a taken port names the process that has it, and the cure") {
  const Fd listener = network::listen(network::resolve("127.0.0.1", 0).front());
  const int port = network::local_port(listener.get());
  CHECK(port > 0);
  const std::string owner = "process " + std::to_string(getpid()) + " (";
  CHECK(network::owner_of_port(port).starts_with(owner));
  try {
    (void)network::listen(network::resolve("127.0.0.1", port).front());
    FAIL("two listen on one port");
  } catch (const SystemError& error) {
    CHECK(error.error_number() == EADDRINUSE);
    const std::string text = error.what();
    CHECK(text.find("127.0.0.1:" + std::to_string(port)) != std::string::npos);
    CHECK(text.find(owner) != std::string::npos);
    CHECK(text.find("choose another port") != std::string::npos);
  }
}

TEST_CASE("a connection to a port without a listener is refused when the socket becomes writable") {
  Fd listener = network::listen(network::resolve("127.0.0.1", 0).front());
  const network::Address address = network::resolve("127.0.0.1", network::local_port(listener.get())).front();
  listener.reset();
  const Fd socket = network::begin_connect(address);
  REQUIRE(system::poll_one(socket.get(), POLLOUT, 10'000) > 0);
  CHECK(network::connect_error(socket.get()) == ECONNREFUSED);
  CHECK(network::connect_error(-1) == EBADF);
  CHECK_THROWS_WITH_AS((void)network::begin_connect(network::resolve("/no/such/socket", 0).front()),
                       doctest::Contains("connect to /no/such/socket"), SystemError);
}

TEST_CASE("a port without a listener has no known owner") {
  Fd listener = network::listen(network::resolve("127.0.0.1", 0).front());
  const int port = network::local_port(listener.get());
  listener.reset();
  CHECK(network::owner_of_port(port) == "another process");
}

TEST_CASE("a descriptor can be made blocking and not blocking") {
  const auto [here, there] = system::make_pipe();
  network::set_blocking(here.get(), false);
  CHECK((fcntl(here.get(), F_GETFL) & O_NONBLOCK) != 0);
  network::set_blocking(here.get(), true);
  CHECK((fcntl(here.get(), F_GETFL) & O_NONBLOCK) == 0);
  CHECK_THROWS_AS(network::set_blocking(-1, true), SystemError);
}

TEST_CASE("a host that is gone is noticed within the requested time") {
  const Connected both("127.0.0.1");
  const auto probing_s = [&] {
    return option(both.here.get(), IPPROTO_TCP, TCP_KEEPIDLE) +
           option(both.here.get(), IPPROTO_TCP, TCP_KEEPINTVL) * option(both.here.get(), IPPROTO_TCP, TCP_KEEPCNT);
  };
  network::notice_dead_peer(both.here.get(), 20'000);
  CHECK(option(both.here.get(), SOL_SOCKET, SO_KEEPALIVE) == 1);
  CHECK(probing_s() == 20);
  CHECK(option(both.here.get(), IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
  network::notice_deaf_peer(both.here.get(), 5000);
  CHECK(probing_s() == 10);  // a second is the shortest step
  CHECK(option(both.here.get(), IPPROTO_TCP, TCP_USER_TIMEOUT) == 5000);
  network::notice_dead_peer(both.here.get(), 2'000'000'000);  // longer than the kernel can count
  CHECK(option(both.here.get(), IPPROTO_TCP, TCP_KEEPIDLE) == 32767);
  const auto [here, there] = system::socket_pair();  // a Unix-domain socket has no remote host
  network::notice_dead_peer(here.get(), 1000);
  network::notice_deaf_peer(here.get(), 1000);
}

TEST_CASE("what is known of this machine") {
  CHECK_FALSE(network::host_name().empty());
  const std::vector<network::Interface> all = network::interfaces();
  REQUIRE_FALSE(all.empty());
  bool loopback = false, six_came = false;
  for (const network::Interface& one : all) {
    CHECK(one.host.find('%') == std::string::npos);
    const bool six = one.host.find(':') != std::string::npos;
    CHECK_FALSE((six_came && !six));  // IPv4 first
    six_came = six_came || six;
    loopback = loopback || (one.loopback && one.host == "127.0.0.1");
  }
  CHECK(loopback);
  CHECK(network::is_loopback("127.0.0.53"));
  CHECK(network::is_loopback("::1"));
  CHECK(network::is_loopback("::ffff:127.0.0.1"));
  CHECK_FALSE(network::is_loopback("10.0.0.1"));
}

TEST_CASE("the address at which ssh arrived comes from SSH_CONNECTION") {
  const char* before = std::getenv("SSH_CONNECTION");
  const std::string kept = before != nullptr ? before : "";
  system::set_environment("SSH_CONNECTION", "10.0.0.7 5555 10.0.0.8 22");
  CHECK(network::ssh_arrived_at() == "10.0.0.8");
  system::set_environment("SSH_CONNECTION", "nonsense");
  CHECK(network::ssh_arrived_at().empty());
  system::remove_from_environment("SSH_CONNECTION");
  CHECK(network::ssh_arrived_at().empty());
  if (before != nullptr) system::set_environment("SSH_CONNECTION", kept);
}

}  // namespace miniray
