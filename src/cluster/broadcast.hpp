// The Broadcaster sends one encoded message to many workers. A large buffer crosses the network once for each node,
// over a link to the node's server; the messages to the workers only name it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "miniray/channel.hpp"
#include "miniray/message.hpp"
#include "miniray/remote_worker.hpp"
#include "miniray/worker.hpp"

namespace miniray {

/// Connects to a worker server to send buffers for several of its workers. Throws Refused, UnknownHost or TimeoutError.
[[nodiscard]] Channel connect_link(const RemoteAddress& server);

class Broadcaster {
 public:
  /// Registers a worker of this node.
  void add(Worker& worker, std::size_t node) { node_of_[&worker.channel()] = {node, worker.pid()}; }
  void drop(Worker& worker) { node_of_.erase(&worker.channel()); }
  /// Drops the link to the node's server, because the node gets a new server.
  void drop_link(std::size_t node) { links_.erase(node); }
  /// Returns the node of a registered worker; nullopt if it is not registered.
  [[nodiscard]] std::optional<std::size_t> node_of(Worker& worker) const;
  /// Sends the message to all workers, also to those that are not registered. If some cannot be reached, the others
  /// still get the message, and send() then throws the first error. `server_of` returns the address of a node's server.
  void send(std::span<Worker* const> workers, const Message& message,
            const std::function<RemoteAddress(std::size_t node)>& server_of);

 private:
  Channel& link(std::size_t node, const std::function<RemoteAddress(std::size_t node)>& server_of);

  struct Place {
    std::size_t node;
    pid_t pid;  // tells a registered worker from another whose channel has the same address in memory
  };
  std::map<const Channel*, Place> node_of_;  // a channel keeps its address when its Worker object is moved
  std::map<std::size_t, Channel> links_;
  std::uint64_t last_number_ = 0;
};

}  // namespace miniray
