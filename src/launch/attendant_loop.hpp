// The attendant's own side: what runs in its process.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "launch/attendant.hpp"
#include "launch/line_stream.hpp"

namespace miniray {

/// Between the cluster and its attendant. From the cluster: these descriptors are yours, and so many bytes that were
/// read from them follow; or drop the node. To the cluster: the command of a node ended with this exit code.
struct AttendantNotice {
  static constexpr std::int32_t drop = -1;
  std::int32_t node, value;
};

/// The attendant's ends of a node's streams, for the command that it starts.
struct NodeEnds {
  std::string name;
  std::vector<std::string> command;
  Fd talk, errors;
};

/// Text for one of this process's standard descriptors, which others share: written when there is room, a few lines
/// at a time, so that a terminal that stands still stops nothing but itself.
class Printer {
 public:
  explicit Printer(int descriptor) : descriptor_(descriptor) {}
  void print(std::string_view text) { waiting_ += text; }
  [[nodiscard]] bool waiting() const { return !waiting_.empty(); }
  [[nodiscard]] bool full() const { return waiting_.size() > limits::output_queue_bytes_max; }
  [[nodiscard]] int fileno() const { return descriptor_; }
  void write_some();

 private:
  int descriptor_;
  std::string waiting_;
};

class AttendantLoop {
 public:
  AttendantLoop(std::vector<NodeEnds> ends, Fd news, std::string output_folder, int unreachable_ms);
  /// Returns when the cluster has finished and every node has.
  int run();

 private:
  struct Node {
    std::string name;
    ChildProcess command;
    bool ended = false;  // the command
    LineStream talk, errors;
    bool taken_over = false;
  };
  void start(std::size_t index, NodeEnds& ends);
  void hear_news();
  void take_over(std::size_t node, std::vector<Fd> descriptors, const std::string& rest);
  void drop(Node& node);
  void read_node(Node& node);
  void show(const std::string& line, const Node& node);
  void report(std::size_t node, int exit_code);
  void reap();
  [[nodiscard]] bool all_done() const;
  void turn();

  std::vector<Node> nodes_;
  Fd news_;
  std::string output_folder_;
  int heartbeat_ms_;
  Deadline next_heartbeat_ = Deadline::in_ms(0);
  bool finishing_ = false;
  Printer out_, errors_;
  std::map<std::string, std::ofstream> files_;
};

}  // namespace miniray
