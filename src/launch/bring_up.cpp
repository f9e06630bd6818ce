#include "launch/bring_up.hpp"

#include <poll.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/system.hpp"

namespace miniray {
namespace {

void give_up(NodeLaunch& launch, const BringUpOptions& options) {
  launch.give_up("it was not ready within " + std::to_string(static_cast<int>(options.timeout_s)) + " s (" +
                 options.timeout_name + "); it was " + launch.stage_name() +
                 (launch.complaints().empty() ? "" : ", and said:\n" + launch.complaints()));
}

}  // namespace

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

// Each goes on whenever it can, and a slow one keeps nobody waiting but the caller.
bool BringUp::advance() {
  std::vector<Attendant::Streams>& streams = attendant_->streams();
  for (std::size_t i = 0; i < launches_.size(); ++i) launches_[i].advance(streams[i]);
  for (const auto& [node, exit_code] : attendant_->exit_codes())
    launches_[node].command_ended(streams[node], exit_code);
  if (!failing_until_ && std::ranges::find(launches_, NodeLaunch::Stage::failed, &NodeLaunch::stage) != launches_.end())
    failing_until_ = Deadline::in_ms(limits::failing_nodes_ms);
  if (deadline_.passed())
    for (NodeLaunch& launch : launches_) give_up(launch, options_);
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
