// Many connections of strangers to a worker server, while clients that have the key want to be let in. The source
// addresses are 127.0.0.x, and each step of a client's handshake is the test's own.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "base/network.hpp"
#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "wire/json_text.hpp"
#include "worker/remote_scene.hpp"
#include "worker/request.hpp"

namespace miniray {
namespace {

constexpr int answer_within_ms = 30'000;
constexpr std::size_t few_descriptors = 256;  // then a server has 64 places for strangers

// A server process with so few descriptors that a small crowd fills its places.
struct SmallServer {
  Worker process;
  int port;

  SmallServer()
      : process([](Handle& handle) {
          const rlimit few{few_descriptors, few_descriptors};
          REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
          WorkerServerOptions options;
          options.key = key;
          options.on_log = [](const std::string&) {};
          WorkerServer server("127.0.0.1", 0, echo, options);
          server.on_ready(handle.fileno(), [&server] { server.stop(); });
          handle.send(server.port());
          server.serve_forever();
        }),
        port(static_cast<int>(process.recv({.timeout_s = 30}).integer())) {}

  [[nodiscard]] Fd connect_from(const std::string& address) const {
    Fd made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    REQUIRE(inet_pton(AF_INET, address.c_str(), &name.sin_addr) == 1);
    REQUIRE(bind(made.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0);
    const network::Address server = network::resolve("127.0.0.1", port).front();
    REQUIRE(connect(made.get(), server.get(), server.size) == 0);
    system::set_receive_timeout_ms(made.get(), answer_within_ms);
    return made;
  }
};

// A client that has the key, and does one step of the handshake at a time.
struct SteppedClient {
  Fd socket;
  Handshake handshake{Handshake::Role::client, Key::from_hex(key, "the test"), Sealing::never};

  void say_hello() { system::send_all(socket.get(), handshake.take_output()); }
  void read_hello() {
    while (!handshake.done()) {
      std::string room(handshake.wanted(), '\0');
      system::receive_all(socket.get(), std::as_writable_bytes(std::span(room)));
      handshake.feed(room);
      REQUIRE_FALSE(handshake.refusal());
    }
  }
  void prove_and_ask() { system::send_all(socket.get(), handshake.take_output() + write_request(Request{})); }
  // Returns whether the server has started a worker.
  bool is_let_in() {
    std::uint32_t length = 0;
    system::receive_all(socket.get(), std::as_writable_bytes(std::span(&length, 1)));
    std::string answer(length, '\0');
    system::receive_all(socket.get(), std::as_writable_bytes(std::span(answer)));
    const Value told = read_json_text(answer);
    return told.find("pid") != nullptr;
  }
};

// Connects `count` times and says nothing. Afterwards the server has accepted all of them, because it accepts in order,
// and has answered a last client.
void flood(const SmallServer& server, const std::string& address, std::size_t count, std::vector<Fd>& crowd) {
  for (std::size_t i = 0; i < count; ++i) crowd.push_back(server.connect_from(address));
  SteppedClient last{server.connect_from("127.9.9.9")};
  last.say_hello();
  last.read_hello();
}

}  // namespace

TEST_CASE("clients with the key are let in while another address floods the server, however slow they are") {
  const SmallServer server;
  std::vector<Fd> crowd;
  flood(server, "127.0.0.1", 300, crowd);
  std::vector<std::unique_ptr<SteppedClient>> clients;
  for (int i = 2; i < 14; ++i) {
    clients.push_back(
        std::make_unique<SteppedClient>(SteppedClient{server.connect_from("127.0.0." + std::to_string(i))}));
  }
  flood(server, "127.0.0.1", 100, crowd);
  for (const auto& client : clients) client->say_hello();
  flood(server, "127.0.0.1", 100, crowd);
  for (const auto& client : clients) client->read_hello();
  flood(server, "127.0.0.1", 100, crowd);
  for (const auto& client : clients) client->prove_and_ask();
  for (const auto& client : clients) CHECK(client->is_let_in());
}

TEST_CASE("several addresses that flood the server displace each other, and no client") {
  const SmallServer server;
  std::vector<Fd> crowd;
  SteppedClient client{server.connect_from("127.0.0.2")};
  for (int round = 0; round < 3; ++round)
    for (int i = 3; i < 10; ++i) flood(server, "127.0.0." + std::to_string(i), 30, crowd);
  client.say_hello();
  client.read_hello();
  for (int i = 3; i < 10; ++i) flood(server, "127.0.0." + std::to_string(i), 30, crowd);
  client.prove_and_ask();
  CHECK(client.is_let_in());
}

TEST_CASE("a proof that has arrived is read before its connection gives way to a new one") {
  const SmallServer server;
  std::vector<Fd> crowd;
  SteppedClient client{server.connect_from("127.0.0.1")};  // the oldest one of the address that floods
  client.say_hello();
  client.read_hello();
  flood(server, "127.0.0.1", 20, crowd);
  const auto pid = static_cast<pid_t>(server.process.pid());
  REQUIRE(kill(pid, SIGSTOP) == 0);
  for (int i = 0; i < 300; ++i) crowd.push_back(server.connect_from("127.0.0.1"));
  client.prove_and_ask();
  REQUIRE(kill(pid, SIGCONT) == 0);
  CHECK(client.is_let_in());
}

TEST_CASE("a client that has proved its key does not give way, even if its own address floods the server") {
  const SmallServer server;
  std::vector<Fd> crowd;
  SteppedClient client{server.connect_from("127.0.0.1")};
  client.say_hello();
  client.read_hello();
  system::send_all(client.socket.get(), client.handshake.take_output());
  flood(server, "127.0.0.1", 300, crowd);
  system::send_all(client.socket.get(), write_request(Request{}));
  CHECK(client.is_let_in());
}

}  // namespace miniray
