// NodeServers owns the worker servers of a cluster's nodes. It launches them together, and can launch one of them again
// while the others keep running.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "channel/authentication.hpp"
#include "launch/attendant.hpp"
#include "launch/code_bundle.hpp"
#include "launch/launch_command.hpp"
#include "launch/node_launch.hpp"
#include "launch/private_folder.hpp"
#include "miniray/launch.hpp"

namespace miniray {

class NodeServers {
 public:
  /// The three arguments must outlive this object. When launch() is called, the options must have a program and an
  /// attendant.
  NodeServers(const std::vector<NodeConfig>& nodes, const std::vector<std::string>& names,
              const ClusterOptions& options);

  /// Launches the servers of all nodes at the same time. Throws ClusterError, with nothing left running, if one fails.
  void launch(const std::string& work_fn);
  [[nodiscard]] bool launched() const { return launched_ != nullptr; }
  /// Ends what is left of the node's server, and launches another. Throws ClusterError if that fails; the node then has
  /// no server.
  void relaunch(std::size_t node, double timeout_s);
  /// These two do the same without waiting: call begin_relaunch() once, and then advance_relaunch() until it returns
  /// true or throws.
  void begin_relaunch(std::size_t node, double timeout_s);
  [[nodiscard]] bool advance_relaunch(std::size_t node);
  /// Ends all servers, and waits until everything that the workers printed is shown. With `soon`, it waits for only
  /// limits::failed_stop_ms, then kills.
  void finish(bool soon = false);

  /// Waits for those of these nodes that are being launched again, because a pool may have begun it and ended since.
  /// Throws what require_up() and relaunch() throw.
  void finish_relaunches(const std::vector<std::size_t>& nodes);
  /// Throws UsageError if nothing was launched, and ClusterError if one of these nodes has no server.
  void require_up(const std::vector<std::size_t>& nodes) const;
  [[nodiscard]] const std::vector<LaunchedServer>& servers() const { return servers_; }
  /// Tells the attendant that the node has had this many workers, before the last of them is started.
  void expect_workers(std::size_t node, int count);
  /// Returns the address of the node's server, with its key and the cluster's options.
  [[nodiscard]] RemoteAddress address_of(std::size_t node) const;
  [[nodiscard]] bool tunnelled(std::size_t node) const;

 private:
  // What was launched. It is kept for a node that is launched again.
  struct Launched {
    ServerProgram program;
    CodeBundle code;
    std::shared_ptr<const std::string> executable;
    std::string executable_hash, work_fn;
  };
  struct Attended {
    std::shared_ptr<Attendant> attendant;  // shared by all nodes that were launched together; null: no server is up
    std::size_t position = 0;              // the node's position in that attendant
    int launches = 0;
    std::shared_ptr<const Key> key;  // of this launch's server alone, so that one node cannot use another
    std::string tunnel_token;        // makes the name of the socket on the node new
    std::string why_down = {};
  };
  // A relaunch under way.
  struct Relaunch {
    double timeout_s;
    std::shared_ptr<Attendant> old_attendant;  // of the old server, if it attends no other node
    Deadline old_ends_until = Deadline::in_ms(limits::failed_stop_ms);
    std::unique_ptr<BringUp> launch = {};  // null until the old attendant has ended
  };
  [[nodiscard]] bool ships_program(std::size_t node) const;
  [[nodiscard]] std::unique_ptr<BringUp> begin_launch(const std::vector<std::size_t>& nodes, double timeout_s,
                                                      const char* timeout_name);
  void finish_launch(const std::vector<std::size_t>& nodes, const BringUp& launch);
  void set_up_server(std::size_t node, const NodeLaunch& launch);
  [[nodiscard]] std::vector<std::string> command_of(std::size_t node) const;
  [[nodiscard]] Value config_of(std::size_t node) const;
  [[nodiscard]] Tunnel tunnel_of(std::size_t node) const;
  [[nodiscard]] LaunchedServer server_of(std::size_t node, const Value& ready) const;

  const std::vector<NodeConfig>& nodes_;
  const std::vector<std::string>& names_;
  const ClusterOptions& options_;
  int unreachable_ms_ = limits::unreachable_ms;
  std::unique_ptr<PrivateFolder> folder_;
  std::shared_ptr<const Launched> launched_;
  std::vector<Attended> attended_;
  std::map<std::size_t, Relaunch> relaunches_;
  std::vector<LaunchedServer> servers_;
};

}  // namespace miniray
