// One message to many workers. It is encoded once by the caller; a large buffer goes to each node once, over a link to
// the node's server, and the workers' own messages only name it.
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

/// A link to a worker server, over which buffers for several of its workers go.
[[nodiscard]] Channel connect_link(const RemoteAddress& server);

class Broadcaster {
 public:
  /// The worker is on that node.
  void add(Worker& worker, std::size_t node) { node_of_[&worker.channel()] = {node, worker.pid()}; }
  void forget(Worker& worker) { node_of_.erase(&worker.channel()); }
  /// The node has a new server.
  void forget_server(std::size_t node) { links_.erase(node); }
  /// Nothing if it was never added.
  [[nodiscard]] std::optional<std::size_t> node_of(Worker& worker) const;
  /// To all of them, even if one cannot be reached; then throws what it threw. `server_of` says where a node's server
  /// is.
  void send(std::span<Worker* const> workers, const Message& message,
            const std::function<RemoteAddress(std::size_t node)>& server_of);

 private:
  Channel& link(std::size_t node, const std::function<RemoteAddress(std::size_t node)>& server_of);

  struct Place {
    std::size_t node;
    pid_t pid;  // another worker may be where one was that is gone
  };
  std::map<const Channel*, Place> node_of_;  // a channel stays where it is, though its worker is moved
  std::map<std::size_t, Channel> links_;
  std::uint64_t last_number_ = 0;
};

}  // namespace miniray
