// The worker servers of a cluster's nodes: launched together, and each can be launched again while the others go on.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "channel/authentication.hpp"
#include "launch/attendant.hpp"
#include "launch/bring_up.hpp"
#include "launch/code_bundle.hpp"
#include "launch/launch_command.hpp"
#include "launch/node_launch.hpp"
#include "launch/private_folder.hpp"
#include "miniray/launch.hpp"

namespace miniray {

class NodeServers {
 public:
  /// All three must outlive this. The options must name a program and an attendant when launch() is called.
  NodeServers(const std::vector<NodeConfig>& nodes, const std::vector<std::string>& names,
              const ClusterOptions& options);

  /// All nodes at once. Throws ClusterError, with nothing left running, if one fails.
  void launch(const std::string& work_fn);
  [[nodiscard]] bool launched() const { return launched_ != nullptr; }
  /// Ends what is left of the node's server, and puts another in its place. If that fails, the node has none.
  void relaunch(std::size_t node, double timeout_s);
  /// The same without waiting: begin it, then advance it until that returns true. ClusterError if it fails.
  void begin_relaunch(std::size_t node, double timeout_s);
  [[nodiscard]] bool advance_relaunch(std::size_t node);
  /// Ends all servers, and waits for what was printed. `soon`: those that take their time are cut off.
  void finish(bool soon = false);

  /// Throws UsageError if nothing was launched, and ClusterError if one of these nodes has no server.
  void require_up(const std::vector<std::size_t>& nodes) const;
  [[nodiscard]] const std::vector<LaunchedServer>& servers() const { return servers_; }
  [[nodiscard]] RemoteAddress address_of(std::size_t node) const;
  [[nodiscard]] bool tunnelled(std::size_t node) const;

 private:
  // What a node that is launched again must get too.
  struct Launched {
    ServerProgram program;
    CodeBundle code;
    std::shared_ptr<const std::string> executable;
    std::string executable_hash, work_fn;
  };
  struct Attended {
    std::shared_ptr<Attendant> attendant;  // of all nodes that were launched together
    std::size_t position = 0;              // among them
    int launches = 0;
    std::string why_down = {};
  };
  // A server on its way to take the place of another.
  struct Successor {
    double timeout_s;
    std::shared_ptr<Attendant> leaving;  // of the one before, if it attends no other node
    Deadline leaves_until = Deadline::in_ms(limits::failed_stop_ms);
    std::unique_ptr<BringUp> launch = {};  // once that has left
  };
  [[nodiscard]] std::unique_ptr<BringUp> begin_launch(const std::vector<std::size_t>& nodes, double timeout_s,
                                                      const char* timeout_name);
  void finish_launch(const std::vector<std::size_t>& nodes, const BringUp& launch);
  void take_over(std::size_t node, const NodeLaunch& launch);
  [[nodiscard]] std::vector<std::string> command_of(std::size_t node) const;
  [[nodiscard]] Value config_of(std::size_t node) const;
  [[nodiscard]] Tunnel tunnel_of(std::size_t node) const;
  [[nodiscard]] LaunchedServer server_of(std::size_t node, const Value& ready) const;

  const std::vector<NodeConfig>& nodes_;
  const std::vector<std::string>& names_;
  const ClusterOptions& options_;
  int unreachable_ms_ = limits::unreachable_ms;
  Key key_;
  std::string tunnel_token_;
  std::unique_ptr<PrivateFolder> folder_;
  std::shared_ptr<const Launched> launched_;
  std::vector<Attended> attended_;
  std::map<std::size_t, Successor> successors_;
  std::vector<LaunchedServer> servers_;
};

}  // namespace miniray
