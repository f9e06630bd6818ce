// The process that attends a cluster's connections: it starts ssh for every node, prints what workers print there, and
// tells the nodes' servers now and then that the cluster still lives. The cluster's own process is thus free to compute
// or to sleep. It is a program of its own and no fork, which would hold on to the memory of the process that it came
// from. When that ends, however it does, the kernel kills the attendant and every ssh, and so the servers end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/process.hpp"
#include "launch/line_stream.hpp"
#include "miniray/limits.hpp"

namespace miniray {

/// Between the cluster and its attendant. From the cluster: these descriptors are yours, and so many bytes that were
/// read from them follow; or drop the node. To the cluster: the command of a node ended with this exit code.
struct AttendantNotice {
  static constexpr std::int32_t drop = -1;
  std::int32_t node, value;
};

class Attendant {
 public:
  struct Node {
    std::string name;
    std::vector<std::string> command;
  };
  struct Options {
    std::string output_folder;  // empty: standard output
    int unreachable_ms;
    std::vector<std::string> command;  // a program that calls attend() with the two numbers that are added
  };
  /// What a node's command says.
  struct Streams {
    LineStream talk, errors;
  };

  Attendant(const std::vector<Node>& nodes, const Options& options);
  /// Kills whatever is left.
  ~Attendant();
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

  [[nodiscard]] std::vector<Streams>& streams() { return streams_; }
  /// The attendant reads these from now on.
  void take_over(std::size_t node);
  /// The node's command is ended, and what it started there sees the end of its stream; the others go on.
  void drop(std::size_t node);
  /// Readable when a command has ended.
  [[nodiscard]] int fileno() const { return news_.get(); }
  /// The exit codes of the commands that have ended, by node.
  const std::map<std::size_t, int>& exit_codes();
  /// The first half of finish(): for who ends several, and then waits for all.
  void tell_to_finish();
  /// The nodes' servers are told to end; waits until all that was printed is shown. False if it took too long.
  bool finish(const Deadline& deadline, const std::function<void()>& on_interrupt);

 private:
  std::vector<Streams> streams_;
  Fd news_, lifeline_;
  ChildProcess process_;
  std::map<std::size_t, int> exit_codes_;
  std::uint64_t generation_ = process_generation();
};

/// What the attendant's program does. Returns its exit code.
int attend(int news, int lifeline);

}  // namespace miniray
