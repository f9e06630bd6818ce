#include "launch/attendant.hpp"

#include <poll.h>
#include <signal.h>

#include <array>

#include "base/check.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "wire/json_text.hpp"
#include "worker/request.hpp"

namespace miniray {

Attendant::Attendant(const std::vector<Node>& nodes, const Options& options) {
  std::vector<Fd> theirs;  // the attendant's ends, which this process closes when the attendant has them
  List described;
  for (const Node& node : nodes) {
    auto [talk_here, talk_there] = system::socket_pair();
    auto [errors_here, errors_there] = system::socket_pair();
    streams_.push_back({LineStream(std::move(talk_here)), LineStream(std::move(errors_here))});
    List command;
    for (const std::string& word : node.command) command.emplace_back(word);
    described.push_back({{"name", node.name},
                         {"command", Value(std::move(command))},
                         {"talk", talk_there.get()},
                         {"errors", errors_there.get()}});
    theirs.push_back(std::move(talk_there));
    theirs.push_back(std::move(errors_there));
  }
  auto [control_here, control_there] = system::socket_pair();
  auto [lifeline_here, lifeline_there] = system::socket_pair();
  std::vector<std::string> command = options.command;
  command.push_back(std::to_string(control_there.get()));
  command.push_back(std::to_string(lifeline_there.get()));
  theirs.push_back(std::move(control_there));
  theirs.push_back(std::move(lifeline_there));
  std::vector<int> keep;
  for (const Fd& descriptor : theirs) keep.push_back(descriptor.get());

  control_ = std::move(control_here);
  lifeline_ = std::move(lifeline_here);
  process_ = ChildProcess(spawn_process(command, {}, keep));
  const Value orders{{"nodes", Value(std::move(described))},
                     {"output_folder", options.output_folder},
                     {"unreachable_ms", options.unreachable_ms}};
  try {
    system::send_all(control_.get(), with_length(write_json(orders)));
  } catch (const EndOfStream&) {  // the process has ended already: early_end() says how
  }
}

Attendant::~Attendant() {
  if (generation_ != process_generation()) return;  // in a forked child, the attendant belongs to the parent
  process_.signal_group(SIGKILL);
  if (!process_.status()) process_.reap();
}

void Attendant::hand_over(std::size_t node) {
  MINIRAY_CHECK(node < streams_.size() && streams_[node].talk.input_fileno() >= 0, node, streams_.size());  // once
  Streams& streams = streams_[node];
  // Bytes that this process has read after the "ready" line are the attendant's too.
  const std::string rest = streams.talk.take_rest();
  const Fd talk = streams.talk.take_descriptor(), errors = streams.errors.take_descriptor();
  const std::array<int, 2> descriptors{talk.get(), errors.get()};
  const AttendantNotice notice{AttendantNotice::Kind::hand_over, static_cast<std::int32_t>(node),
                               static_cast<std::int32_t>(rest.size())};
  const iovec piece{const_cast<AttendantNotice*>(&notice), sizeof(notice)};
  while (system::send(control_.get(), std::span(&piece, 1), descriptors).outcome ==
         system::Transfer::Outcome::would_block)
    (void)system::poll_one(control_.get(), POLLOUT, limits::wait_slice_ms);
  system::send_all(control_.get(), rest);
}

void Attendant::expect_workers(std::size_t node, int count) {
  tell({AttendantNotice::Kind::workers, static_cast<std::int32_t>(node), count});
}

void Attendant::drop(std::size_t node) { tell({AttendantNotice::Kind::drop, static_cast<std::int32_t>(node), 0}); }

void Attendant::tell(const AttendantNotice& notice) {
  const iovec piece{const_cast<AttendantNotice*>(&notice), sizeof(notice)};
  // If the attendant has ended, the commands that it started have ended too.
  while (process_.running() &&
         system::send(control_.get(), std::span(&piece, 1), {}).outcome == system::Transfer::Outcome::would_block)
    (void)system::poll_one(control_.get(), POLLOUT, limits::wait_slice_ms);
}

void Attendant::read_notices() {
  AttendantNotice notice{};
  while (control_.valid()) {
    const system::Transfer transfer =
        system::receive(control_.get(), std::as_writable_bytes(std::span(&notice, 1)), system::Block::no, nullptr);
    if (transfer.bytes != sizeof(notice)) break;
    if (notice.kind == AttendantNotice::Kind::started) {
      started_ = true;
      continue;
    }
    MINIRAY_CHECK(notice.kind == AttendantNotice::Kind::ended, notice.node, notice.value);
    exit_codes_[static_cast<std::size_t>(notice.node)] = notice.value;
  }
}

std::optional<ExitStatus> Attendant::early_end() {
  if (started_ || process_.running()) return {};
  read_notices();  // those that it sent before it ended
  if (started_) return {};
  return process_.reap();
}

const std::map<std::size_t, int>& Attendant::exit_codes() {
  read_notices();
  // Without the attendant no node can be reached, even if its command still runs.
  if (started_ && !process_.running())
    for (std::size_t node = 0; node < streams_.size(); ++node) exit_codes_.emplace(node, -SIGKILL);
  return exit_codes_;
}

void Attendant::begin_finish() {
  if (control_.valid()) system::shut_down_writing(control_.get());
  streams_.clear();
}

bool Attendant::finish(const Deadline& deadline, const std::function<void()>& on_interrupt) {
  begin_finish();
  while (process_.running()) {
    (void)system::poll_one(process_.pidfd(), POLLIN, deadline.poll_ms(limits::wait_slice_ms));
    if (on_interrupt) on_interrupt();
    if (deadline.passed() && process_.running()) return false;
  }
  process_.reap();
  return true;
}

}  // namespace miniray
