#include "cluster/probe.hpp"

#include <poll.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/clock.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "cluster/dial.hpp"
#include "miniray/error.hpp"
#include "miniray/version.hpp"

namespace miniray {
namespace {

constexpr int token_bytes = 8;  // in hexadecimal, 16 characters

Value machine_facts() {
  const Machine machine = discover_machine();
  List gpus, numa_nodes, notes;
  for (const Gpu& gpu : machine.gpus)
    gpus.push_back({{"index", gpu.index},
                    {"name", gpu.name},
                    {"uuid", gpu.uuid},
                    {"pci_address", gpu.pci_address},
                    {"memory_bytes", gpu.memory_bytes},
                    {"numa_node", gpu.numa_node},
                    {"visible_as", gpu.visible_as}});
  for (const NumaNode& node : machine.numa_nodes) {
    List cpus;
    for (const int cpu : node.cpus) cpus.emplace_back(cpu);
    numa_nodes.push_back({{"index", node.index}, {"cpus", Value(std::move(cpus))}});
  }
  for (const std::string& note : machine.notes) notes.emplace_back(note);
  return {{"gpus", Value(std::move(gpus))},
          {"numa_nodes", Value(std::move(numa_nodes))},
          {"driver", machine.driver_version},
          {"notes", Value(std::move(notes))}};
}

List addresses_of(const std::string& host) {
  List found;
  try {
    for (const network::Address& address : network::resolve(host, 0)) found.emplace_back(address.host());
  } catch (const UnknownHost&) {
  }
  return found;
}

Value facts(const std::string& token) {
  List interfaces;
  for (const network::Interface& each : network::interfaces())
    interfaces.push_back({{"name", each.name}, {"host", each.host}, {"loopback", each.loopback}});
  utsname kernel{};
  (void)uname(&kernel);
  const std::string name = network::host_name();
  const system::Room memory = system::room_at("/dev/shm");
  const char* gloo = std::getenv("GLOO_SOCKET_IFNAME");
  std::error_code none;
  return {{"token", token},
          {"machine_id", network::machine_id()},
          {"reached_at", network::ssh_arrived_at()},
          {"host_name", name},
          {"host_name_means", Value(addresses_of(name))},
          {"kernel", kernel.release},
          {"miniray", version},
          {"machine", machine_facts()},
          {"interfaces", Value(std::move(interfaces))},
          {"gloo_interface", gloo != nullptr ? Value(gloo) : Value()},
          {"infiniband", std::filesystem::exists("/sys/class/infiniband", none)},
          {"shared_memory_bytes", memory.total_bytes},
          {"shared_memory_free_bytes", memory.free_bytes},
          {"open_files_max", system::descriptor_limit()},
          {"locked_memory_bytes_max", system::locked_memory_limit()}};
}

class Probe {
 public:
  explicit Probe(Handle& handle) : handle_(handle), token_(random_hex(token_bytes)) {}

  void run() {
    while (true) {
      while (const std::optional<Message> order = handle_.channel().try_receive()) execute(decode(*order));
      wait();
      answer_dials();
      finish_dials();
    }
  }

 private:
  void execute(const Value& order) {
    const std::string& command = order["cmd"].string();
    if (command == "machine") return handle_.send(machine_facts());
    if (command == "facts") return handle_.send(facts(token_));
    if (command == "clock") return handle_.send({{"now_ns", system::time_of_day_ns()}});
    if (command == "resolve") return handle_.send(resolve(order["host"].string()));
    if (command == "listen") return handle_.send(listen(order));
    if (command == "dial") return dial(order);  // finish_dials() answers: meanwhile others may dial this probe
    if (command == "close") {
      listeners_.clear();
      return handle_.send(Value(Map{}));
    }
    throw UsageError("a probe has no command \"" + command + "\"");
  }

  static Value resolve(const std::string& host) {
    const std::int64_t begun_ns = now_ns();
    List found = addresses_of(host);
    return {{"found", Value(std::move(found))}, {"seconds", static_cast<double>(now_ns() - begun_ns) / 1e9}};
  }

  Value listen(const Value& order) {
    const int wanted = static_cast<int>(order["port"].integer());
    try {
      Fd listener = listen_anywhere(wanted);
      const int port = network::local_port(listener.get());
      listeners_.push_back(std::move(listener));
      return {{"port", port}};
    } catch (const SystemError& error) {
      if (error.error_number() == EADDRINUSE) return {{"error", "is taken by " + network::owner_of_port(wanted)}};
      return {{"error", "cannot be listened on: " + std::string(error.what())}};
    }
  }

  static Fd listen_anywhere(int port) {
    try {
      return network::listen(network::resolve("::", port).front());  // accepts IPv4 connections too
    } catch (const SystemError& error) {
      if (error.error_number() == EADDRINUSE) throw;  // any other error: this machine may have no IPv6
      return network::listen(network::resolve("0.0.0.0", port).front());
    }
  }

  void dial(const Value& order) {
    dials_.add(order["to"].list(), static_cast<int>(order["timeout_ms"].integer()));
    dialling_ = true;
  }

  void wait() {
    std::vector<pollfd> watched = dials_.interests();
    const std::size_t dials = watched.size();
    watched.push_back({handle_.fileno(), POLLIN, 0});
    for (const Fd& listener : listeners_) watched.push_back({listener.get(), POLLIN, 0});
    const bool done = dialling_ && dials_.done();
    (void)system::poll_many(watched, done ? 0 : dials_.poll_ms(limits::wait_slice_ms));
    if (dials > 0) dials_.advance(watched.data());
  }

  void answer_dials() {
    for (const Fd& listener : listeners_) {
      while (const std::optional<network::Accepted> dialler = network::accept(listener.get()))
        (void)system::write_some(dialler->socket.get(), token_);  // fits into the empty buffer; then it is closed
    }
  }

  void finish_dials() {
    if (!dialling_ || !dials_.done()) return;
    List outcomes;
    for (std::string& outcome : dials_.take()) outcomes.emplace_back(std::move(outcome));
    dialling_ = false;
    handle_.send({{"outcomes", Value(std::move(outcomes))}});
  }

  Handle& handle_;
  std::string token_;
  std::vector<Fd> listeners_;
  Dials dials_;
  bool dialling_ = false;
};

}  // namespace

void run_probe(Handle& handle) { Probe(handle).run(); }

Machine machine_from(const Value& told) {
  Machine machine;
  for (const Value& each : told["gpus"].list()) {
    Gpu& gpu = machine.gpus.emplace_back();
    gpu.index = static_cast<int>(each["index"].integer());
    gpu.name = each["name"].string();
    gpu.uuid = each["uuid"].string();
    gpu.pci_address = each["pci_address"].string();
    gpu.memory_bytes = each["memory_bytes"].unsigned_integer();
    gpu.numa_node = static_cast<int>(each["numa_node"].integer());
    gpu.visible_as = each["visible_as"].string();
  }
  for (const Value& each : told["numa_nodes"].list()) {
    NumaNode& node = machine.numa_nodes.emplace_back();
    node.index = static_cast<int>(each["index"].integer());
    for (const Value& cpu : each["cpus"].list()) node.cpus.push_back(static_cast<int>(cpu.integer()));
  }
  machine.driver_version = told["driver"].string();
  for (const Value& note : told["notes"].list()) machine.notes.push_back(note.string());
  return machine;
}

}  // namespace miniray
