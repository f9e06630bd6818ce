#include "launch/node_launch.hpp"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "base/check.hpp"
#include "base/shown_text.hpp"
#include "base/system.hpp"
#include "launch/launch_command.hpp"
#include "launch/launch_protocol.hpp"
#include "miniray/error.hpp"
#include "miniray/version.hpp"
#include "wire/json_text.hpp"

namespace miniray {

namespace {

// Returns what a line has after its keyword.
Value told(std::string_view line, std::string_view keyword) { return read_json_text(line.substr(keyword.size())); }

// An address that a server was reached at has only these characters. Another text could be the path of a socket on this
// machine.
bool is_numeric_address(const std::string& text) {
  constexpr std::size_t longest_address = 64;
  return !text.empty() && text.size() <= longest_address &&
         text.find_first_not_of("0123456789abcdefABCDEF.:%") == std::string::npos;
}

}  // namespace

NodeLaunch::NodeLaunch(const NodeConfig& node, Parts parts) : node_(node), parts_(std::move(parts)) {
  MINIRAY_CHECK(parts_.code && parts_.executable, node.host);
  MINIRAY_CHECK(!parts_.ships_program || !parts_.executable->empty(), node.host);
}

// A launch never goes back to an earlier stage, and a settled one stays as it is.
void NodeLaunch::enter(Stage next) {
  MINIRAY_CHECK(!settled() && next >= stage_, node_.host, stage_, next);
  stage_ = next;
}

// Holds after each advance(), whatever the node has sent.
void NodeLaunch::check_invariants() const {
  MINIRAY_CHECK(why_.empty() || stage_ == Stage::failed, node_.host, stage_, why_);
  MINIRAY_CHECK(!has_unsent() || !wants_heartbeats(), node_.host, stage_, wanted_.size());
  MINIRAY_CHECK(
      unsent_.empty() || stage_ == Stage::sending_program || stage_ == Stage::sending_code || stage_ == Stage::failed,
      node_.host, stage_, unsent_.size());
  MINIRAY_CHECK(stage_ != Stage::ready || begun_importing_, node_.host);
  MINIRAY_CHECK(error_output_.size() <= limits::complaint_bytes_max, node_.host, error_output_.size());
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
  if (settled()) return;
  enter(Stage::failed);
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
    read_lines(streams.talk);
    send_some(streams.talk);
  } catch (const Error& error) {
    fail(shown(error.what(), Colours::escape));
  }
  // The last file is on its way, so heartbeats may follow.
  if (stage_ == Stage::sending_code && !has_unsent() && streams.talk.unwritten_bytes() == 0) enter(Stage::importing);
  check_invariants();
}

void NodeLaunch::read_lines(LineStream& talk) {
  while (!settled()) {
    const std::optional<std::string> line = talk.take_line();
    if (!line) break;
    bool allowed = false;
    try {
      allowed = handle_line(*line, talk);
    } catch (const Error& error) {
      throw ProtocolError("its server sent something that makes no sense: " + in_quotes(*line) + " (" + error.what() +
                          ")");
    }
    if (!allowed && !settled())
      fail("its server sent " + in_quotes(*line) + " while it was " + stage_name() +
           ", where the protocol does not allow it. Is another program or another MiniRay in place of its server?");
  }
  if (!settled() && talk.line_too_long())
    fail("it sent a line of more than " + std::to_string(limits::launch_line_bytes_max / limits::mib) +
         " MiB: " + in_quotes(talk.unread()) + ". Does a login script print without end?");
}

// Sends the program and the files piece by piece, so that a node which asks and does not read takes no memory here. If
// the command does not read its input any more, it has ended, and on_command_end() says why.
void NodeLaunch::send_some(LineStream& talk) {
  while (talk.flush() && !settled() && has_unsent() && talk.unwritten_bytes() < limits::launch_queue_bytes_max) {
    if (unsent_.empty()) {
      MINIRAY_CHECK(!wanted_.empty() && parts_.code->has(wanted_.front()), node_.host, wanted_.size());
      content_ = parts_.code->content(wanted_.front());
      unsent_ = content_;
      wanted_.pop_front();
    }
    const std::string_view piece = unsent_.substr(0, limits::launch_queue_bytes_max);
    talk.write(piece);
    unsent_.remove_prefix(piece.size());
  }
  if (!has_unsent()) content_ = {};
}

bool NodeLaunch::handle_line(const std::string& line, LineStream& talk) {
  MINIRAY_CHECK(!settled(), node_.host, stage_);  // lines after "ready" belong to the attendant
  const bool has_config = stage_ >= Stage::greeted;
  if (line == send_program_line) {
    if (stage_ != Stage::connecting || !parts_.ships_program) return false;
    enter(Stage::sending_program);
    unsent_ = *parts_.executable;
  } else if (line.starts_with(launch::hello)) {
    if (has_config) return false;
    return handle_hello(told(line, launch::hello), talk);
  } else if (line.starts_with(launch::need)) {
    if (stage_ != Stage::greeted || begun_importing_) return false;
    queue_files(told(line, launch::need));
    enter(Stage::sending_code);
  } else if (line.starts_with(launch::importing)) {
    if (!has_config || begun_importing_ || has_unsent()) return false;
    begun_importing_ = true;
    enter(Stage::importing);
  } else if (line.starts_with(launch::failed)) {
    fail(shown(told(line, launch::failed)["why"].string(), Colours::escape));
  } else if (line.starts_with(launch::ready)) {
    if (!begun_importing_) return false;
    set_server(told(line, launch::ready));
    enter(Stage::ready);
  } else {  // the output of a login script
    chatter_bytes_ += line.size() + 1;
    if (chatter_bytes_ > limits::launch_chatter_bytes_max)
      fail("it printed more than " + std::to_string(limits::launch_chatter_bytes_max / limits::mib) +
           " MiB before its server was ready, at last " + in_quotes(line) + ". Does a login script print without end?");
  }
  return true;
}

bool NodeLaunch::handle_hello(const Value& hello, LineStream& talk) {
  if (has_unsent() || talk.unwritten_bytes() > 0) return false;  // it has not read the program yet
  // Versions must be equal, even if both sides speak the same protocol.
  const std::string& theirs = hello["version"].string();
  if (theirs != version || hello["protocol"].integer() != protocol_version) {
    fail("the node has MiniRay " + shown(theirs.substr(0, limits::quoted_bytes_max), Colours::escape) +
         ", but this machine has " + version +
         ". Install the same version on the node: pip install miniray==" + version);
    return true;
  }
  enter(Stage::greeted);
  if (!talk.write_secret(parts_.key.secret_hex()))
    fail("its server does not read what it is sent");  // unless the command has ended, which is then the cause
  else
    talk.write(write_json(parts_.config) + "\n");
  return true;
}

void NodeLaunch::queue_files(const Value& hashes) {
  std::set<std::string> asked;
  for (const Value& hash : hashes.list()) {
    if (!parts_.code->has(hash.string()) || !asked.insert(hash.string()).second)
      throw ProtocolError("it asked for a file that is not in the bundle of code, or twice for the same: " +
                          in_quotes(hash.string()));
    wanted_.push_back(hash.string());
  }
}

void NodeLaunch::set_server(Value server) {
  const std::int64_t port = server["port"].integer();
  if (port < 0 || port > UINT16_MAX) throw ProtocolError("its port is " + std::to_string(port));
  if (!is_numeric_address(server["address"].string()))
    throw ProtocolError("its address is " + in_quotes(server["address"].string()));
  (void)server["pid"].integer();
  server_ = std::move(server);
}

void NodeLaunch::on_command_end(Attendant::Streams& streams, int exit_code) {
  advance(streams);  // it may have said why before it ended
  if (settled()) return;
  read_error_output(streams.errors);
  const bool ssh_was_killed = exit_code < 0 && !is_local(node_.host);
  const std::string said = shown(error_output_, Colours::escape);
  fail(stage_ >= Stage::greeted && !ssh_was_killed ? explain_early_end(exit_code, stage_name(), said)
                                                   : explain_failure(node_, exit_code, said, runs()));
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
  if (const std::optional<ExitStatus> status = attendant_->early_end())
    for (NodeLaunch& launch : launches_) launch.on_attendant_end(*status);
  for (const auto& [node, exit_code] : attendant_->exit_codes())
    launches_[node].on_command_end(streams[node], exit_code);
  // One failure fails the launch. The other nodes get some time to fail too, so that one error names all of them.
  if (!failing_until_ && std::ranges::find(launches_, NodeLaunch::Stage::failed, &NodeLaunch::stage) != launches_.end())
    failing_until_ = Deadline::in_ms(limits::failing_nodes_ms);
  if (deadline_.passed())
    for (NodeLaunch& launch : launches_)
      launch.fail(
          "the node was not ready within " + std::to_string(static_cast<int>(options_.timeout_s)) + " s (" +
          options_.timeout_name + "); it was " + launch.stage_name() + launch.hint() +
          (launch.error_output().empty() ? "" : ", and printed:\n" + shown(launch.error_output(), Colours::escape)));
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
