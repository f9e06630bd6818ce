// The launch of worker servers: NodeLaunch takes one node from the start of its command to a server that is ready, and
// BringUp does this for several nodes at the same time. Only BringUp::wait() waits. What a node sends is not trusted: a
// node that sends what launch_protocol.hpp does not allow, or too much, fails, and the others go on.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "channel/authentication.hpp"
#include "launch/attendant.hpp"
#include "launch/code_bundle.hpp"
#include "launch/launch_command.hpp"
#include "launch/progress.hpp"
#include "miniray/launch.hpp"
#include "miniray/value.hpp"

namespace miniray {

class NodeLaunch {
 public:
  struct Parts {
    Key key;       // of the node's server alone
    Value config;  // sent to the server
    std::shared_ptr<const CodeBundle> code;
    std::shared_ptr<const std::string> executable;  // sent to the node's shell if that asks for the program
    bool ships_program = false;                     // the shell may ask
  };
  /// `node` must outlive this object.
  NodeLaunch(const NodeConfig& node, Parts parts);

  enum class Stage : std::uint8_t { connecting, sending_program, greeted, sending_code, importing, ready, failed };
  [[nodiscard]] Stage stage() const { return stage_; }
  [[nodiscard]] bool settled() const { return stage_ == Stage::ready || stage_ == Stage::failed; }
  /// Returns true once nothing else is sent to the node, so that a heartbeat cannot get into the middle of a file.
  [[nodiscard]] bool wants_heartbeats() const { return stage_ == Stage::importing || stage_ == Stage::ready; }
  /// Handles what the node has sent, and sends what the node has asked for, as far as possible without waiting.
  void advance(Attendant::Streams& streams);
  /// Call it when the node's command has ended. The launch then fails, unless it is settled.
  void on_command_end(Attendant::Streams& streams, int exit_code);
  /// Call it when the attendant has ended early. The launch then fails, unless it is settled.
  void on_attendant_end(const ExitStatus& status) { fail(explain_attendant_end(status, runs())); }
  /// Makes the launch fail for this reason, unless it is settled.
  void fail(std::string why);
  /// Returns why the launch has failed.
  [[nodiscard]] const std::string& why() const { return why_; }
  /// Returns what the server said of itself when it was ready.
  [[nodiscard]] const Value& server() const { return server_; }
  /// Returns the last part of what the node's command printed to standard error.
  [[nodiscard]] const std::string& error_output() const { return error_output_; }
  /// Returns the stage in words for people: "connecting", "importing".
  [[nodiscard]] const char* stage_name() const;
  /// Returns what may keep the node in this stage, if that is known, to follow its name.
  [[nodiscard]] std::string hint() const;

 private:
  [[nodiscard]] Runs runs() const { return parts_.executable->empty() ? Runs::python : Runs::own_program; }
  [[nodiscard]] bool has_unsent() const { return !unsent_.empty() || !wanted_.empty(); }
  void read_error_output(LineStream& errors);
  void read_lines(LineStream& talk);
  bool handle_line(const std::string& line, LineStream& talk);  // returns whether the line may come now
  bool handle_hello(const Value& hello, LineStream& talk);
  void queue_files(const Value& hashes);
  void set_server(Value server);
  void send_some(LineStream& talk);
  void enter(Stage next);
  void check_invariants() const;

  const NodeConfig& node_;
  Parts parts_;
  std::string_view unsent_;         // the rest of what is being sent: the program, or content_
  std::string content_;             // of the file that is being sent
  std::deque<std::string> wanted_;  // hashes of the files that are sent next
  std::uint64_t chatter_bytes_ = 0;
  bool begun_importing_ = false;  // its server has said so
  Stage stage_ = Stage::connecting;
  std::string why_, error_output_;
  Value server_;
};

struct BringUpOptions {
  double timeout_s;
  const char* timeout_name;  // the name of the option that sets timeout_s, for the error text
  int unreachable_ms;
  bool progress;
  std::function<void()> on_interrupt;
};

class BringUp {
 public:
  /// The attendant's nodes, `launches` and `names` have the same order.
  BringUp(std::shared_ptr<Attendant> attendant, std::vector<NodeLaunch> launches, std::vector<std::string> names,
          BringUpOptions options);

  /// Advances every node as far as possible without waiting. Returns true when each node is ready or has failed. It
  /// also returns true when limits::failing_nodes_ms have passed since the first failure.
  [[nodiscard]] bool advance();
  /// Waits until advance() may have something to do.
  void wait() const;
  /// Returns the nodes that failed. Valid after advance() has returned true.
  [[nodiscard]] std::vector<ClusterError::Failure> failures() const;
  [[nodiscard]] const std::shared_ptr<Attendant>& attendant() const { return attendant_; }
  [[nodiscard]] const std::vector<NodeLaunch>& launches() const { return launches_; }

 private:
  void send_heartbeats();

  std::shared_ptr<Attendant> attendant_;
  std::vector<NodeLaunch> launches_;
  std::vector<std::string> names_;
  BringUpOptions options_;
  Deadline deadline_, heartbeat_;
  std::optional<Deadline> failing_until_;  // set by the first failure
  Progress progress_;
};

}  // namespace miniray
