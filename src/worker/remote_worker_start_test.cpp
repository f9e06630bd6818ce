// How remote workers start: how many, with which function, environment and output, and which errors refuse a request.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "miniray/error.hpp"
#include "miniray/remote_worker.hpp"
#include "tests/tcp_ends.hpp"
#include "worker/connect_workers.hpp"
#include "worker/remote_scene.hpp"

namespace miniray {
namespace {

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "none";
}

std::string refusal_of(const Server& server, const RemoteOptions& options = {}) {
  return caught<Refused>([&] { return server.connect(options); }).what();
}

int free_port() {
  const std::pair<int, int> ends = tcp_ends();
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(ends.second, reinterpret_cast<sockaddr*>(&address), &size);
  for (const int end : {ends.first, ends.second}) close(end);
  return ntohs(address.sin_port);
}

// A server that accepts connections and never sends anything.
struct SilentListener {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port = 0;
  SilentListener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(socket, at, size) == 0);
    REQUIRE(listen(socket, 8) == 0);
    REQUIRE(getsockname(socket, at, &size) == 0);
    port = ntohs(address.sin_port);
  }
  ~SilentListener() { close(socket); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;
};

}  // namespace

TEST_CASE("a server starts at most num_workers workers, and more when some have ended") {
  const Server server(echo, {.num_workers = 2});
  RemoteWorker first = server.connect(), second = server.connect();
  const std::string refusal = refusal_of(server);
  CHECK(contains(refusal, "all of its 2 workers are taken"));
  CHECK(contains(refusal, "the server at 127.0.0.1:" + std::to_string(server.port)));
  first.close();
  RemoteWorker third = server.connect();
  third.send(3);
  CHECK(third.recv() == Value(3));
  second.send(2);
  CHECK(second.recv() == Value(2));
}

TEST_CASE("a server finds functions by name, and its refusal says why it cannot") {
  WorkerServerOptions options;
  options.find_work = [](const std::string& name) -> WorkFunction {
    if (name == "double")
      return [](Handle& handle) {
        for (;;) handle.send(2 * handle.recv().integer());
      };
    throw std::invalid_argument("there is no " + name + " here");
  };
  {
    const Server server(echo, options);
    RemoteWorker doubles = server.connect({.work_fn = "double"}), echoes = server.connect();
    CHECK(contains(doubles.name(), "(double)"));
    doubles.send(21);
    echoes.send(21);
    CHECK(doubles.recv() == Value(42));
    CHECK(echoes.recv() == Value(21));
    CHECK(contains(refusal_of(server, {.work_fn = "triple"}), "there is no triple here"));
  }
  const Server only_named({}, options);
  CHECK(contains(refusal_of(only_named), "say which one to run (work_fn)"));
  const Server only_its_own(echo);
  CHECK(contains(refusal_of(only_its_own, {.work_fn = "double"}), "runs only the work function that it was started"));
}

TEST_CASE("a refusal whose text is not UTF-8, or is cut within a character, arrives too") {
  WorkerServerOptions options;
  options.find_work = [](const std::string& name) -> WorkFunction {
    if (name == "bytes") throw std::runtime_error("bad \xff byte");
    std::string letters;
    for (int i = 0; i < 100'000; ++i) letters += "é";
    throw std::runtime_error(letters + (name == "odd" ? "!" : ""));
  };
  const Server server(echo, options);
  CHECK(contains(refusal_of(server, {.work_fn = "bytes"}), "bad \\xff byte"));
  for (const char* name : {"even", "odd"}) {
    const std::string refusal = refusal_of(server, {.work_fn = name});
    CHECK(contains(refusal, "ééé"));
    CHECK(refusal.size() < 20'000);
  }
  RemoteWorker worker = server.connect();
  worker.send(1);
  CHECK(worker.recv() == Value(1));
}

TEST_CASE("a worker gets its environment, and its output goes to on_output") {
  std::array<int, 2> lines{};
  REQUIRE(pipe(lines.data()) == 0);
  {
    WorkerServerOptions options;
    options.on_output = [there = lines[1]](const std::string& label, std::string_view printed) {
      const std::string line = label + ": " + std::string(printed);
      return write(there, line.data(), line.size()) > 0;
    };
    const Server server(
        [](Handle& handle) {
          std::printf("one\ntwo, without an end");
          handle.send(setting("MINIRAY_TEST_SETTING"));
          (void)handle.recv();
          _exit(3);
        },
        options);
    RemoteWorker worker = server.connect({.environment = {{"MINIRAY_TEST_SETTING", "a = b"}}, .label = "node2/rank 7"});
    CHECK(worker.recv() == Value("a = b"));
    CHECK(std::getenv("MINIRAY_TEST_SETTING") == nullptr);
    worker.send("end");
    CHECK(contains(caught<WorkerDied>([&] { return worker.recv(); }).certificate().last_output, "one\n"));
  }
  close(lines[1]);
  std::string printed(1000, '\0');
  std::size_t size = 0;
  while (const ssize_t more = read(lines[0], printed.data() + size, printed.size() - size))
    size += static_cast<std::size_t>(std::max<ssize_t>(more, 0));
  close(lines[0]);
  CHECK(printed.substr(0, size).starts_with("node2/rank 7: one\n"));
}

TEST_CASE("standard error goes to on_errors if that is set, and to on_output if not") {
  for (const bool apart : {true, false}) {
    std::array<int, 2> lines{};
    REQUIRE(pipe(lines.data()) == 0);
    {
      const auto write_as = [there = lines[1]](const std::string& stream) {
        return [there, stream](const std::string&, std::string_view printed) {
          const std::string line = stream + std::string(printed);
          return write(there, line.data(), line.size()) > 0;
        };
      };
      WorkerServerOptions options;
      options.on_output = write_as("output: ");
      if (apart) options.on_errors = write_as("errors: ");
      const Server server([](Handle&) { std::fputs("complaint\n", stderr); }, options);
      RemoteWorker worker = server.connect();
      CHECK_THROWS_AS((void)worker.recv(), EndOfStream);
      CHECK(worker.wait() == 0);
    }
    close(lines[1]);
    std::string printed(1000, '\0');
    const ssize_t size = read(lines[0], printed.data(), printed.size());
    close(lines[0]);
    CHECK(printed.substr(0, static_cast<std::size_t>(std::max<ssize_t>(size, 0))) ==
          (apart ? "errors: complaint\n" : "output: complaint\n"));
  }
}

TEST_CASE("a request may be larger than a socket's buffer, and one above the limit is refused by the coordinator") {
  const auto size_of_setting = [](Handle& handle) { handle.send(setting("MINIRAY_TEST_SETTING").size()); };
  const std::filesystem::path folder = temporary_folder();
  for (const std::string& host : {std::string("127.0.0.1"), (folder / "server").string()}) {
    const Server server(size_of_setting, {}, host);
    RemoteWorker worker = server.connect({.environment = {{"MINIRAY_TEST_SETTING", std::string(1'000'000, 'x')}}});
    CHECK(worker.recv() == Value(1'000'000));
    const RemoteOptions too_much{.environment = {{"MINIRAY_TEST_SETTING", std::string(2'000'000, 'x')}}};
    CHECK_THROWS_AS((void)server.connect(too_much), UsageError);
  }
  std::filesystem::remove(folder);
}

TEST_CASE("twenty remote workers at once, in the order of their addresses") {
  WorkerServerOptions options;
  options.find_work = [](const std::string& name) -> WorkFunction {
    return [name](Handle& handle) {
      for (;;) handle.send(name + handle.recv().string());
    };
  };
  const Server server(echo, options), other(echo, options);
  std::vector<RemoteAddress> addresses;
  for (int i = 0; i < 20; ++i) {
    RemoteAddress address{"127.0.0.1", i % 2 == 0 ? server.port : other.port};
    address.options.key = key;
    address.options.work_fn = "worker " + std::to_string(i);
    if (i == 7) address.name = "node seven";
    addresses.push_back(address);
  }
  std::vector<Worker> workers = create_remote_workers(addresses);
  REQUIRE(workers.size() == 20);
  CHECK(contains(workers[7].name(), " at node seven"));
  for (Worker& worker : workers) worker.send("!");
  for (std::size_t i = 0; i < workers.size(); ++i)
    CHECK(workers[i].recv() == Value("worker " + std::to_string(i) + "!"));
  CHECK(create_remote_workers({}).empty());
}

TEST_CASE("if one of many fails, none is left") {
  const std::filesystem::path folder = temporary_folder();
  const auto work = [folder](Handle& handle) {
    std::ofstream(folder / std::to_string(getpid())).flush();
    echo(handle);
  };
  {
    const Server server(work, {.num_workers = 5});
    RemoteAddress address{"127.0.0.1", server.port};
    address.options.key = key;
    CHECK_THROWS_WITH_AS((void)create_remote_workers(std::vector<RemoteAddress>(6, address)),
                         doctest::Contains("all of its 5 workers are taken"), Refused);
    for (const auto& started : std::filesystem::directory_iterator(folder))
      wait_until_gone(std::stoll(started.path().filename()));
    wait_until("a server that can start five workers again", [&] {
      try {
        return create_remote_workers(std::vector<RemoteAddress>(5, address)).size() == 5;
      } catch (const Refused&) {  // the server has not reaped the last worker yet
        return false;
      }
    });
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("the error of a failed connection has the cause and the cure") {
  RemoteOptions options{.key = key, .connect_timeout_s = 0.2};
  const int nobody = free_port();
  const std::string where = "127.0.0.1:" + std::to_string(nobody);
  CHECK_THROWS_WITH_AS(RemoteWorker("127.0.0.1", nobody, options),
                       doctest::Contains(("cannot connect to " + where + ": no server listens there").c_str()),
                       Refused);
  CHECK_THROWS_WITH_AS(RemoteWorker("/tmp/miniray-no-such-socket", 0, options), doctest::Contains("no server listens"),
                       Refused);
  CHECK_THROWS_WITH_AS(RemoteWorker("no-such-host.invalid", 1, options),
                       doctest::Contains("cannot find the host \"no-such-host.invalid\""), UnknownHost);
  const SilentListener silent;
  CHECK_THROWS_WITH_AS(RemoteWorker("127.0.0.1", silent.port, options),
                       doctest::Contains("cannot agree on a key with 127.0.0.1"), TimeoutError);
  CHECK_THROWS_AS(RemoteWorker("127.0.0.1", 70'000, options), UsageError);
  options.unreachable_s = 0.5;
  CHECK_THROWS_WITH_AS(RemoteWorker("127.0.0.1", nobody, options), doctest::Contains("unreachable_s"), UsageError);
  options.key = "short";
  const std::string complaint = caught<UsageError>([&] { return RemoteWorker("127.0.0.1", nobody, options); }).what();
  CHECK_FALSE(contains(complaint, "short"));
}

TEST_CASE("another key is refused, with the reason on both sides, and the server goes on") {
  Server server(echo);
  const std::string refusal = refusal_of(server, {.key = std::string(64, 'b')});
  CHECK(contains(refusal, "it has another key"));
  CHECK_FALSE(contains(refusal, "bbbb"));
  for (int i = 0; i < 2; ++i) {  // one line for each of the worker's two connections
    const std::string line = server.process.recv({.timeout_s = 30}).string();
    CHECK(contains(line, "refused 127.0.0.1:"));
    CHECK(contains(line, "it closed the connection "));
    CHECK_FALSE(contains(line, "aaaa"));
  }
  RemoteWorker worker = server.connect();
  worker.send(1);
  CHECK(worker.recv() == Value(1));
}

TEST_CASE("a connection that is dropped half-way is no stranger to the server") {
  Server server(echo);
  for (int i = 0; i < 20; ++i) {
    WorkerConnection dropped({server.host, server.port, {.key = key}, {}, {}});
    for (int steps = 0; steps < i && !dropped.advance(); ++steps) {
    }
  }
  (void)refusal_of(server, {.key = std::string(64, 'b')});  // its lines are the first ones in the server's log
  CHECK(contains(server.process.recv({.timeout_s = 30}).string(), "before it proved"));
}

TEST_CASE("a lost server of this machine is no broken ssh connection") {
  Server server(echo, {}, "@miniray-test-" + std::to_string(getpid()));
  RemoteWorker worker = server.connect();
  server.process.kill();
  const std::string text = caught<WorkerDied>([&] { return worker.recv({.timeout_s = 30}); }).what();
  CHECK(contains(text, "is gone with its worker server at @miniray-test-"));
  CHECK_FALSE(contains(text, "ssh"));
}

}  // namespace miniray
