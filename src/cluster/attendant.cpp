#include "cluster/attendant.hpp"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/system.hpp"
#include "cluster/attendant_loop.hpp"
#include "miniray/error.hpp"

namespace miniray {

Attendant::Attendant(const std::vector<Node>& nodes, const Options& options) {
  std::vector<NodeEnds> ends;
  std::vector<int> keep;
  for (const Node& node : nodes) {
    auto [talk_here, talk_there] = system::socket_pair();
    auto [errors_here, errors_there] = system::socket_pair();
    streams_.push_back({LineStream(std::move(talk_here)), LineStream(std::move(errors_here))});
    keep.insert(keep.end(), {talk_there.get(), errors_there.get()});
    ends.push_back({node.name, node.command, std::move(talk_there), std::move(errors_there)});
  }
  auto [news_here, news_there] = system::socket_pair();
  auto [lifeline_here, lifeline_there] = system::socket_pair();
  keep.insert(keep.end(), {news_there.get(), lifeline_there.get()});
  // It runs none of the language's code, so nothing is to be done for that in the child.
  const ForkHooks hooks{options.fork.before_fork, options.fork.after_fork_in_parent, {}};
  const pid_t pid = fork_process(keep, hooks, [&] {
    close_all_but(keep);
    hold_lifeline(keep.back());
    signal(SIGPIPE, SIG_IGN);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_DFL);
    name_this_process("miniray-attend");
    for (NodeEnds& node : ends) {  // what was kept across the fork is this process's own
      node.talk = Fd(node.talk.release());
      node.errors = Fd(node.errors.release());
    }
    return AttendantLoop(std::move(ends), keep[keep.size() - 2], options).run();
  });
  process_ = ChildProcess(pid);
  news_ = std::move(news_here);
  lifeline_ = std::move(lifeline_here);
}

Attendant::~Attendant() {
  if (generation_ != process_generation()) return;
  process_.signal_group(SIGKILL);
  if (!process_.status()) process_.reap();
}

void Attendant::take_over(std::size_t node) {
  Streams& streams = streams_[node];
  const Fd talk = streams.talk.take_descriptor(), errors = streams.errors.take_descriptor();
  const std::array<int, 2> descriptors{talk.get(), errors.get()};
  // What was read already, and is more than a line, goes along.
  const std::string rest = streams.talk.take_rest();
  AttendantNotice notice{static_cast<std::int32_t>(node), static_cast<std::int32_t>(rest.size())};
  std::string message(reinterpret_cast<const char*>(&notice), sizeof(notice));
  message += rest;
  const iovec piece{message.data(), message.size()};
  (void)system::send(news_.get(), std::span(&piece, 1), descriptors);
}

const std::map<std::size_t, int>& Attendant::exit_codes() {
  AttendantNotice notice{};
  while (news_.valid()) {
    const system::Transfer transfer =
        system::receive(news_.get(), std::as_writable_bytes(std::span(&notice, 1)), system::Block::no, nullptr);
    if (transfer.bytes != sizeof(notice)) break;
    exit_codes_[static_cast<std::size_t>(notice.node)] = notice.value;
  }
  return exit_codes_;
}

bool Attendant::finish(const Deadline& deadline, const std::function<void()>& on_interrupt) {
  if (news_.valid()) system::shut_down_writing(news_.get());
  streams_.clear();
  while (process_.running()) {
    (void)system::poll_one(process_.pidfd(), POLLIN, deadline.poll_ms(limits::wait_slice_ms));
    if (on_interrupt) on_interrupt();
    if (deadline.passed() && process_.running()) return false;
  }
  process_.reap();
  return true;
}

}  // namespace miniray
