// The loop of the attendant process, which attendant.hpp describes. It never waits for one node or for a terminal.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/shown_text.hpp"
#include "base/system.hpp"
#include "launch/attendant.hpp"
#include "launch/launch_command.hpp"
#include "launch/launch_protocol.hpp"
#include "launch/node_line.hpp"
#include "miniray/error.hpp"
#include "wire/json_text.hpp"

namespace miniray {
namespace {

// A node's command, and the descriptors that become its standard streams.
struct NodeEnds {
  std::string name;
  std::vector<std::string> command;
  Fd talk, errors;
};

// Prints text to standard output or standard error. Text is queued, and a few lines are written when there is room:
// other processes share these descriptors, so they cannot be made non-blocking, and a stopped terminal must not stop
// the loop.
class Printer {
 public:
  explicit Printer(int descriptor) : descriptor_(descriptor), is_terminal_(isatty(descriptor) != 0) {}
  // A terminal gets no control characters of nodes; files and pipes get every byte.
  void print(std::string_view text) { is_terminal_ ? waiting_ += shown(text, Colours::keep) : waiting_ += text; }
  [[nodiscard]] bool waiting() const { return !waiting_.empty(); }
  [[nodiscard]] bool full() const { return waiting_.size() > limits::output_queue_bytes_max; }
  [[nodiscard]] int fileno() const { return descriptor_; }
  void write_some();

 private:
  int descriptor_;
  bool is_terminal_;
  std::string waiting_;
};

class AttendantLoop {
 public:
  AttendantLoop(std::vector<NodeEnds> ends, Fd control, std::string output_folder, int unreachable_ms);
  // Returns when the cluster has finished and every node's command has ended.
  int run();

 private:
  struct Node {
    std::string name;
    ChildProcess command;
    bool ended = false;  // the command has ended
    LineStream talk, errors;
    bool taken_over = false;  // the cluster has handed over talk and errors
    int workers = 0;          // how many workers it has had; the numbers in its labels are lower than that
  };
  void start(std::size_t index, NodeEnds& ends);
  bool read_control();  // returns whether it has read a notice
  void take_over(std::size_t node, std::vector<Fd> descriptors, const std::string& rest);
  void drop(Node& node);
  void kill(Node& node);
  void refuse(Node& node, const std::string& why);
  void read_nodes();
  void read_node(Node& node);
  void read_stream(Node& node, bool from_errors);
  void show(const std::string& line, Node& node);
  void write_to_file(const std::string& label, const std::string& text);
  void report(std::size_t node, int exit_code);
  void reap();
  [[nodiscard]] bool all_done() const;
  void poll_once();

  std::vector<Node> nodes_;
  std::size_t next_read_ = 0;  // the node that is read first next time
  Fd control_;
  std::string output_folder_;
  int heartbeat_ms_;
  Deadline next_heartbeat_ = Deadline::in_ms(0);
  bool finishing_ = false;
  Printer out_, errors_;
  std::map<std::string, std::ofstream> files_;
};

void Printer::write_some() {
  if (waiting_.empty() || (system::poll_one(descriptor_, POLLOUT, 0) & (POLLOUT | POLLERR | POLLHUP)) == 0) return;
  // A short write fits into a pipe or terminal that is ready, so it does not block.
  std::size_t bytes = std::min(waiting_.size(), limits::print_bytes_max);
  const std::size_t line_end = waiting_.rfind('\n', bytes - 1);
  if (line_end != std::string::npos) bytes = line_end + 1;
  try {
    const system::Transfer transfer = system::write_some(descriptor_, std::string_view(waiting_).substr(0, bytes));
    const bool gone = transfer.outcome == system::Transfer::Outcome::closed;
    waiting_.erase(0, gone ? waiting_.size() : transfer.bytes);
  } catch (const SystemError&) {
    waiting_.clear();  // this was the only place where an error could be shown
  }
}

AttendantLoop::AttendantLoop(std::vector<NodeEnds> ends, Fd control, std::string output_folder, int unreachable_ms)
    : control_(std::move(control)),
      output_folder_(std::move(output_folder)),
      heartbeat_ms_(unreachable_ms / limits::heartbeats),
      out_(STDOUT_FILENO),
      errors_(STDERR_FILENO) {
  nodes_.resize(ends.size());
  for (std::size_t i = 0; i < ends.size(); ++i) start(i, ends[i]);
}

void AttendantLoop::start(std::size_t index, NodeEnds& ends) {
  Node& node = nodes_[index];
  node.name = ends.name;
  try {
    node.command = ChildProcess(spawn_in_group(ends.command, ends.talk.get(), ends.talk.get(), ends.errors.get()));
  } catch (const SystemError& error) {
    (void)system::write_some(ends.errors.get(), std::string(error.what()) + "\n");
    node.ended = true;
    report(index, command_not_started);
  }
  ends.talk.reset();
  ends.errors.reset();
}

void AttendantLoop::report(std::size_t node, int exit_code) {
  const AttendantNotice notice{AttendantNotice::Kind::ended, static_cast<std::int32_t>(node), exit_code};
  const iovec piece{const_cast<AttendantNotice*>(&notice), sizeof(notice)};
  if (control_.valid()) (void)system::send(control_.get(), std::span(&piece, 1), {});
}

void AttendantLoop::reap() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.ended || node.command.running()) continue;
    const ExitStatus& status = node.command.reap_alone();
    node.ended = true;
    report(i, status.signal != 0 ? -status.signal : status.exit_code);
  }
}

bool AttendantLoop::read_control() {
  if (finishing_) return false;
  AttendantNotice notice{};
  std::vector<Fd> descriptors;
  const system::Transfer transfer =
      system::receive(control_.get(), std::as_writable_bytes(std::span(&notice, 1)), system::Block::no, &descriptors);
  if (transfer.outcome == system::Transfer::Outcome::would_block) return false;
  if (transfer.bytes != sizeof(notice)) {  // the end of the stream: the cluster has finished
    finishing_ = true;
    for (Node& node : nodes_)
      if (node.taken_over) node.talk.close_output();
    return false;
  }
  Node& node = nodes_.at(static_cast<std::size_t>(notice.node));
  if (notice.kind == AttendantNotice::Kind::drop) {
    drop(node);
    return true;
  }
  if (notice.kind == AttendantNotice::Kind::workers) {
    node.workers = std::max(node.workers, notice.value);
    return true;
  }
  MINIRAY_CHECK(notice.kind == AttendantNotice::Kind::hand_over && descriptors.size() == 2, descriptors.size());
  std::string rest(static_cast<std::size_t>(notice.value), '\0');
  if (!rest.empty()) system::receive_all(control_.get(), std::as_writable_bytes(std::span(rest)));
  take_over(static_cast<std::size_t>(notice.node), std::move(descriptors), rest);
  return true;
}

void AttendantLoop::take_over(std::size_t index, std::vector<Fd> descriptors, const std::string& rest) {
  Node& node = nodes_.at(index);
  node.talk = LineStream(std::move(descriptors[0]));
  node.errors = LineStream(std::move(descriptors[1]));
  node.talk.put_back(rest);
  node.taken_over = true;
}

// Prints what the node has sent, then closes its streams without waiting: the command may hang, and other processes may
// hold the other ends of the streams.
void AttendantLoop::drop(Node& node) {
  if (node.taken_over) read_node(node);
  kill(node);
}

void AttendantLoop::kill(Node& node) {
  node.taken_over = false;
  node.talk = LineStream();
  node.errors = LineStream();
  if (!node.ended) (void)node.command.signal(SIGKILL);
}

// Ends the connection to a node that does not keep to the protocol. Its workers then end, which the cluster reports.
void AttendantLoop::refuse(Node& node, const std::string& why) {
  errors_.print("miniray: ended the connection to " + node.name + ", because " + why +
                ". Is another program or another MiniRay in place of its server?\n");
  kill(node);
}

void AttendantLoop::show(const std::string& line, Node& node) {
  const NodeLine parts = parse_node_line(line);
  if (parts.from == NodeLine::From::server) {
    errors_.print("[" + node.name + "] " + line + "\n");
    return;
  }
  const auto has_worker = [&] { return is_label_of(parts.label, node.name, node.workers); };
  // The cluster tells of a worker before it starts it, but this process may read the worker's output first.
  while (!has_worker() && read_control()) {
  }
  if (!node.taken_over) return;  // the cluster has just dropped it
  if (!has_worker()) return refuse(node, "it sent output of a worker that it does not have: " + in_quotes(line));
  const std::string label(parts.label), text(parts.text);
  if (!output_folder_.empty()) return write_to_file(label, text);
  (parts.from == NodeLine::From::errors ? errors_ : out_).print("[" + label + "] " + text + "\n");
}

void AttendantLoop::write_to_file(const std::string& label, const std::string& text) {
  const std::string name = output_file_name(label);
  if (files_.size() >= limits::output_files_open_max && !files_.contains(name)) files_.clear();
  std::ofstream& file = files_[name];
  if (!file.is_open()) file.open(std::filesystem::path(output_folder_) / name, std::ios::app);
  file << text << '\n' << std::flush;
  if (!file) {  // for example, the disk is full
    errors_.print("[" + label + "] " + text + "\n");
    file.clear();
  }
}

// Every turn begins with another node, so that one which prints without a pause does not keep the others waiting.
void AttendantLoop::read_nodes() {
  for (std::size_t i = 0; i < nodes_.size() && !out_.full() && !errors_.full(); ++i) {
    Node& node = nodes_[(next_read_ + i) % nodes_.size()];
    if (node.taken_over) read_node(node);
  }
  next_read_ = (next_read_ + 1) % std::max<std::size_t>(nodes_.size(), 1);
}

void AttendantLoop::read_node(Node& node) {
  for (const bool from_errors : {false, true})
    if (node.taken_over) read_stream(node, from_errors);
  if (node.taken_over && !node.talk.ended() && !finishing_ && !node.talk.flush()) node.talk.close_output();
}

void AttendantLoop::read_stream(Node& node, bool from_errors) {
  LineStream& stream = from_errors ? node.errors : node.talk;
  const auto print = [&](const std::string& line) {
    from_errors ? errors_.print("[" + node.name + "] " + line + "\n") : show(line, node);
  };
  if (!stream.ended()) stream.fill();
  while (const std::optional<std::string> line = stream.take_line()) print(*line);
  if (!node.taken_over) return;
  // What the user's code prints may have lines of any length. A server's lines are never long.
  if (!from_errors && stream.line_too_long())
    return refuse(node, "it sent a line of more than " + std::to_string(limits::launch_line_bytes_max / limits::mib) +
                            " MiB: " + in_quotes(stream.unread()));
  const bool unfinished = !stream.ended() && (!from_errors || stream.unread_bytes() <= limits::output_line_bytes_max);
  if (!unfinished && stream.unread_bytes() > 0) print(stream.take_rest());
}

bool AttendantLoop::all_done() const {
  return finishing_ && !out_.waiting() && !errors_.waiting() && std::ranges::all_of(nodes_, [](const Node& node) {
           return node.ended && (!node.taken_over || (node.talk.ended() && node.errors.ended()));
         });
}

void AttendantLoop::poll_once() {
  std::vector<pollfd> watched{{finishing_ ? -1 : control_.get(), POLLIN, 0},
                              {out_.waiting() ? out_.fileno() : -1, POLLOUT, 0},
                              {errors_.waiting() ? errors_.fileno() : -1, POLLOUT, 0}};
  // While a printer is full, the nodes' output stays in their streams, and in the end their workers wait.
  const bool reading = !out_.full() && !errors_.full();
  for (Node& node : nodes_) {
    const bool open = node.taken_over && reading;
    watched.push_back({open && !node.talk.ended() ? node.talk.input_fileno() : -1, POLLIN, 0});
    watched.push_back({open && !node.errors.ended() ? node.errors.input_fileno() : -1, POLLIN, 0});
    watched.push_back({node.ended ? -1 : node.command.pidfd(), POLLIN, 0});
  }
  (void)system::poll_many(watched, next_heartbeat_.poll_ms(limits::wait_slice_ms));
  if (watched[0].revents != 0) (void)read_control();
  reap();
  if (reading) read_nodes();
  out_.write_some();
  errors_.write_some();
  if (!next_heartbeat_.passed()) return;
  next_heartbeat_ = Deadline::in_ms(heartbeat_ms_);
  for (Node& node : nodes_) {
    if (!node.taken_over || node.talk.ended() || finishing_ || node.talk.unwritten_bytes() > 0) continue;
    node.talk.write("\n");
    if (!node.talk.flush()) node.talk.close_output();
  }
}

int AttendantLoop::run() {
  while (!all_done()) poll_once();
  return 0;
}

}  // namespace

int attend(int control, int lifeline) {
  Fd orders(control);
  const AttendantNotice started{AttendantNotice::Kind::started, 0, 0};
  system::send_all(control, {reinterpret_cast<const char*>(&started), sizeof(started)});
  const Value ordered = [&] {
    std::uint32_t bytes = 0;
    system::receive_all(orders.get(), std::as_writable_bytes(std::span(&bytes, 1)));
    std::string text(bytes, '\0');
    system::receive_all(orders.get(), std::as_writable_bytes(std::span(text)));
    return read_json_text(text);
  }();
  std::vector<NodeEnds> ends;
  std::vector<int> keep{control, lifeline};
  for (const Value& node : ordered["nodes"].list()) {
    NodeEnds& each = ends.emplace_back();
    each.name = node["name"].string();
    for (const Value& word : node["command"].list()) each.command.push_back(word.string());
    each.talk = Fd(static_cast<int>(node["talk"].integer()));
    each.errors = Fd(static_cast<int>(node["errors"].integer()));
    keep.insert(keep.end(), {each.talk.get(), each.errors.get()});
  }
  // The commands must inherit none of these descriptors: a copy elsewhere would keep a stream from ending.
  close_all_but(keep);
  for (const int number : keep) set_close_on_exec(number);
  hold_lifeline(lifeline);
  set_close_on_exec(lifeline);
  signal(SIGPIPE, SIG_IGN);
  name_this_process("miniray-attend");
  return AttendantLoop(std::move(ends), std::move(orders), ordered["output_folder"].string(),
                       static_cast<int>(ordered["unreachable_ms"].integer()))
      .run();
}

}  // namespace miniray
