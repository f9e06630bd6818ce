#include "launch/node_launch.hpp"

#include "base/check.hpp"
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

void NodeLaunch::give_up(std::string why) {
  MINIRAY_CHECK(why_.empty() || stage_ == Stage::failed, node_.host, stage_);
  if (settled()) return;
  stage_ = Stage::failed;
  why_ = std::move(why);
}

void NodeLaunch::read_complaints(LineStream& errors) {
  if (!errors.ended()) errors.fill();
  complaints_ += errors.take_rest();
  if (complaints_.size() > limits::complaint_bytes_max)
    complaints_.erase(0, complaints_.size() - limits::complaint_bytes_max);
}

void NodeLaunch::advance(Attendant::Streams& streams) {
  if (settled()) return;
  read_complaints(streams.errors);
  streams.talk.fill();
  try {
    while (!settled()) {
      const std::optional<std::string> line = streams.talk.take_line();
      if (!line) break;
      understand(*line, streams.talk);
    }
  } catch (const Error& error) {
    give_up(error.what());
  }
  (void)streams.talk.flush();  // should nobody read it, the command's end says why
  if (stage_ == Stage::sending_code && streams.talk.unwritten_bytes() == 0) stage_ = Stage::importing;
}

void NodeLaunch::understand(const std::string& line, LineStream& talk) {
  MINIRAY_CHECK(!settled(), node_.host, stage_);  // what comes after belongs to whoever takes the stream over
  if (line == send_program_line) {
    stage_ = Stage::sending_program;
    talk.write(*executable_);
  } else if (line.starts_with(launch::hello)) {
    const Value hello = read_json_text(line.substr(launch::hello.size()));
    const std::string& theirs = hello["version"].string();
    if (theirs != version || hello["protocol"].integer() != protocol_version)
      return give_up("it has MiniRay " + theirs + ", and this machine " + version +
                     ". Install the same there: pip install miniray==" + version);
    stage_ = Stage::greeted;
    talk.write(write_json(config_) + "\n");
  } else if (line.starts_with(launch::need)) {
    stage_ = Stage::sending_code;
    const Value hashes = read_json_text(line.substr(launch::need.size()));
    for (const Value& hash : hashes.list()) talk.write(code_->content(hash.string()));
  } else if (line.starts_with(launch::importing)) {
    stage_ = Stage::importing;
  } else if (line.starts_with(launch::failed)) {
    give_up(read_json_text(line.substr(launch::failed.size()))["why"].string());
  } else if (line.starts_with(launch::ready)) {
    server_ = read_json_text(line.substr(launch::ready.size()));
    stage_ = Stage::ready;
  }  // else a login script said something
}

void NodeLaunch::command_ended(Attendant::Streams& streams, int exit_code) {
  advance(streams);  // its last words
  if (settled()) return;
  read_complaints(streams.errors);
  const bool ssh_was_killed = exit_code < 0 && !is_local(node_.host);
  give_up(stage_ >= Stage::greeted && !ssh_was_killed ? explain_early_end(exit_code, stage_name(), complaints_)
                                                      : explain_failure(node_, exit_code, complaints_));
}

}  // namespace miniray
