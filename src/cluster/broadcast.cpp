#include "cluster/broadcast.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "channel/authentication.hpp"
#include "miniray/array.hpp"
#include "miniray/cluster.hpp"
#include "miniray/error.hpp"
#include "worker/connect_workers.hpp"
#include "worker/connector.hpp"

namespace miniray {

Channel connect_link(const RemoteAddress& server) {
  const std::function<void()>& on_interrupt = server.options.worker.on_interrupt;
  Request request;
  request.kind = Request::Kind::link;
  request.unreachable_ms = static_cast<int>(server.options.unreachable_s * 1000);
  MINIRAY_CHECK(server.options.own_key, server.name);
  Connector connector(resolve(server), server.name, *server.options.own_key, request, server.options.encrypt);
  std::array<Connector*, 1> all{&connector};
  connect_all(all, Deadline::in_seconds(server.options.connect_timeout_s), on_interrupt);
  if (connector.failure()) std::rethrow_exception(connector.failure());
  ChannelOptions options;
  options.peer = "the server at " + server.name;
  options.shared_memory = false;
  options.on_interrupt = on_interrupt;
  SealedSocket line = connector.take_socket();
  options.seal = std::move(line.seal);
  return Channel(line.socket.release(), std::move(options));
}

Channel& Broadcaster::link(std::size_t node, const std::function<RemoteAddress(std::size_t node)>& server_of) {
  const auto known = links_.find(node);
  if (known != links_.end()) return known->second;
  return links_.emplace(node, connect_link(server_of(node))).first->second;
}

std::optional<std::size_t> Broadcaster::node_of(Worker& worker) const {
  const auto known = node_of_.find(&worker.channel());
  if (known == node_of_.end() || known->second.pid != worker.pid()) return std::nullopt;
  return known->second.node;
}

void Broadcaster::send(std::span<Worker* const> workers, const Message& message,
                       const std::function<RemoteAddress(std::size_t node)>& server_of) {
  const Unsupervised tells_of_deaths(workers);  // a restart of one worker must not delay the others
  std::map<std::size_t, std::vector<Worker*>> by_node;
  std::vector<Worker*> elsewhere;
  for (Worker* worker : workers) {
    const std::optional<std::size_t> node = node_of(*worker);
    if (!node)
      elsewhere.push_back(worker);
    else if (!worker->channel().closed())
      by_node[*node].push_back(worker);
  }

  // Each large buffer gets a number, which is the same on every node.
  Message named = message;
  List numbers, buffers;
  named.places.resize(message.buffers.size());
  for (std::size_t i = 0; i < message.buffers.size(); ++i) {
    if (message.buffers[i].size < limits::shared_buffer_bytes_min) continue;
    numbers.emplace_back(++last_number_);
    named.places[i] = BufferPlace::supplied(last_number_);
    buffers.emplace_back(Array::view(std::span<const std::uint8_t>(
        reinterpret_cast<const std::uint8_t*>(message.buffers[i].data), message.buffers[i].size)));
  }

  // The first failure is thrown at the end, when all workers that can be reached have the message.
  std::exception_ptr failure;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const Error&) {
      if (!failure) failure = std::current_exception();
    }
  };
  for (auto& [node, there] : by_node) {
    bool supplied = false;
    if (!numbers.empty() && there.size() > 1) {  // for a single worker, a link would save nothing
      List pids;
      for (const Worker* worker : there) pids.emplace_back(static_cast<std::int64_t>(worker->pid()));
      try {
        link(node, server_of)
            .send(Value{{"numbers", Value(numbers)}, {"workers", Value(std::move(pids))}, {"buffers", Value(buffers)}});
        supplied = true;
      } catch (const Error&) {  // each worker gets its own copy instead; if it died, that send throws
        links_.erase(node);
      }
    }
    for (Worker* worker : there) attempt([&] { worker->send(supplied ? named : message); });
  }
  for (Worker* worker : elsewhere) attempt([&] { worker->send(message); });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace miniray
