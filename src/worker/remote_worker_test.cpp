#include "miniray/remote_worker.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "miniray/error.hpp"
#include "worker/remote_scene.hpp"

namespace miniray {

TEST_CASE("a remote worker has the calls of a local one") {
  const Server server(echo);
  for (const Codec codec : {Codec::msgpack, Codec::json}) {
    RemoteWorker worker = server.connect({.worker = {.name = "train", .codec = codec}});
    worker.send({{"cmd", "echo"}});
    CHECK(worker.recv()["cmd"] == "echo");
    CHECK(worker.is_alive());
    CHECK(worker.pid() > 0);
    CHECK(worker.pid() != getpid());
    CHECK(worker.name() ==
          "worker " + std::to_string(worker.pid()) + " at 127.0.0.1:" + std::to_string(server.port) + " (train)");
    CHECK_THROWS_AS((void)worker.recv({.timeout_s = 0.01}), TimeoutError);
    CHECK_THROWS_AS((void)worker.wait(0.01), TimeoutError);
    worker.close();
    CHECK_FALSE(worker.is_alive());
    CHECK(is_gone(worker.pid()));
  }
}

TEST_CASE("a remote worker may be reached through a Unix-domain socket") {
  const std::filesystem::path folder = temporary_folder();
  const std::string path = folder / "server";
  {
    Server server(echo, {}, path);
    RemoteWorker worker = server.connect();
    worker.send(Array::of(std::vector<double>(100'000, 1.5)));
    CHECK(worker.recv().array<double>()[99'999] == 1.5);
    CHECK(contains(worker.name(), " at " + path));
    worker.close();
    server.end();
  }
  CHECK_FALSE(std::filesystem::exists(path));
  std::filesystem::remove(folder);
}

namespace {

// Stands between a client and a server on this machine, passes on what they say, and keeps a copy.
class Relay {
 public:
  explicit Relay(int server_port) : to_(server_port) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address_);
    REQUIRE(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address_), size) == 0);
    REQUIRE(listen(listener_.get(), 8) == 0);
    REQUIRE(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &size) == 0);
    thread_ = std::thread([this] { run(); });
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() { (void)heard(); }
  [[nodiscard]] int port() const { return ntohs(address_.sin_port); }
  // Ends the connections.
  const std::string& heard() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    return heard_;
  }

 private:
  void run() {
    std::vector<Fd> ends;     // 2n and 2n + 1 belong to one connection
    std::vector<bool> ended;  // by the side that speaks there
    std::string room(1 << 16, '\0');
    while (!over_) {
      std::vector<pollfd> waited{{listener_.get(), POLLIN, 0}};
      for (std::size_t i = 0; i < ends.size(); ++i) waited.push_back({ended[i] ? -1 : ends[i].get(), POLLIN, 0});
      if (poll(waited.data(), waited.size(), 20) <= 0) continue;
      for (std::size_t i = 0; i < ends.size(); ++i) {
        if (waited[i + 1].revents == 0) continue;
        const ssize_t size = recv(ends[i].get(), room.data(), room.size(), 0);
        if (size <= 0) {
          ended[i] = true;
          shutdown(ends[i ^ 1U].get(), SHUT_WR);
          continue;
        }
        heard_.append(room, 0, static_cast<std::size_t>(size));
        if (::send(ends[i ^ 1U].get(), room.data(), static_cast<std::size_t>(size), MSG_NOSIGNAL) != size) return;
      }
      if (waited[0].revents == 0) continue;
      ended.resize(ended.size() + 2);
      ends.emplace_back(accept(listener_.get(), nullptr, nullptr));
      ends.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in server = address_;
      server.sin_port = htons(static_cast<std::uint16_t>(to_));
      if (connect(ends.back().get(), reinterpret_cast<sockaddr*>(&server), sizeof(server)) != 0) return;
    }
  }

  int to_;
  Fd listener_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address_{};
  std::atomic<bool> over_ = false;
  std::string heard_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("who stands between a remote worker and its coordinator reads nothing, unless encryption is off") {
  for (const bool encrypt : {true, false}) {
    Server server(echo, {.encrypt = encrypt});
    std::string text, large = "the large secret";
    while (large.size() < 1'000'000) large += large;
    {
      Relay relay(server.port);
      RemoteWorker worker("127.0.0.1", relay.port(), {.key = key, .encrypt = encrypt});
      for (const Value& message : {Value("the small secret"), Value(Bytes{large})}) {
        worker.send(message);
        CHECK(worker.recv({.timeout_s = 30}) == message);
      }
      worker.close();
      text = relay.heard();
    }
    CHECK(text.size() > 2 * large.size());
    CHECK(contains(text, "the small secret") == !encrypt);
    CHECK(contains(text, "the large secret") == !encrypt);
    server.end();
  }
}

TEST_CASE(
    "a connection within the machine is encrypted if one side asks for it, and refused if the other was told not to") {
  using Told = std::optional<bool>;
  for (const Told server_told : {Told(), Told(false), Told(true)}) {
    Server server(echo, {.encrypt = server_told});
    for (const Told told : {Told(), Told(false), Told(true)}) {
      CAPTURE(server_told.value_or(false));
      CAPTURE(told.value_or(false));
      if (told && server_told && *told != *server_told) {
        const auto refused = caught<Refused>([&] { return server.connect({.encrypt = told}); });
        CHECK(contains(refused.what(), "--no-encrypt"));
        continue;
      }
      RemoteWorker worker = server.connect({.encrypt = told});
      worker.send("text");
      CHECK(worker.recv() == Value("text"));
      CHECK(worker.channel().sealed() == (told.value_or(false) || server_told.value_or(false)));
    }
    server.end();
  }
}

TEST_CASE("a remote work function that throws arrives as WorkerError, each time") {
  const Server server([](Handle&) { throw std::out_of_range("no such layer"); });
  RemoteWorker worker = server.connect();
  for (int i = 0; i < 2; ++i) {
    const WorkerError error = caught<WorkerError>([&] { return worker.recv(); });
    CHECK(error.type() == "std::out_of_range");
    CHECK(error.message() == "no such layer");
    CHECK(contains(error.what(), worker.name()));
  }
  CHECK(worker.wait() == 1);
}

TEST_CASE("after a remote work function has returned, recv throws an EndOfStream that says so") {
  const Server server([](Handle& handle) { handle.send(1); });
  RemoteWorker worker = server.connect();
  CHECK(worker.recv() == Value(1));
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("has returned"), EndOfStream);
  CHECK(worker.wait() == 0);
  CHECK_FALSE(worker.is_alive());
  CHECK_THROWS_AS(worker.send(1), EndOfStream);
}

TEST_CASE("a remote worker's death certificate comes from its server") {
  const Server server([](Handle& handle) {
    handle.send({{"status", "ready"}});
    const int number = static_cast<int>(handle.recv()["signal"].integer());
    signal(number, SIG_DFL);
    raise(number);
  });
  for (const int number : {SIGKILL, SIGTERM, SIGABRT}) {
    RemoteWorker worker = server.connect();
    CHECK(worker.recv()["status"] == "ready");
    worker.send({{"signal", number}});
    const DeathCertificate certificate = caught<WorkerDied>([&] { return worker.recv(); }).certificate();
    CHECK(certificate.signal == number);
    CHECK(certificate.exit_code == -1);
    CHECK(certificate.lost.empty());
    CHECK(certificate.peak_bytes > 0);
    CHECK(certificate.worker == worker.name());
    CHECK(contains(certificate.last_messages, "<- {\"status\": \"ready\"}"));
    CHECK(worker.wait() == -number);
  }
}

TEST_CASE("exit codes come from the other machine") {
  const Server server([](Handle& handle) { _exit(static_cast<int>(handle.recv().integer())); });
  for (const int code : {0, 3, 255}) {
    RemoteWorker worker = server.connect();
    worker.send(code);
    CHECK(worker.wait(30) == code);
    CHECK(caught<WorkerDied>([&] { return worker.recv(); }).certificate().exit_code == code);
  }
}

TEST_CASE("kill sends any signal, and SIGKILL also to the processes that the worker started") {
  const Server server(stubborn);
  RemoteWorker worker = server.connect();
  const Value pids = worker.recv();
  CHECK(pids.list()[0].integer() == worker.pid());
  worker.kill(SIGTERM);  // the worker ignores it
  CHECK_THROWS_AS((void)worker.wait(0.05), TimeoutError);
  CHECK(worker.is_alive());
  CHECK_THROWS_AS(worker.kill(999), UsageError);
  worker.kill();
  CHECK(worker.wait(30) == -SIGKILL);
  CHECK_FALSE(worker.is_alive());
  wait_until_gone(pids.list()[1].integer());
  worker.kill();  // has no effect on a worker that has ended
}

TEST_CASE("close kills a remote worker that does not end") {
  const Server server(stubborn);
  RemoteWorker worker = server.connect();
  const Value pids = worker.recv();
  worker.close(0.05);
  CHECK_FALSE(worker.is_alive());
  for (const Value& pid : pids.list()) wait_until_gone(pid.integer());
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("was closed by this process"), EndOfStream);
}

TEST_CASE("messages sent before a death, an error or an end are received first, even after wait") {
  constexpr int count = 100;
  const Server server([](Handle& handle) {
    const std::string ending = handle.recv().string();
    for (int i = 0; i < count; ++i) handle.send(std::string(100'000, 'x'));
    if (ending == "error") throw std::runtime_error("after all that");
    if (ending == "death") raise(SIGKILL);
  });
  for (const char* ending : {"return", "error", "death"}) {
    CAPTURE(std::string(ending));
    RemoteWorker worker = server.connect();
    worker.send(ending);
    (void)worker.wait(60);
    for (int i = 0; i < count; ++i) REQUIRE(worker.recv({.timeout_s = 30}).size() == 100'000);
    const std::string end(ending);
    if (end == "return") CHECK_THROWS_AS((void)worker.recv(), EndOfStream);
    if (end == "error") CHECK_THROWS_AS((void)worker.recv(), WorkerError);
    if (end == "death") CHECK_THROWS_AS((void)worker.recv(), WorkerDied);
  }
}

TEST_CASE("an error arrives even if the worker has not read its messages") {
  const Server server([](Handle& handle) {
    (void)handle.recv();
    throw std::runtime_error("enough");
  });
  for (int round = 0; round < 10; ++round) {
    RemoteWorker worker = server.connect();
    const auto send_much = [&] {
      worker.send("first");
      for (int i = 0; i < 40; ++i) worker.send(std::string(1'000'000, 'x'));
      return worker.recv({.timeout_s = 30});
    };
    CHECK(caught<WorkerError>(send_much).message() == "enough");
  }
}

TEST_CASE("a worker's last messages arrive even if it has not read its own and the coordinator reads late") {
  constexpr int count = 10;
  const Server server([](Handle& handle) {
    (void)handle.recv();
    for (int i = 0; i < count; ++i) handle.send(std::string(100'000, 'x'));
    throw std::runtime_error("enough");
  });
  RemoteWorker worker = server.connect();
  worker.send("first");
  for (int i = 0; i < 5; ++i) worker.send(std::string(100'000, 'x'));
  wait_until("the end of the worker", [&] { return !worker.is_alive(); });
  for (int i = 0; i < count; ++i) REQUIRE(worker.recv({.timeout_s = 30}).size() == 100'000);
  CHECK_THROWS_AS((void)worker.recv({.timeout_s = 30}), WorkerError);
}

TEST_CASE("a death certificate arrives even if the last output is not UTF-8, or is cut within a character") {
  WorkerServerOptions options;
  options.on_output = [](const std::string&, std::string_view) { return true; };
  const Server server(
      [](Handle& handle) {
        const std::string what = handle.recv().string();
        if (what == "bytes") std::printf("bad \xff byte\n");
        for (int i = 0; i < 10'000 && what != "bytes"; ++i) std::printf("é");
        std::printf(what == "odd" ? "!\n" : "\n");
        std::fflush(stdout);
        _exit(3);
      },
      options);
  for (const char* what : {"bytes", "even", "odd"}) {
    CAPTURE(std::string(what));
    RemoteWorker worker = server.connect();
    worker.send(what);
    const DeathCertificate certificate = caught<WorkerDied>([&] { return worker.recv(); }).certificate();
    CHECK(certificate.exit_code == 3);
    CHECK(certificate.lost.empty());
    CHECK(contains(certificate.last_output, std::string(what) == "bytes" ? "bad \\xff byte" : "ééé"));
  }
}

TEST_CASE("workers end with their server, and the coordinator gets an error that says so") {
  for (const bool gently : {false, true}) {
    Server server(stubborn);
    RemoteWorker worker = server.connect();
    const Value pids = worker.recv();
    gently ? server.process.close(30) : server.process.kill();
    const DeathCertificate certificate =
        caught<WorkerDied>([&] { return worker.recv({.timeout_s = 30}); }).certificate();
    CHECK(contains(certificate.cause(), gently ? "was ended because its worker server was stopped"
                                               : "is gone with its worker server at 127.0.0.1:"));
    CHECK_FALSE(worker.is_alive());
    CHECK_THROWS_AS((void)worker.wait(), WorkerDied);
    for (const Value& pid : pids.list()) wait_until_gone(pid.integer());
  }
}

TEST_CASE("workers die with their coordinator, even by SIGKILL, and the server goes on") {
  const Server server(stubborn);
  Worker coordinator([&](Handle& handle) {
    RemoteWorker worker = server.connect();
    handle.send(worker.recv());
    (void)handle.recv();
  });
  const Value pids = coordinator.recv({.timeout_s = 30});
  CHECK_FALSE(is_gone(pids.list()[0].integer()));
  coordinator.kill();
  for (const Value& pid : pids.list()) wait_until_gone(pid.integer());
  RemoteWorker worker = server.connect();
  CHECK(worker.recv().list()[0].integer() == worker.pid());
  worker.kill();
}

TEST_CASE("wait_any takes local and remote workers together") {
  const Server server(echo);
  Worker local(echo), quiet(echo);
  RemoteWorker remote = server.connect(), doomed = server.connect();
  const std::array<Worker*, 4> workers{&local, &remote, &quiet, &doomed};
  CHECK(wait_any(workers, 0.01).empty());
  remote.send(1);
  CHECK(wait_any(workers, 30) == std::vector<std::size_t>{1});
  local.send(2);
  wait_until("answers of both", [&] { return wait_any(workers, 30) == std::vector<std::size_t>{0, 1}; });
  CHECK(remote.recv() == Value(1));
  CHECK(local.recv() == Value(2));
  doomed.kill();
  CHECK(wait_any(workers, 30) == std::vector<std::size_t>{3});
  CHECK_THROWS_AS((void)doomed.recv(), WorkerDied);
}

TEST_CASE("a fork of the coordinator cannot use or end its remote workers") {
  const Server server(echo);
  RemoteWorker worker = server.connect();
  Worker child([&](Handle& handle) {
    try {
      worker.kill();
      handle.send("done");
    } catch (const UsageError& error) {
      handle.send(error.what());
    }
  });
  CHECK(contains(child.recv().string(), "belongs to the process that started it"));
  CHECK(child.wait() == 0);
  worker.send(1);
  CHECK(worker.recv() == Value(1));
}

}  // namespace miniray
