// `miniray worker-server` runs a function of a shared library in a new worker for every connection.
#include "miniray/worker_server.hpp"

#include <dlfcn.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/subcommands.hpp"
#include "miniray/error.hpp"

namespace miniray::cli {
namespace {

std::atomic<int> received_signal = 0;  // global, because a signal handler can reach nothing else

struct Options {
  std::string host = "127.0.0.1", work_fn;
  int port = 10000;
  std::size_t workers = 0;
  std::optional<bool> encrypt;
  std::uint64_t message_bytes_max = limits::message_bytes_max;
};

void serve(const Options& options) {
  WorkerServerOptions server_options;
  server_options.num_workers = options.workers;
  server_options.encrypt = options.encrypt;
  server_options.message_bytes_max = options.message_bytes_max;
  server_options.find_work = find_in_library;
  WorkerServer* serving = nullptr;
  server_options.on_interrupt = [&serving] {
    if (received_signal != 0 && serving != nullptr) serving->stop();
  };
  WorkerServer server(options.host, options.port, options.work_fn.empty() ? nullptr : find_in_library(options.work_fn),
                      std::move(server_options));
  serving = &server;
  for (const int number : {SIGINT, SIGTERM}) signal(number, [](int received) { received_signal = received; });
  std::printf("listening on %s:%d, running %s; Ctrl-C ends it and its workers\n", options.host.c_str(), server.port(),
              options.work_fn.empty() ? "what connections ask for" : options.work_fn.c_str());
  std::printf("%s\n", who_can_connect(options.host).c_str());
  std::fflush(stdout);
  server.serve_forever();
}

}  // namespace

WorkFunction find_in_library(const std::string& name) {
  const std::size_t colon = name.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == name.size())
    throw UsageError("a work function is named \"./library.so:function\", not \"" + name + "\"");
  const std::string path = name.substr(0, colon), symbol = name.substr(colon + 1);
  void* library =
      dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: its functions run until the process ends
  if (library == nullptr) throw UsageError("cannot load " + path + ": " + dlerror());
  auto* function = reinterpret_cast<void (*)(Handle&)>(dlsym(library, symbol.c_str()));
  if (function == nullptr)
    throw UsageError(path + " has no function " + symbol + ". Declare it extern \"C\" void " + symbol +
                     "(miniray::Handle&)");
  return function;
}

void add_worker_server(CLI::App& app) {
  CLI::App* command = app.add_subcommand("worker-server", worker_server_description);
  auto options = std::make_shared<Options>();
  command->add_option("--host", options->host, "The address to listen on; 0.0.0.0: all of this machine's")
      ->capture_default_str();
  command->add_option("--port", options->port, "The port to listen on; 0: any free port")->capture_default_str();
  command->add_option("--workers", options->workers, "The largest number of workers at a time (0: no limit)");
  command->add_option("--message-bytes-max", options->message_bytes_max, "The largest message of a worker, in bytes");
  command->add_option(
      "--work-fn", options->work_fn,
      "./library.so:function, where the function is extern \"C\" void f(miniray::Handle&). Without this "
      "option, each connection must name its function");
  command->add_flag("--encrypt,!--no-encrypt", options->encrypt,
                    "Encrypt all connections, or none, which is for networks that you trust (default: those that leave "
                    "this machine). Clients must say the same");
  command->callback([options] { serve(*options); });
}

}  // namespace miniray::cli
