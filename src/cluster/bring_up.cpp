#include "cluster/bring_up.hpp"

#include <poll.h>

#include <algorithm>
#include <optional>

#include "base/clock.hpp"
#include "base/system.hpp"
#include "cluster/progress.hpp"

namespace miniray {
namespace {

// Once a node has failed, the others have this long to fail too, and to be named; ssh gives up before.
constexpr int failing_together_ms = limits::ssh_connect_timeout_ms + 2000;
constexpr int look_ms = 200;

void give_up(NodeLaunch& launch, const BringUpOptions& options) {
  launch.give_up("it was not ready within " + std::to_string(static_cast<int>(options.timeout_s)) + " s (" +
                 options.timeout_name + "); it was " + launch.stage_name() +
                 (launch.complaints().empty() ? "" : ", and said:\n" + launch.complaints()));
}

void wait_for_news(Attendant& attendant, const std::vector<NodeLaunch>& launches, const Deadline& deadline) {
  std::vector<pollfd> watched{{attendant.fileno(), POLLIN, 0}};
  for (std::size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].settled()) continue;
    const auto& [talk, errors] = attendant.streams()[i];
    const int writing = talk.unwritten_bytes() > 0 ? POLLOUT : 0;
    watched.push_back({talk.ended() ? -1 : talk.input_fileno(), static_cast<short>(POLLIN | writing), 0});
    watched.push_back({errors.ended() ? -1 : errors.input_fileno(), POLLIN, 0});
  }
  (void)system::poll_many(watched, std::min(look_ms, deadline.poll_ms(limits::wait_slice_ms)));
}

}  // namespace

// Each goes on whenever it can, and a slow one keeps nobody waiting but the caller.
std::vector<ClusterError::Failure> bring_up(Attendant& attendant, std::vector<NodeLaunch>& launches,
                                            const std::vector<std::string>& names, const BringUpOptions& options) {
  const Deadline deadline = Deadline::in_seconds(options.timeout_s);
  std::optional<Deadline> failing_until;
  Progress progress(options.progress);
  Deadline heartbeat = Deadline::in_ms(options.unreachable_ms / 4);
  std::vector<Attendant::Streams>& streams = attendant.streams();
  while (!std::ranges::all_of(launches, &NodeLaunch::settled) && !(failing_until && failing_until->passed())) {
    std::vector<Progress::Entry> shown;
    for (std::size_t i = 0; i < launches.size(); ++i)
      shown.push_back({names[i], launches[i].stage_name(), launches[i].settled()});
    progress.show(shown);
    wait_for_news(attendant, launches, deadline);
    if (options.on_interrupt) options.on_interrupt();
    for (std::size_t i = 0; i < launches.size(); ++i) launches[i].advance(streams[i]);
    for (const auto& [node, exit_code] : attendant.exit_codes()) launches[node].command_ended(streams[node], exit_code);
    if (!failing_until && std::ranges::find(launches, NodeLaunch::Stage::failed, &NodeLaunch::stage) != launches.end())
      failing_until = Deadline::in_ms(failing_together_ms);
    if (deadline.passed())
      for (NodeLaunch& launch : launches) give_up(launch, options);
    if (!heartbeat.passed()) continue;
    heartbeat = Deadline::in_ms(options.unreachable_ms / 4);
    for (std::size_t i = 0; i < launches.size(); ++i) {
      if (!launches[i].wants_heartbeats()) continue;
      streams[i].talk.write("\n");
      (void)streams[i].talk.flush();
    }
  }
  std::vector<ClusterError::Failure> failures;
  for (std::size_t i = 0; i < launches.size(); ++i)
    if (launches[i].stage() == NodeLaunch::Stage::failed) failures.push_back({names[i], launches[i].why()});
  return failures;
}

}  // namespace miniray
