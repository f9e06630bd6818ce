#include "miniray/remote_worker.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "miniray/error.hpp"
#include "miniray/worker_server.hpp"
#include "tests/tcp_ends.hpp"
#include "wire/utf8.hpp"

namespace miniray {
namespace {

const std::string key(64, 'a');
constexpr int patience_ms = 5000;  // what DESIGN promises of a coordinator's death
constexpr auto look_again_after = std::chrono::milliseconds(10);

void echo(Handle& handle) {
  for (;;) handle.send(handle.recv());
}

[[noreturn]] void stubborn(Handle& handle) {
  signal(SIGTERM, SIG_IGN);
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  handle.send(Value::list({getpid(), child}));
  for (;;) sched_yield();
}

bool comes_true(const std::function<bool()>& wish) {
  const Deadline deadline = Deadline::in_ms(patience_ms);
  while (!deadline.passed()) {
    if (wish()) return true;
    std::this_thread::sleep_for(look_again_after);
  }
  return wish();
}

// Ended; perhaps not yet reaped by whoever inherited it.
bool is_gone(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::ostringstream text;
  text << file.rdbuf();
  const std::size_t name_ends = text.str().rfind(')');
  return name_ends == std::string::npos || text.str().compare(name_ends + 2, 1, "Z") == 0;
}

// A worker server in a process of its own, for as long as the scope. Its log comes as messages.
struct Server {
  Worker process;
  std::string host;
  int port = 0;

  explicit Server(const WorkFunction& work, WorkerServerOptions options = {}, const std::string& at = "127.0.0.1")
      : process([=](Handle& handle) mutable {
          if (options.key.empty()) options.key = key;
          options.on_log = [&handle](const std::string& line) { handle.send(to_utf8(line.substr(0, 1000))); };
          WorkerServer server(at, 0, work, options);
          server.on_ready(handle.fileno(), [&server] { server.stop(); });
          handle.send(server.port());
          server.serve_forever();
        }),
        host(at),
        port(static_cast<int>(process.recv({.timeout_s = 30}).integer())) {}

  [[nodiscard]] RemoteWorker connect(RemoteOptions options = {}) const {
    if (options.key.empty()) options.key = key;
    return {host, port, options};
  }
  // The remote workers die with it, so nobody needs to be told.
  void end() { process.close(); }
};

std::filesystem::path temporary_folder() {
  std::string made = std::filesystem::temp_directory_path() / "miniray-test-XXXXXX";
  REQUIRE(mkdtemp(made.data()) != nullptr);
  return made;
}

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "none";
}

template <class Exception, class Call>
Exception caught(Call call) {
  try {
    (void)call();
  } catch (const Exception& error) {
    return error;
  }
  throw std::logic_error("it did not throw");
}

std::string refusal_of(const Server& server, const RemoteOptions& options = {}) {
  return caught<Refused>([&] { return server.connect(options); }).what();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

int free_port() {
  const std::pair<int, int> ends = tcp_ends();
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(ends.second, reinterpret_cast<sockaddr*>(&address), &size);
  for (const int end : {ends.first, ends.second}) close(end);
  return ntohs(address.sin_port);
}

// Somebody who listens, and never says a word.
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

TEST_CASE("a remote worker is talked to like a local one") {
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

TEST_CASE("a remote work function that returns is an end of stream that says so") {
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

TEST_CASE("kill sends any signal, SIGKILL to all that the worker started") {
  const Server server(stubborn);
  RemoteWorker worker = server.connect();
  const Value pids = worker.recv();
  CHECK(pids.list()[0].integer() == worker.pid());
  worker.kill(SIGTERM);  // which it ignores
  CHECK_THROWS_AS((void)worker.wait(0.05), TimeoutError);
  CHECK(worker.is_alive());
  CHECK_THROWS_AS(worker.kill(999), UsageError);
  worker.kill();
  CHECK(worker.wait(30) == -SIGKILL);
  CHECK_FALSE(worker.is_alive());
  CHECK(comes_true([&] { return is_gone(pids.list()[1].integer()); }));
  worker.kill();  // of the dead means nothing
}

TEST_CASE("close kills a remote worker that does not end") {
  const Server server(stubborn);
  RemoteWorker worker = server.connect();
  const Value pids = worker.recv();
  worker.close(0.05);
  CHECK_FALSE(worker.is_alive());
  for (const Value& pid : pids.list()) CHECK(comes_true([&] { return is_gone(pid.integer()); }));
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("was closed here"), EndOfStream);
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

TEST_CASE("an error arrives although the worker had much unread") {
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

TEST_CASE("what a worker said last arrives although it had not read all, and its coordinator reads late") {
  constexpr int count = 10;
  const Server server([](Handle& handle) {
    (void)handle.recv();
    for (int i = 0; i < count; ++i) handle.send(std::string(100'000, 'x'));
    throw std::runtime_error("enough");
  });
  RemoteWorker worker = server.connect();
  worker.send("first");
  for (int i = 0; i < 5; ++i) worker.send(std::string(100'000, 'x'));
  REQUIRE(comes_true([&] { return !worker.is_alive(); }));
  for (int i = 0; i < count; ++i) REQUIRE(worker.recv({.timeout_s = 30}).size() == 100'000);
  CHECK_THROWS_AS((void)worker.recv({.timeout_s = 30}), WorkerError);
}

TEST_CASE("a server starts as many workers as it was told, and more when some have ended") {
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

TEST_CASE("a server finds functions by name, and tells why it cannot") {
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

TEST_CASE("a refusal whose text is not text, or is cut within a letter, arrives all the same") {
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

TEST_CASE("a death certificate arrives although the last output is no text, or is cut within a letter") {
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

TEST_CASE("environment and output go where they belong") {
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

TEST_CASE("a request may be larger than a socket's buffer, and one above the limit is refused here") {
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
      CHECK(comes_true([&] { return is_gone(std::stoll(started.path().filename())); }));
    CHECK(comes_true([&] {
      try {
        return create_remote_workers(std::vector<RemoteAddress>(5, address)).size() == 5;
      } catch (const Refused&) {  // the last of them has not been reaped yet
        return false;
      }
    }));
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("who cannot connect is told why, and what to do") {
  RemoteOptions options{.key = key, .connect_timeout_s = 0.2};
  const int nobody = free_port();
  const std::string where = "127.0.0.1:" + std::to_string(nobody);
  CHECK_THROWS_WITH_AS(RemoteWorker("127.0.0.1", nobody, options),
                       doctest::Contains(("cannot connect to " + where + ": nobody listens there").c_str()), Refused);
  CHECK_THROWS_WITH_AS(RemoteWorker("/tmp/miniray-no-such-socket", 0, options), doctest::Contains("nobody listens"),
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
  for (int i = 0; i < 2; ++i) {  // its two connections
    const std::string line = server.process.recv({.timeout_s = 30}).string();
    CHECK(contains(line, "refused 127.0.0.1:"));
    CHECK(contains(line, "it left "));
    CHECK_FALSE(contains(line, "aaaa"));
  }
  RemoteWorker worker = server.connect();
  worker.send(1);
  CHECK(worker.recv() == Value(1));
}

TEST_CASE("the end of a server is the end of its workers, and the coordinator is told") {
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
    for (const Value& pid : pids.list()) CHECK(comes_true([&] { return is_gone(pid.integer()); }));
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
  for (const Value& pid : pids.list()) CHECK(comes_true([&] { return is_gone(pid.integer()); }));
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
  CHECK(comes_true([&] { return wait_any(workers, 30) == std::vector<std::size_t>{0, 1}; }));
  CHECK(remote.recv() == Value(1));
  CHECK(local.recv() == Value(2));
  doomed.kill();
  CHECK(wait_any(workers, 30) == std::vector<std::size_t>{3});
  CHECK_THROWS_AS((void)doomed.recv(), WorkerDied);
}

TEST_CASE("a fork of the coordinator has no say over its remote workers") {
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
