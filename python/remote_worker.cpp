// The parts of miniray.RemoteWorker and miniray.create_remote_workers that are in the core.
#include "miniray/remote_worker.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "conversation.hpp"
#include "key.hpp"
#include "ready_worker.hpp"

namespace miniray::python {

namespace {

RemoteOptions remote_options(const std::string& work_fn, std::shared_ptr<const Key> key, double connect_timeout_s,
                             double unreachable_s, std::map<std::string, std::string> environment,
                             std::optional<bool> encrypt, const std::string& codec, std::optional<int> spin_us,
                             std::uint64_t inbox_bytes_max, std::uint64_t message_bytes_max) {
  RemoteOptions options;
  options.work_fn = work_fn;
  options.own_key = std::move(key);
  options.connect_timeout_s = connect_timeout_s;
  options.unreachable_s = unreachable_s;
  options.environment = std::move(environment);
  options.encrypt = encrypt;
  options.worker = worker_options("", codec, false, spin_us, inbox_bytes_max, message_bytes_max);
  return options;
}

using Addresses = std::vector<std::pair<std::string, int>>;

}  // namespace

void bind_remote_worker(nb::module_& module) {
  using namespace nb::literals;
  // A worker that other code of the core has made. The constructor of miniray.Worker takes it over.
  nb::class_<ReadyWorker>(module, "_ReadyWorker");
  module.def(
      "_connect",
      [](const Addresses& addresses, const std::string& work_fn, nb::handle key, double connect_timeout_s,
         double unreachable_s, std::map<std::string, std::string> environment, std::optional<bool> encrypt,
         const std::string& codec, std::optional<int> spin_us, std::uint64_t inbox_bytes_max,
         std::uint64_t message_bytes_max) {
        const RemoteOptions options =
            remote_options(work_fn, key_from(key), connect_timeout_s, unreachable_s, std::move(environment), encrypt,
                           codec, spin_us, inbox_bytes_max, message_bytes_max);
        std::vector<RemoteAddress> all;
        all.reserve(addresses.size());
        for (const auto& [host, port] : addresses) all.push_back({host, port, options, {}, {}});
        std::vector<Worker> workers;
        {
          const nb::gil_scoped_release released;
          workers = create_remote_workers(all);
        }
        return wrap_ready(std::move(workers));
      },
      "addresses"_a, "work_fn"_a, "key"_a, "connect_timeout_s"_a, "unreachable_s"_a, "environment"_a,
      "encrypt"_a.none(), "codec"_a, "spin_us"_a.none(), "inbox_bytes_max"_a, "message_bytes_max"_a,
      nb::sig("def _connect(addresses: list[tuple[str, int]], work_fn: str, key: str | _Key, connect_timeout_s: float, "
              "unreachable_s: float, environment: dict[str, str], encrypt: bool | None, codec: str, spin_us: int | "
              "None, inbox_bytes_max: int, message_bytes_max: int) -> list[_ReadyWorker]"));
  module.def(
      "_connect_to_fork_server",
      [](std::size_t count, const std::string& socket, const KeyHandle& key, std::optional<int> spin_us,
         std::uint64_t message_bytes_max) {
        const std::vector<RemoteAddress> all(count, fork_server_address(socket, key.key, spin_us, message_bytes_max));
        std::vector<Worker> workers;
        {
          const nb::gil_scoped_release released;
          workers = create_remote_workers(all);
        }
        return wrap_ready(std::move(workers));
      },
      "count"_a, "socket"_a, "key"_a, "spin_us"_a.none(), "message_bytes_max"_a,
      nb::sig("def _connect_to_fork_server(count: int, socket: str, key: _Key, spin_us: int | None, "
              "message_bytes_max: int) -> list[_ReadyWorker]"));
}

RemoteAddress fork_server_address(const std::string& socket, std::shared_ptr<const Key> key, std::optional<int> spin_us,
                                  std::uint64_t message_bytes_max) {
  RemoteOptions options =
      remote_options("", std::move(key), limits::connect_timeout_ms / 1000.0, limits::unreachable_ms / 1000.0, {}, {},
                     "msgpack", spin_us, limits::inbox_bytes_max, message_bytes_max);
  options.same_machine = true;
  return {socket, 0, std::move(options), "localhost", {}};
}

nb::list wrap_ready(std::vector<Worker> workers) {
  nb::list ready;
  for (Worker& worker : workers) ready.append(nb::cast(ReadyWorker{std::make_unique<Worker>(std::move(worker))}));
  return ready;
}

}  // namespace miniray::python
