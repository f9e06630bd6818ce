// One node on its way from a command to a server that is ready. Never waits: the cluster turns all of them at once.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "launch/attendant.hpp"
#include "launch/code_bundle.hpp"
#include "miniray/launch.hpp"
#include "miniray/value.hpp"

namespace miniray {

class NodeLaunch {
 public:
  /// `config` is what the server is told; `executable` what to send if the node's shell asks for a program.
  NodeLaunch(const NodeConfig& node, Value config, std::shared_ptr<const CodeBundle> code,
             std::shared_ptr<const std::string> executable);

  enum class Stage : std::uint8_t { connecting, sending_program, greeted, sending_code, importing, ready, failed };
  [[nodiscard]] Stage stage() const { return stage_; }
  [[nodiscard]] bool settled() const { return stage_ == Stage::ready || stage_ == Stage::failed; }
  /// Once nothing else is sent to it that these could fall into.
  [[nodiscard]] bool wants_heartbeats() const { return stage_ == Stage::importing || stage_ == Stage::ready; }
  /// Reads and writes as far as it can.
  void advance(Attendant::Streams& streams);
  /// Its command has ended.
  void command_ended(Attendant::Streams& streams, int exit_code);
  void give_up(std::string why);
  [[nodiscard]] const std::string& why() const { return why_; }
  /// What the server said when it was ready.
  [[nodiscard]] const Value& server() const { return server_; }
  /// What it complained of on the way.
  [[nodiscard]] const std::string& complaints() const { return complaints_; }
  /// For people: "connecting", "importing".
  [[nodiscard]] const char* stage_name() const;

 private:
  void read_complaints(LineStream& errors);
  void understand(const std::string& line, LineStream& talk);

  const NodeConfig& node_;
  Value config_;
  std::shared_ptr<const CodeBundle> code_;
  std::shared_ptr<const std::string> executable_;
  Stage stage_ = Stage::connecting;
  std::string why_, complaints_;
  Value server_;
};

}  // namespace miniray
