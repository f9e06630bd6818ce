#include "miniray/remote_worker.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "base/error_text.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "worker/connect_workers.hpp"
#include "worker/connector.hpp"
#include "worker/remote_process.hpp"
#include "worker/worker_state.hpp"

namespace miniray {

// The two connections of one worker, while they are being made.
struct ConnectorPair {
  std::unique_ptr<Connector> data, control;
  const RemoteAddress* address;
  int unreachable_ms;
};

namespace {

std::string server_name(const RemoteAddress& address) {
  if (!address.name.empty()) return address.name;
  return network::is_path(address.host) ? address.host : address.host + ":" + std::to_string(address.port);
}

Key key_of(const RemoteOptions& options) {
  if (options.own_key) return *options.own_key;
  return options.key.empty() ? Key::of_user() : Key::from_hex(options.key, "the argument key");
}

ConnectorPair begin(const RemoteAddress& address, const std::vector<network::Address>& resolved) {
  const RemoteOptions& options = address.options;
  const Key key = key_of(options);
  if (!(options.unreachable_s >= limits::unreachable_min_ms / 1000.0 &&
        options.unreachable_s <= limits::unreachable_max_ms / 1000.0))
    throw UsageError("unreachable_s is a number of seconds, 1 at least, not " + number_text(options.unreachable_s));
  Request request;
  request.token = random_hex(16);
  request.work_fn = options.work_fn;
  request.label = options.label;
  request.codec = options.worker.codec;
  // A program that forwards a Unix-domain socket to another machine does not forward descriptors.
  request.shared_memory = options.same_machine;
  request.spin_us = options.worker.spin_us;
  request.inbox_bytes_max = options.worker.inbox_bytes_max;
  request.message_bytes_max = options.worker.message_bytes_max;
  request.unreachable_ms = static_cast<int>(options.unreachable_s * 1000);
  request.environment = options.environment;
  request.cpus = options.cpus;
  Request control;
  control.kind = Request::Kind::control;
  control.token = request.token;
  control.unreachable_ms = request.unreachable_ms;
  const std::string where = server_name(address);
  ConnectorPair pair{std::make_unique<Connector>(resolved, where, key, request, options.encrypt),
                     std::make_unique<Connector>(resolved, where, key, control, options.encrypt), &address,
                     request.unreachable_ms};
  Connector::pair_up(*pair.data, *pair.control);
  return pair;
}

std::unique_ptr<Worker::State> finish(ConnectorPair& pair) {
  const RemoteAddress& address = *pair.address;
  const auto pid = static_cast<pid_t>(pair.data->answer()["pid"].integer());
  const std::string where = server_name(address);
  auto process = std::make_unique<RemoteProcess>(pair.control->take_socket(), pid, where, pair.unreachable_ms,
                                                 address.options.same_machine);
  SealedSocket line = pair.data->take_socket();
  network::notice_dead_peer(line.fileno(), pair.unreachable_ms);
  WorkerOptions options = address.options.worker;
  options.shared_memory = address.options.same_machine;
  const std::string& told = options.name.empty() ? address.options.work_fn : options.name;
  const std::string name = "worker " + std::to_string(pid) + " at " + where + (told.empty() ? "" : " (" + told + ")");
  return std::make_unique<Worker::State>(name, options, std::move(line), std::move(process));
}

// Opens the protected constructor of Worker to assemble().
struct Assembled : Worker {
  explicit Assembled(std::unique_ptr<State> state) : Worker(std::move(state)) {}
};

using States = std::vector<std::unique_ptr<Worker::State>>;

// Connects to at most limits::connects_at_once servers at the same time. A host is resolved once for all of its
// workers.
void connect_batch(std::span<const RemoteAddress> batch, std::size_t first, States& states,
                   std::vector<ConnectFailure>& failures) {
  std::vector<std::optional<ConnectorPair>> pairs(batch.size());
  std::vector<Connector*> connectors;
  double timeout_s = 0;
  std::map<std::pair<std::string, int>, std::vector<network::Address>> resolved;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    timeout_s = std::max<double>(timeout_s, batch[i].options.connect_timeout_s);
    try {
      auto& found = resolved[{batch[i].host, batch[i].port}];
      if (found.empty()) found = resolve(batch[i]);
      pairs[i] = begin(batch[i], found);
      connectors.insert(connectors.end(), {pairs[i]->control.get(), pairs[i]->data.get()});
    } catch (const Error&) {
      failures.push_back({first + i, std::current_exception()});
    }
  }
  connect_all(connectors, Deadline::in_seconds(timeout_s), batch[0].options.worker.on_interrupt);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    std::unique_ptr<Worker::State>& state = states.emplace_back();
    if (!pairs[i]) continue;
    const std::exception_ptr error =
        pairs[i]->data->failure() ? pairs[i]->data->failure() : pairs[i]->control->failure();
    if (error)
      failures.push_back({first + i, error});
    else
      state = finish(*pairs[i]);
  }
}

std::unique_ptr<Worker::State> connect_worker(const std::string& host, int port, const RemoteOptions& options) {
  const RemoteAddress address{host, port, options, {}, {}};
  std::vector<ConnectFailure> failures;
  States states = connect_workers(std::span(&address, 1), failures);
  if (!failures.empty()) std::rethrow_exception(failures.front().error);
  return std::move(states.front());
}

}  // namespace

std::vector<network::Address> resolve(const RemoteAddress& address) {
  std::vector<network::Address> all = network::resolve(address.host, address.port);
  if (address.other_host.empty()) return all;
  const std::vector<network::Address> more = network::resolve(address.other_host, address.port);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct WorkerConnection::State {
  explicit State(RemoteAddress to) : address(std::move(to)), pair(begin(address, resolve(address))) {}

  RemoteAddress address;
  ConnectorPair pair;
  ConnectPatience patience{Deadline::in_seconds(address.options.connect_timeout_s)};
};

WorkerConnection::WorkerConnection(RemoteAddress address) : state_(std::make_unique<State>(std::move(address))) {}

// A server reports a peer that asks for a worker and leaves before it has one. So this waits a moment for the answer.
WorkerConnection::~WorkerConnection() {
  const std::array connectors{state_->pair.control.get(), state_->pair.data.get()};
  const Deadline patience = Deadline::in_ms(limits::new_link_ms);
  while (!patience.passed() && !advance_all(connectors, state_->patience))
    (void)system::poll_many({}, limits::recruit_look_min_ms);
}

std::optional<Worker> WorkerConnection::advance() {
  ConnectorPair& pair = state_->pair;
  if (!advance_all(std::array{pair.control.get(), pair.data.get()}, state_->patience)) return std::nullopt;
  for (const Connector* connector : {pair.data.get(), pair.control.get()})
    if (connector->failure()) std::rethrow_exception(connector->failure());
  return assemble(finish(pair));
}

Worker assemble(std::unique_ptr<Worker::State> state) { return Assembled(std::move(state)); }

States connect_workers(std::span<const RemoteAddress> addresses, std::vector<ConnectFailure>& failures) {
  States states;
  states.reserve(addresses.size());
  for (std::size_t first = 0; first < addresses.size(); first += limits::connects_at_once)
    connect_batch(addresses.subspan(first, std::min(limits::connects_at_once, addresses.size() - first)), first, states,
                  failures);
  return states;
}

RemoteWorker::RemoteWorker(const std::string& host, int port, const RemoteOptions& options)
    : Worker(connect_worker(host, port, options)) {}

std::vector<Worker> create_remote_workers(const std::vector<RemoteAddress>& addresses) {
  std::vector<ConnectFailure> failures;
  States states = connect_workers(addresses, failures);
  if (!failures.empty()) std::rethrow_exception(failures.front().error);
  std::vector<Worker> workers;
  workers.reserve(addresses.size());
  for (auto& state : states) workers.push_back(assemble(std::move(state)));
  return workers;
}

}  // namespace miniray
