#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/check.hpp"
#include "miniray/miniray.hpp"
#include "tests/child_end.hpp"
#include "tests/echo.hpp"
#include "tests/sanitized.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

template <class Call>
DeathCertificate death_of(Call call) {
  try {
    call();
  } catch (const WorkerDied& died) {
    return died.certificate();
  }
  FAIL("it lives");
  return {};
}

}  // namespace

__attribute__((noinline, no_sanitize("undefined"))) void crash_here_for_the_test() {
  volatile int* volatile nowhere = nullptr;
  *nowhere = 1;  // NOLINT: crashes, as it should
}

TEST_CASE("the header's example") {
  Worker worker(echo);
  worker.send({{"cmd", "echo"}});
  const Value answer = worker.recv();
  CHECK(answer["cmd"] == "echo");
  CHECK(worker.is_alive());
  worker.close();
  CHECK_FALSE(worker.is_alive());
}

TEST_CASE("after a work function has returned, recv throws an EndOfStream that says so") {
  Worker worker([](Handle& handle) { handle.send(1); }, {.name = "brief"});
  CHECK(worker.recv() == Value(1));
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("(brief) has returned"), EndOfStream);
  CHECK_THROWS_AS((void)worker.recv(), EndOfStream);
  CHECK(worker.wait() == 0);
  CHECK_THROWS_AS(worker.send(1), EndOfStream);
}

TEST_CASE("a work function that throws arrives as WorkerError, each time") {
  Worker worker([](Handle&) { throw std::out_of_range("no such layer"); });
  for (int i = 0; i < 2; ++i) {
    try {
      (void)worker.recv();
      FAIL("no error");
    } catch (const WorkerError& error) {
      CHECK(error.type() == "std::out_of_range");
      CHECK(error.message() == "no such layer");
      CHECK(std::string(error.what()).find(std::to_string(worker.pid())) != std::string::npos);
    }
  }
  CHECK(worker.wait() == 1);
}

TEST_CASE("a death certificate has the signal, the stack and the last messages") {
  Worker worker([](Handle& handle) {
    handle.send({{"status", "ready"}});
    (void)handle.recv();
    crash_here_for_the_test();
  });
  CHECK(worker.recv()["status"] == "ready");
  worker.send({{"cmd", "crash"}});
  const DeathCertificate certificate = death_of([&] { (void)worker.recv(); });
  CHECK_FALSE(certificate.out_of_memory);
  CHECK(certificate.peak_bytes > 0);
#ifdef __SANITIZE_ADDRESS__  // it reports the signal itself, and then exits
  CHECK(certificate.exit_code == 1);
  CHECK(certificate.stack.starts_with("The report of AddressSanitizer:\n"));
#else
  CHECK(certificate.signal == SIGSEGV);
  CHECK(certificate.text().find("killed by SIGSEGV (Segmentation fault)") != std::string::npos);
#endif
#ifndef __SANITIZE_THREAD__
  CHECK(certificate.stack.find("crash_here_for_the_test") != std::string::npos);
#endif
  CHECK(certificate.last_messages.find("-> {\"cmd\": \"crash\"}") != std::string::npos);
  CHECK(certificate.last_messages.find("<- {\"status\": \"ready\"}") != std::string::npos);
}

TEST_CASE("an exit code and a signal give different certificates") {
  Worker exits([](Handle&) { _exit(3); });
  CHECK(death_of([&] { (void)exits.recv(); }).exit_code == 3);
  CHECK(exits.wait() == 3);
  Worker aborts([](Handle&) { std::abort(); });
  CHECK(death_of([&] { (void)aborts.recv(); }).signal == SIGABRT);
  Worker killed(echo);
  killed.kill();
  CHECK(death_of([&] { (void)killed.recv(); }).signal == SIGKILL);
  CHECK(killed.wait() == -SIGKILL);
  const auto send_often = [&] {
    for (int i = 0; i < 1000; ++i) killed.send(1);
  };
  CHECK(death_of(send_often).signal == SIGKILL);
}

TEST_CASE("messages sent before a death are received before the death is thrown") {
  Worker worker([](Handle& handle) {
    for (int i = 0; i < 10; ++i) handle.send(i);
    raise(SIGKILL);
  });
  for (int i = 0; i < 10; ++i) CHECK(worker.recv() == Value(i));
  CHECK(death_of([&] { (void)worker.recv(); }).signal == SIGKILL);
}

TEST_CASE("wait reads what a worker still sends") {
  Worker worker([](Handle& handle) {
    for (int i = 0; i < 100; ++i) handle.send(std::string(100'000, 'x'));
  });
  CHECK(worker.wait() == 0);
  for (int i = 0; i < 100; ++i) CHECK(worker.recv().size() == 100'000);
  CHECK_THROWS_AS((void)worker.recv(), EndOfStream);
}

TEST_CASE("wait and recv time out, and the worker continues") {
  Worker worker(echo);
  CHECK_THROWS_AS((void)worker.wait(0.01), TimeoutError);
  CHECK_THROWS_AS((void)worker.recv({.timeout_s = 0.01}), TimeoutError);
  worker.send(1);
  CHECK(worker.recv() == Value(1));
}

TEST_CASE("close kills a worker that does not end, and the processes that it started") {
  Worker worker([](Handle& handle) {
    signal(SIGTERM, SIG_IGN);
    const pid_t child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    handle.send(child);
    for (;;) pause();
  });
  const auto grandchild = static_cast<pid_t>(worker.recv().integer());
  CHECK(kill(grandchild, 0) == 0);
  worker.close(0.05);
  CHECK_FALSE(worker.is_alive());
  wait_until("the end of what the worker started", [&] { return kill(grandchild, 0) != 0; });
}

TEST_CASE("while an exception unwinds the stack, the destructor does not wait for a busy worker") {
  setenv("MINIRAY_TEST_GRACE_MS", "1000000", 1);
  pid_t pid = 0;
  try {
    Worker worker([](Handle& handle) {
      handle.send(1);
      pause();
    });
    pid = worker.pid();
    (void)worker.recv();
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  unsetenv("MINIRAY_TEST_GRACE_MS");
  CHECK(kill(pid, 0) != 0);
}

TEST_CASE("workers and the processes that they started die with their coordinator, even by SIGKILL") {
  Worker coordinator([](Handle& handle) {
    Worker inner([](Handle& inner_handle) {
      const pid_t child = fork();
      if (child == 0) {
        for (;;) pause();
      }
      inner_handle.send(Value::list({getpid(), child}));
      for (;;) sched_yield();
    });
    handle.send(inner.recv());
    (void)handle.recv();
  });
  const Value pids = coordinator.recv();
  coordinator.kill();
  for (const Value& pid : pids.list()) {
    const auto number = static_cast<pid_t>(pid.integer());
    wait_until("the end of process " + std::to_string(number), [&] { return kill(number, 0) != 0; });
  }
}

TEST_CASE("a worker that a thread started outlives the thread") {
  std::optional<Worker> worker;
  std::thread starter([&] { worker.emplace(echo, WorkerOptions{.fork = {.on_warning = [](const std::string&) {}}}); });
  starter.join();
  worker->send("still here");
  CHECK(worker->recv() == Value("still here"));
}

TEST_CASE("a worker cannot use the channel of its siblings") {
  Worker first(echo);
  Worker second([&](Handle& handle) {
    try {
      first.send(1);
      handle.send("sent");
    } catch (const UsageError& error) {
      handle.send(error.what());
    }
  });
  CHECK(second.recv().string().find("belongs to the process that made it") != std::string::npos);
  first.send(2);
  CHECK(first.recv() == Value(2));
}

TEST_CASE("received memory that a fork may have copied is never written again") {
  Worker source([](Handle& handle) {
    for (double value = 1;; ++value) {
      (void)handle.recv();
      handle.send(Array::of(std::vector<double>(100'000, value)));
    }
  });
  source.send("next");
  std::optional<Value> received = source.recv();
  CHECK(received->array<double>()[0] == 1);
  Worker reader([&](Handle& handle) {
    for (;;) {
      (void)handle.recv();
      handle.send(received->array<double>()[99'999]);
    }
  });
  received.reset();  // without the fork, the slot would be free now
  for (int i = 0; i < 5; ++i) {
    source.send("next");
    (void)source.recv();
    reader.send("look");
    CHECK(reader.recv().text() == "1.0");
  }
}

TEST_CASE("a fork copies received arrays: parent and child do not see each other's writes") {
  Worker source([](Handle& handle) {
    handle.send(Array::of(std::vector<double>(100'000, 1.0)));
    (void)handle.recv();
  });
  Value received = source.recv();
  Worker writer([&](Handle& handle) {
    received.mutable_array<double>()[0] = 7;
    handle.send("written");
    (void)handle.recv();
    handle.send(received.array<double>()[1]);
  });
  CHECK(writer.recv() == Value("written"));
  CHECK(received.array<double>()[0] == 1);
  const double* const place = received.array<double>().data();
  received.mutable_array<double>()[1] = 8;
  CHECK(received.array<double>().data() == place);  // a received array is written to in place, without a copy
  writer.send("look");
  CHECK(writer.recv() == Value(1.0));
}

TEST_CASE("a send after a receive with a small max_size reads large messages") {
  Worker worker([](Handle& handle) {
    handle.send("small");
    (void)handle.recv();
    handle.send(std::string(500'000, 'y'));
    for (;;) (void)handle.recv();
  });
  CHECK(worker.recv({.max_size = 100'000}) == Value("small"));
  worker.send("go");
  for (int i = 0; i < 20; ++i) worker.send(std::string(2'000'000, 'z'));
  CHECK(worker.recv().size() == 500'000);
}

TEST_CASE("wait with a full inbox is an error, not a deadlock") {
  Worker worker(
      [](Handle& handle) {
        for (int i = 0; i < 100; ++i) handle.send(std::string(1'000'000, 'x'));
      },
      {.inbox_bytes_max = 5'000'000});
  CHECK_THROWS_AS((void)worker.wait(), InboxFull);
  for (int i = 0; i < 100; ++i) CHECK(worker.recv().size() == 1'000'000);
  CHECK(worker.wait() == 0);
}

TEST_CASE("only the process that started a worker may wait for it or signal it") {
  Worker first(echo);
  Worker second([&](Handle& handle) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        attempt == 0 ? (void)first.wait(0.1) : first.kill();
        handle.send("done");
      } catch (const UsageError& error) {
        handle.send(error.what());
      }
    }
  });
  for (int i = 0; i < 2; ++i)
    CHECK(second.recv().string().find("belongs to the process that started it") != std::string::npos);
  first.send(1);
  CHECK(first.recv() == Value(1));
  CHECK_THROWS_AS(first.kill(999), UsageError);
  CHECK_THROWS_AS((void)first.wait(std::nan("")), UsageError);
}

TEST_CASE("an exception whose text is not UTF-8 arrives too") {
  Worker worker([](Handle&) { throw std::runtime_error("bad \xff byte"); });
  CHECK_THROWS_WITH_AS((void)worker.recv(), doctest::Contains("bad \\xff byte"), WorkerError);
}

TEST_CASE("wait_any returns the positions of ready workers in ascending order") {
  std::vector<Worker> workers;
  for (int i = 0; i < 8; ++i) workers.emplace_back(echo);
  CHECK(wait_any(workers, 0.01).empty());
  workers[5].send(5);
  CHECK(wait_any(workers) == std::vector<std::size_t>{5});
  CHECK(wait_any(workers) == std::vector<std::size_t>{5});  // the same, until the message is received
  CHECK(workers[5].recv() == Value(5));
  workers[2].send(1);
  workers[2].send(2);
  wait_until_blocked(workers[2].pid());  // it has sent both answers
  CHECK(wait_any(workers) == std::vector<std::size_t>{2});
  CHECK(workers[2].recv() == Value(1));
  CHECK(wait_any(workers) == std::vector<std::size_t>{2});  // the second answer may be in the inbox
  CHECK(workers[2].recv() == Value(2));
  workers[7].kill();
  CHECK(wait_any(workers) == std::vector<std::size_t>{7});
  workers.pop_back();
  workers.erase(workers.begin());
  workers[0].send("moved");
  CHECK(wait_any(workers) == std::vector<std::size_t>{0});
}

TEST_CASE("a worker may wait for workers of its own, after its coordinator has done the same") {
  Worker sibling(echo);
  sibling.send(1);
  std::array<Worker*, 1> siblings{&sibling};
  CHECK(wait_any(siblings).size() == 1);
  Worker middle([](Handle& handle) {
    std::vector<Worker> inner;
    for (int i = 0; i < 3; ++i) inner.emplace_back(echo);
    for (int i = 0; i < 3; ++i) inner[static_cast<std::size_t>(i)].send(i);
    std::int64_t sum = 0;
    for (int left = 3; left > 0;) {
      for (const std::size_t ready : wait_any(inner)) {
        sum += inner[ready].recv().integer();
        --left;
      }
    }
    handle.send(sum);
  });
  CHECK(middle.recv() == Value(3));
  CHECK(sibling.recv() == Value(1));
}

TEST_CASE("a kill at a random moment among messages never hangs, and always gives a WorkerDied") {
  std::mt19937 random(7);
  const Value value{{"text", std::string(3000, 'x')}, {"array", Array::of(std::vector<double>(20'000, 1.0))}};
  for (int round = 0; round < 100; ++round) {
    Worker worker(echo);
    const pid_t pid = worker.pid();
    const auto delay_us = random() % 3000;
    std::thread killer([pid, delay_us] {
      usleep(static_cast<useconds_t>(delay_us));
      kill(pid, SIGKILL);
    });
    CHECK_THROWS_AS(
        [&] {
          for (;;) {
            worker.send(value);
            if (random() % 2 == 0) continue;
            (void)worker.recv();
          }
        }(),
        WorkerDied);
    killer.join();
  }
}

TEST_CASE("a failed check in a worker is in its death certificate, with the condition and its place") {
  Worker worker([](Handle& handle) {
    const int received = static_cast<int>(handle.recv().integer());
    MINIRAY_CHECK(received == 1, received);
  });
  worker.send(2);
  const DeathCertificate death = death_of([&] { (void)worker.recv(); });
  CHECK(death.signal == SIGABRT);
  CHECK(death.stack.starts_with("miniray: a bug in MiniRay "));
  CHECK(death.stack.find("this must hold: received == 1") != std::string::npos);
#ifndef __SANITIZE_ADDRESS__  // it keeps its own handlers of signals
  CHECK(death.stack.find("C++ stack at SIGABRT") != std::string::npos);
#endif
}

TEST_CASE("a fork beside threads of OpenMP is warned about in words of C++" * doctest::skip(sanitized)) {
  const ChildEnd end = end_of_child([] {
    void* const library = dlopen("libgomp.so.1", RTLD_NOW);
    if (library == nullptr) return 1;
    using Parallel = void(void (*)(void*), void*, unsigned, unsigned);
    reinterpret_cast<Parallel*>(dlsym(library, "GOMP_parallel"))([](void*) {}, nullptr, 3, 0);
    Worker worker(echo);
    return 0;
  });
  CHECK(end.exit_code == 0);
  CHECK(
      end.said ==
      "miniray: GNU OpenMP has threads in this process, which do not survive a fork. The worker's parallel regions run "
      "on one thread. Start workers before the first parallel region, or with Worker::spawn, for more\n");
}

}  // namespace miniray
