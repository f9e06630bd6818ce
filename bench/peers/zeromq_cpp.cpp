// ZeroMQ's C API, for bench-peers: `peer_zeromq_cpp calls|tasks_WORKERS QUICK`. It has no collective operations.
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cstring>

#include "bench/peers/cpp_bench.hpp"

namespace {

using bench::Arguments;

void require(bool fine, const char* what) {
  if (!fine) bench::fail(std::string(what) + ": " + zmq_strerror(zmq_errno()));
}

struct Socket {
  Socket(void* context, int kind, const std::string& address, bool binds) : socket(zmq_socket(context, kind)) {
    const int none = 0;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof(none));  // no limit: a thousand in flight must not block
    zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof(none));
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
    require((binds ? zmq_bind : zmq_connect)(socket, address.c_str()) == 0, address.c_str());
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { zmq_close(socket); }
  void send(const void* data, std::size_t bytes) const {
    require(zmq_send(socket, data, bytes, 0) == static_cast<int>(bytes), "send");
  }
  void* socket;
};

// The address of a socket in a folder of its own, which the runner removes.
std::string address_of(const std::string& name) {
  const char* folder = std::getenv("TMPDIR");
  return "ipc://" + std::string(folder != nullptr ? folder : "/tmp") + "/" + name + "-" + std::to_string(getpid());
}

// Sends back every message that it gets, without copying it.
[[noreturn]] void serve(const std::string& address) {
  void* const context = zmq_ctx_new();
  {
    const Socket socket(context, ZMQ_PAIR, address, false);
    for (;;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket.socket, 0) <= 0) break;
      zmq_msg_send(&message, socket.socket, 0);
    }
  }
  _exit(0);
}

double seconds_of_echo(const Socket& socket, std::size_t bytes, const Arguments& arguments) {
  const std::vector<std::uint8_t> array(bytes, 1);
  return bench::seconds_each(arguments.enough_s(), 1, [&] {
    zmq_msg_t message;
    const auto keep = [](void*, void*) {};
    zmq_msg_init_data(&message, const_cast<std::uint8_t*>(array.data()), bytes, keep, nullptr);
    require(zmq_msg_send(&message, socket.socket, 0) >= 0, "send");
    zmq_msg_init(&message);
    require(zmq_msg_recv(&message, socket.socket, 0) >= 0, "receive");
    const auto* back = static_cast<const std::uint8_t*>(zmq_msg_data(&message));
    if (zmq_msg_size(&message) != bytes || !bench::is_right(back, bytes)) bench::fail("a wrong echo");
    zmq_msg_close(&message);
  });
}

void calls(const Arguments& arguments) {
  const std::string address = address_of("pair");
  const pid_t child = fork();
  if (child == 0) serve(address);
  void* const context = zmq_ctx_new();
  {
    const Socket socket(context, ZMQ_PAIR, address, true);
    std::uint64_t answer = 0;
    const auto receive = [&] { require(zmq_recv(socket.socket, &answer, sizeof(answer), 0) == 8, "receive"); };
    bench::tell("cpp_call", bench::seconds_each(arguments.enough_s(), arguments.batch(), [&] {
                  const std::uint64_t question = 7;
                  socket.send(&question, sizeof(question));
                  receive();
                  if (answer != question) bench::fail("a wrong answer");
                }));
    const std::size_t many = arguments.batch();
    bench::tell("cpp_in_flight", bench::seconds_each(arguments.enough_s(), 1, [&] {
                                   for (std::uint64_t i = 0; i < many; ++i) socket.send(&i, sizeof(i));
                                   for (std::uint64_t i = 0; i < many; ++i) {
                                     receive();
                                     if (answer != i) bench::fail("a wrong answer");
                                   }
                                 }) / static_cast<double>(many));
    bench::tell("cpp_8_mib", seconds_of_echo(socket, bench::echo_bytes, arguments));
    bench::tell("cpp_1_gb", seconds_of_echo(socket, arguments.quick ? 1'000'000 : bench::large_bytes, arguments));
    zmq_send(socket.socket, "", 0, 0);
  }
  zmq_ctx_term(context);
  waitpid(child, nullptr, 0);
}

// Takes items from a socket, and puts results into another.
[[noreturn]] void work(const std::string& items, const std::string& results) {
  void* const context = zmq_ctx_new();
  {
    const Socket from(context, ZMQ_PULL, items, false), to(context, ZMQ_PUSH, results, false);
    double us = 0;
    while (zmq_recv(from.socket, &us, sizeof(us), 0) == sizeof(us) && us >= 0) {
      bench::spin_us(us);
      to.send(&us, sizeof(us));
    }
  }
  _exit(0);
}

void tasks(const Arguments& arguments, int workers) {
  const std::string items = address_of("items");
  const std::string results = address_of("results");
  std::vector<pid_t> children;
  for (int i = 0; i < workers; ++i) {
    children.push_back(fork());
    if (children.back() == 0) work(items, results);
  }
  void* const context = zmq_ctx_new();
  {
    const Socket to(context, ZMQ_PUSH, items, true), from(context, ZMQ_PULL, results, true);
    double result = 0;
    for (const double us : {1.0, 10.0, 100.0, 1000.0}) {
      const int count = arguments.quick ? 20 : std::max(1000, static_cast<int>(200'000 / us));
      bench::tell("cpp_map_" + std::to_string(static_cast<int>(us)),
                  bench::seconds_each(arguments.enough_s(), 1, [&] {
                    for (int i = 0; i < count; ++i) to.send(&us, sizeof(us));
                    for (int i = 0; i < count; ++i)
                      require(zmq_recv(from.socket, &result, sizeof(result), 0) == sizeof(result), "receive");
                  }) / count);
    }
    const double end = -1;
    for (int i = 0; i < workers; ++i) to.send(&end, sizeof(end));
    for (const pid_t child : children) waitpid(child, nullptr, 0);
  }
  zmq_ctx_term(context);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argc, argv);
  if (arguments.work == "calls")
    calls(arguments);
  else if (arguments.work.starts_with("tasks_"))
    tasks(arguments, std::stoi(arguments.work.substr(6)));
  else
    bench::fail("usage: peer_zeromq_cpp calls|tasks_WORKERS QUICK");
}
