#include "launch/node_launch.hpp"

#include <poll.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "launch/launch_command.hpp"
#include "launch/launch_protocol.hpp"
#include "miniray/error.hpp"
#include "miniray/version.hpp"
#include "wire/json_text.hpp"

namespace miniray {

NodeLaunch::NodeLaunch(const NodeConfig& node, Value config, std::shared_ptr<const CodeBundle> code,
                       std::shared_ptr<const std::string> executable)
    : node_(node), config_(std::move(config)), code_(std::move(code)), executable_(std::move(executable)) {
  MINIRAY_CHECK(code_ && executable_, node.host);
}

const char* NodeLaunch::stage_name() const {
  switch (stage_) {
    case Stage::connecting:
      return "connecting";
    case Stage::sending_program:
      return "sending the program";
    case Stage::greeted:
    case Stage::sending_code:
      return "sending code";
    case Stage::importing:
      return "importing";
    case Stage::ready:
      return "ready";
    case Stage::failed:
      return "failed";
  }
  return "";
}

std::string NodeLaunch::hint() const {
  return stage_ == Stage::connecting ? explain_silence(node_, runs()) : std::string();
}

void NodeLaunch::fail(std::string why) {
  MINIRAY_CHECK(why_.empty() || stage_ == Stage::failed, node_.host, stage_);
  if (settled()) return;
  stage_ = Stage::failed;
  why_ = std::move(why);
}

// Keeps the end of the text, where programs print the cause.
void NodeLaunch::read_error_output(LineStream& errors) {
  if (!errors.ended()) errors.fill();
  error_output_ += errors.take_rest();
  if (error_output_.size() > limits::complaint_bytes_max)
    error_output_.erase(0, error_output_.size() - limits::complaint_bytes_max);
}

void NodeLaunch::advance(Attendant::Streams& streams) {
  if (settled()) return;
  read_error_output(streams.errors);
  streams.talk.fill();
  try {
    while (!settled()) {
      const std::optional<std::string> line = streams.talk.take_line();
      if (!line) break;
      handle_line(*line, streams.talk);
    }
  } catch (const Error& error) {
    fail(error.what());
  }
  // If the command does not read its input any more, it has ended, and on_command_end() says why.
  (void)streams.talk.flush();
  // The last file is on its way, so heartbeats may follow.
  if (stage_ == Stage::sending_code && streams.talk.unwritten_bytes() == 0) stage_ = Stage::importing;
}

void NodeLaunch::handle_line(const std::string& line, LineStream& talk) {
  MINIRAY_CHECK(!settled(), node_.host, stage_);  // lines after "ready" belong to the attendant
  if (line == send_program_line) {
    stage_ = Stage::sending_program;
    talk.write(*executable_);
  } else if (line.starts_with(launch::hello)) {
    const Value hello = read_json_text(line.substr(launch::hello.size()));
    // Versions must be equal, even if both sides speak the same protocol.
    const std::string& theirs = hello["version"].string();
    if (theirs != version || hello["protocol"].integer() != protocol_version)
      return fail("the node has MiniRay " + theirs + ", but this machine has " + version +
                  ". Install the same version on the node: pip install miniray==" + version);
    stage_ = Stage::greeted;
    talk.write(write_json(config_) + "\n");
  } else if (line.starts_with(launch::need)) {
    stage_ = Stage::sending_code;
    const Value hashes = read_json_text(line.substr(launch::need.size()));
    for (const Value& hash : hashes.list()) talk.write(code_->content(hash.string()));
  } else if (line.starts_with(launch::importing)) {
    stage_ = Stage::importing;
  } else if (line.starts_with(launch::failed)) {
    fail(read_json_text(line.substr(launch::failed.size()))["why"].string());
  } else if (line.starts_with(launch::ready)) {
    server_ = read_json_text(line.substr(launch::ready.size()));
    stage_ = Stage::ready;
  }  // any other line is the output of a login script
}

void NodeLaunch::on_command_end(Attendant::Streams& streams, int exit_code) {
  advance(streams);  // it may have said why before it ended
  if (settled()) return;
  read_error_output(streams.errors);
  const bool ssh_was_killed = exit_code < 0 && !is_local(node_.host);
  fail(stage_ >= Stage::greeted && !ssh_was_killed ? explain_early_end(exit_code, stage_name(), error_output_)
                                                   : explain_failure(node_, exit_code, error_output_, runs()));
}

BringUp::BringUp(std::shared_ptr<Attendant> attendant, std::vector<NodeLaunch> launches, std::vector<std::string> names,
                 BringUpOptions options)
    : attendant_(std::move(attendant)),
      launches_(std::move(launches)),
      names_(std::move(names)),
      options_(std::move(options)),
      deadline_(Deadline::in_seconds(options_.timeout_s)),
      heartbeat_(Deadline::in_ms(options_.unreachable_ms / limits::heartbeats)),
      progress_(options_.progress) {
  MINIRAY_CHECK(attendant_->streams().size() == launches_.size() && names_.size() == launches_.size());
}

bool BringUp::advance() {
  std::vector<Attendant::Streams>& streams = attendant_->streams();
  for (std::size_t i = 0; i < launches_.size(); ++i) launches_[i].advance(streams[i]);
  for (const auto& [node, exit_code] : attendant_->exit_codes())
    launches_[node].on_command_end(streams[node], exit_code);
  // One failure fails the launch. The other nodes get some time to fail too, so that one error names all of them.
  if (!failing_until_ && std::ranges::find(launches_, NodeLaunch::Stage::failed, &NodeLaunch::stage) != launches_.end())
    failing_until_ = Deadline::in_ms(limits::failing_nodes_ms);
  if (deadline_.passed())
    for (NodeLaunch& launch : launches_)
      launch.fail("the node was not ready within " + std::to_string(static_cast<int>(options_.timeout_s)) + " s (" +
                  options_.timeout_name + "); it was " + launch.stage_name() + launch.hint() +
                  (launch.error_output().empty() ? "" : ", and printed:\n" + launch.error_output()));
  if (heartbeat_.passed()) send_heartbeats();
  std::vector<Progress::Entry> shown;
  for (std::size_t i = 0; i < launches_.size(); ++i)
    shown.push_back({names_[i], launches_[i].stage_name(), launches_[i].settled()});
  progress_.show(shown);
  return std::ranges::all_of(launches_, &NodeLaunch::settled) || (failing_until_ && failing_until_->passed());
}

void BringUp::send_heartbeats() {
  heartbeat_ = Deadline::in_ms(options_.unreachable_ms / limits::heartbeats);
  for (std::size_t i = 0; i < launches_.size(); ++i) {
    if (!launches_[i].wants_heartbeats()) continue;
    LineStream& talk = attendant_->streams()[i].talk;
    talk.write("\n");
    (void)talk.flush();
  }
}

void BringUp::wait() const {
  std::vector<pollfd> watched{{attendant_->fileno(), POLLIN, 0}};
  for (std::size_t i = 0; i < launches_.size(); ++i) {
    if (launches_[i].settled()) continue;
    const auto& [talk, errors] = attendant_->streams()[i];
    const int writing = talk.unwritten_bytes() > 0 ? POLLOUT : 0;
    watched.push_back({talk.ended() ? -1 : talk.input_fileno(), static_cast<short>(POLLIN | writing), 0});
    watched.push_back({errors.ended() ? -1 : errors.input_fileno(), POLLIN, 0});
  }
  (void)system::poll_many(watched, std::min(limits::launch_look_ms, deadline_.poll_ms(limits::wait_slice_ms)));
  if (options_.on_interrupt) options_.on_interrupt();
}

std::vector<ClusterError::Failure> BringUp::failures() const {
  std::vector<ClusterError::Failure> failures;
  for (std::size_t i = 0; i < launches_.size(); ++i)
    if (launches_[i].stage() == NodeLaunch::Stage::failed) failures.push_back({names_[i], launches_[i].why()});
  return failures;
}

}  // namespace miniray
