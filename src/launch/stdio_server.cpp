#include "launch/stdio_server.hpp"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include "base/clock.hpp"
#include "base/network.hpp"
#include "base/stream_guard.hpp"
#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "launch/code_bundle.hpp"
#include "launch/launch_protocol.hpp"
#include "launch/log_lines.hpp"
#include "miniray/error.hpp"
#include "miniray/version.hpp"
#include "wire/json_text.hpp"

namespace miniray {
namespace {

// Returns the address at which the cluster's ssh reached this machine. A local cluster uses no ssh; if SSH_CONNECTION
// is set then, it describes how the user logged in.
std::string reached_address(bool local) {
  const std::string arrived_at = local ? "" : network::ssh_arrived_at();
  return arrived_at.empty() ? "127.0.0.1" : arrived_at;
}

class StdioServer {
 public:
  explicit StdioServer(StdioProgram program);
  int run();

 private:
  void send(std::string_view keyword, const Value& value);
  void flush_everything();
  void receive_code(const Value& manifest);
  void apply_settings();
  WorkerServer make_server();
  WorkerServer listen(const WorkerServerOptions& options);
  void on_input();
  bool print(char stream, const std::string& label, std::string_view lines);
  void log(const std::string& text);
  bool flush_some();
  void serve(WorkerServer& server);
  void remove_socket_folder() const;

  StdioProgram program_;
  LineStream stream_;
  std::shared_ptr<const Key> key_;
  Value config_;
  std::map<std::string, std::string> environment_;
  std::string address_;
  std::filesystem::path code_folder_, socket_folder_;
  WorkerServer* serving_ = nullptr;
  // More than the output of workers may fill, so that a worker that prints much does not keep the log back.
  LogLines log_lines_{2 * limits::output_queue_bytes_max};
  bool writing_ = false;  // the server's loop waits for room in the output
  int silence_ms_max_ = limits::unreachable_ms;
  std::optional<Deadline> silent_at_;  // when the cluster counts as gone
  std::optional<StreamGuard> guard_;   // watches the input while user code keeps the loop from running
};

// The protocol keeps the standard descriptors to itself: user code reads an empty input, and what it prints goes to
// standard error, which the cluster shows.
StdioServer::StdioServer(StdioProgram program)
    : program_(std::move(program)), stream_(system::duplicate(STDIN_FILENO), system::duplicate(STDOUT_FILENO)) {
  const Fd nothing = system::open_null();
  system::replace_descriptor(nothing.get(), STDIN_FILENO);
  system::replace_descriptor(STDERR_FILENO, STDOUT_FILENO);
  signal(SIGPIPE, SIG_IGN);
}

void StdioServer::send(std::string_view keyword, const Value& value) {
  stream_.write(std::string(keyword) + write_json(value) + "\n");
  flush_everything();
}

// Called only while the server's loop is not running. If the network is cut, writing neither succeeds nor fails, so it
// stops when nothing has been written for stop_margin_ms.
void StdioServer::flush_everything() {
  std::size_t unwritten = stream_.unwritten_bytes();
  Deadline deadline = Deadline::in_ms(limits::stop_margin_ms);
  while (stream_.flush() && stream_.unwritten_bytes() > 0) {
    if (stream_.unwritten_bytes() < unwritten) deadline = Deadline::in_ms(limits::stop_margin_ms);
    unwritten = stream_.unwritten_bytes();
    if (deadline.passed()) return;
    (void)system::poll_one(stream_.output_fileno(), POLLOUT, deadline.poll_ms(limits::wait_slice_ms));
  }
}

void StdioServer::receive_code(const Value& manifest) {
  CodeUnpacker unpacker(manifest);
  if (!unpacker.missing().empty()) {
    List hashes;
    for (const CodeUnpacker::Missing& file : unpacker.missing()) hashes.emplace_back(file.hash);
    send(launch::need, Value(std::move(hashes)));
    for (const CodeUnpacker::Missing& file : unpacker.missing())
      unpacker.add(file, stream_.wait_for_bytes(file.bytes, silence_ms_max_));
  }
  code_folder_ = unpacker.finish();
}

void StdioServer::apply_settings() {
  for (const auto& [name, value] : config_["environment"].map()) {
    system::set_environment(name.string(), value.string());
    environment_[name.string()] = value.string();
  }
  const std::string& workdir = config_["workdir"].string();
  if (!workdir.empty()) system::change_folder(workdir, "workdir");
}

WorkerServer StdioServer::make_server() {
  WorkerServerOptions options = program_.server;
  options.own_key = key_;
  if (const Value& encrypt = config_["encrypt"]; !encrypt.is_null()) options.encrypt = encrypt.boolean();
  // Standard error would not do: it may block, and would stop the loop.
  options.on_log = [this](const std::string& line) { log(line); };
  options.on_output = [this](const std::string& label, std::string_view lines) {
    return print(launch::output, label, lines);
  };
  if (!config_["one_stream"].boolean())
    options.on_errors = [this](const std::string& label, std::string_view lines) {
      return print(launch::errors, label, lines);
    };
  const std::function<void()> also = options.on_interrupt;
  options.on_interrupt = [this, also] {
    if (also) also();
    if (silent_at_ && silent_at_->passed() && serving_ != nullptr) serving_->stop();
  };
  const auto find = options.find_work;
  options.find_work = [this, find](const std::string& name) {
    if (const auto own = program_.own_functions.find(name); own != program_.own_functions.end()) return own->second;
    if (serving_ != nullptr) guard_.emplace(stream_.input_fileno(), silence_ms_max_);
    const auto remove_guard = [this](void*) {
      if (serving_ == nullptr) return;
      guard_.reset();
      silent_at_ = Deadline::in_ms(silence_ms_max_);  // the guard has watched the cluster meanwhile
    };
    const std::unique_ptr<StdioServer, decltype(remove_guard)> at_return(this, remove_guard);
    return find(name);
  };
  const std::string& socket = config_["socket"].string();
  if (socket.empty()) return listen(options);
  const std::filesystem::path folder = std::filesystem::path(socket).parent_path();
  system::make_private_folder(folder.c_str());
  socket_folder_ = folder;  // now that it is this server's own, which removes it
  return WorkerServer(socket, 0, {}, options);
}

// The server that this one replaces may still hold the port, until it notices that its stream has ended. If it hangs
// and keeps the port for longer than orphan_grace_ms, this server takes any free port.
WorkerServer StdioServer::listen(const WorkerServerOptions& options) {
  const int port = static_cast<int>(config_["port"].integer());
  const Deadline deadline =
      config_["replaces"].boolean() ? Deadline::in_ms(limits::orphan_grace_ms) : Deadline::never();
  while (true) {
    try {
      return WorkerServer(address_, deadline.passed() ? 0 : port, {}, options);
    } catch (const SystemError& error) {
      if (error.error_number() != EADDRINUSE || deadline.is_never()) throw;
    }
    (void)system::poll_many({}, limits::port_look_ms);
  }
}

// The content does not matter: any byte shows that the cluster is alive.
void StdioServer::on_input() {
  silent_at_ = Deadline::in_ms(silence_ms_max_);
  if (!stream_.fill()) serving_->stop();
  (void)stream_.take_rest();
}

bool StdioServer::print(char stream, const std::string& label, std::string_view lines) {
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    const std::string_view line = lines.substr(0, end);
    stream_.write(stream + label + " ");
    stream_.write(line);
    stream_.write("\n");
    lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
  }
  return flush_some();
}

void StdioServer::log(const std::string& text) {
  stream_.write(log_lines_.take(text, stream_.unwritten_bytes()));
  (void)flush_some();
}

// The server's loop writes what does not fit now. Returns false if so much is queued that workers' output must wait.
bool StdioServer::flush_some() {
  if (!stream_.flush()) return true;  // the cluster has closed the stream; the end of the input will end the server
  if (stream_.unwritten_bytes() > 0 && !writing_ && serving_ != nullptr) {
    writing_ = true;
    serving_->when_writable(stream_.output_fileno(), [this] {
      if (stream_.flush()) stream_.write(log_lines_.take_count(stream_.unwritten_bytes()));
      writing_ = stream_.flush() && stream_.unwritten_bytes() > 0;
      if (stream_.unwritten_bytes() < limits::output_queue_bytes_max / 2) serving_->resume_output();
      return writing_;
    });
  }
  return stream_.unwritten_bytes() < limits::output_queue_bytes_max;
}

void StdioServer::serve(WorkerServer& server) {
  serving_ = &server;
  silent_at_ = Deadline::in_ms(silence_ms_max_);
  server.on_ready(stream_.input_fileno(), [this] { on_input(); });
  server.serve_forever();
  serving_ = nullptr;
}

int StdioServer::run() {
  try {
    stream_.write("\n");  // the output of a login script may lack its last newline
    send(launch::hello, {{"version", version}, {"protocol", protocol_version}});
    key_ = std::make_shared<const Key>(Key::from_hex(stream_.wait_for_secret(Key::hex_digits, silence_ms_max_).text(),
                                                     "the settings from the cluster"));
    config_ = read_json_text(stream_.wait_for_line(silence_ms_max_));
    silence_ms_max_ = static_cast<int>(config_["unreachable_ms"].integer());
    address_ = reached_address(config_["local"].boolean());
    if (const Value& code = config_["code"]; !code.is_null()) receive_code(code);
    send(launch::importing, Value(Map{}));
    // Until the server's loop runs, user code may take any time, and only the guard notices that the cluster has ended.
    guard_.emplace(stream_.input_fileno(), silence_ms_max_);
    apply_settings();
    if (program_.prepare) program_.prepare(code_folder_, {config_["setup"], environment_});
    const std::string& work_fn = config_["work_fn"].string();
    WorkerServer server = make_server();
    if (!work_fn.empty()) server.prepare(work_fn);
    guard_.reset();
    send(launch::ready, {{"port", server.port()},
                         {"address", address_},
                         {"host", network::host_name()},
                         {"pid", static_cast<std::int64_t>(getpid())}});
    serve(server);
  } catch (const EndOfStream&) {  // the cluster has gone before the server was ready; there is nobody to report to
  } catch (const std::exception& error) {
    guard_.reset();
    remove_socket_folder();
    send(launch::failed, {{"why", error.what()}});
    return EXIT_FAILURE;
  }
  remove_socket_folder();
  flush_everything();
  return EXIT_SUCCESS;
}

void StdioServer::remove_socket_folder() const {
  std::error_code ignored;
  if (socket_folder_.empty()) return;
  std::filesystem::remove(config_["socket"].string(), ignored);
  std::filesystem::remove(socket_folder_, ignored);
}

}  // namespace

int serve_stdio(StdioProgram program) { return StdioServer(std::move(program)).run(); }

}  // namespace miniray
