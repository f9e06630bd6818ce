// The attendant is a process that looks after a cluster's connections: it starts ssh for every node, prints what the
// workers there print, and sends heartbeats to the nodes' servers, so that the cluster's own process is free to compute
// or sleep. The attendant is a program of its own rather than a fork, because a fork would keep the memory of its
// parent. When the cluster's process ends in any way, the kernel kills the attendant and every ssh, and the servers
// end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/process.hpp"
#include "launch/launch_protocol.hpp"
#include "miniray/limits.hpp"

namespace miniray {

/// A message between the cluster and its attendant about one node.
struct AttendantNotice {
  enum class Kind : std::int32_t {
    hand_over,  ///< Two descriptors come with it, and `value` bytes follow it, which the cluster has read from the
                ///< first.
    workers,    ///< The node has had this many workers, whose labels are the node's name, "/" and a lower number.
    drop,       ///< The attendant kills the node's command.
    started,    ///< From the attendant, once: its process has reached attend().
    ended,      ///< From the attendant: the node's command has ended, and `value` is the exit code.
  };
  Kind kind;
  std::int32_t node, value;
};

/// The cluster's side: starts the attendant process and owns it.
class Attendant {
 public:
  struct Node {
    std::string name;
    std::vector<std::string> command;
  };
  struct Options {
    std::string output_folder;  // empty: standard output
    int unreachable_ms;
    std::vector<std::string> command;  // a program that passes its last two arguments, which are appended, to attend()
  };
  /// The standard streams of a node's command.
  struct Streams {
    LineStream talk;    // its input and output
    LineStream errors;  // its standard error
  };

  /// Starts the attendant, which starts the nodes' commands.
  Attendant(const std::vector<Node>& nodes, const Options& options);
  /// Kills the attendant and the commands that still run.
  ~Attendant();
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

  /// Returns the streams by node. The caller reads and writes them until hand_over().
  [[nodiscard]] std::vector<Streams>& streams() { return streams_; }
  /// Hands the node's streams over to the attendant process, which reads them from now on. Call it once for a node.
  void hand_over(std::size_t node);
  /// Tells the attendant how many workers the node has had, before it starts the last of them. Output for other workers
  /// is refused.
  void expect_workers(std::size_t node, int count);
  /// Kills the node's command, so that the server there sees the end of its stream. Other nodes are not disturbed.
  void drop(std::size_t node);
  /// Returns a descriptor that is readable when a command has ended.
  [[nodiscard]] int fileno() const { return control_.get(); }
  /// Returns the exit codes of the commands that have ended, by node; a negative one is a signal.
  const std::map<std::size_t, int>& exit_codes();
  /// Returns how the attendant's process ended if it never reached attend(): its program has another main() than it
  /// should have, or could not be run.
  [[nodiscard]] std::optional<ExitStatus> early_end();
  /// Tells the nodes' servers to end. To end several attendants quickly, call it on each, then finish() on each.
  void begin_finish();
  /// Tells the nodes' servers to end, and waits until everything that the workers printed is shown. Returns false if
  /// that was not so by the deadline.
  bool finish(const Deadline& deadline, const std::function<void()>& on_interrupt);

 private:
  void tell(const AttendantNotice& notice);
  void read_notices();

  std::vector<Streams> streams_;
  Fd control_;   // carries the orders as JSON first, then AttendantNotices in both directions
  Fd lifeline_;  // its end kills the attendant
  ChildProcess process_;
  bool started_ = false;  // the process has reached attend()
  std::map<std::size_t, int> exit_codes_;
  std::uint64_t generation_ = process_generation();
};

/// The attendant's side: runs until the cluster has finished. The arguments are the numbers of two descriptors. Returns
/// the exit code for the process.
int attend(int control, int lifeline);

}  // namespace miniray
