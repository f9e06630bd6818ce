// A worker is a function that runs in a process of its own, and the coordinator's end of the conversation with it:
//
//   miniray::Worker worker([](miniray::Handle& handle) {
//     for (;;) handle.send(handle.recv());
//   });
//   worker.send({{"cmd", "echo"}});
//   miniray::Value answer = worker.recv();
//
// When the coordinator's process ends, for whatever reason, its workers and the processes that they started end too.
#pragma once

#include <sys/types.h>

#include <concepts>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "miniray/channel.hpp"
#include "miniray/error.hpp"
#include "miniray/export.hpp"
#include "miniray/handle.hpp"
#include "miniray/seconds.hpp"

namespace MINIRAY_API miniray {

/// How a process forks a worker.
struct ForkOptions {
  /// Gets the text of a warning if a fork of this process may go wrong: why, and what to do instead. By default the
  /// warning goes to the log (log.hpp), once per process.
  std::function<void(const std::string&)> on_warning = {};

  // For language bindings.
  std::function<void()> limit_threads_in_child = {};  ///< called if OpenMP had threads, which the child does not have
  std::function<void()> before_fork = {}, after_fork_in_parent = {}, after_fork_in_child = {};
  bool warn_of_threads = true;
  std::string spawn_call = "Worker::spawn";  ///< how this language calls a start without a fork; warnings recommend it
};

/// How to end workers. Each way closes the stream first; a worker sees that when it next receives.
enum class Closing : std::uint8_t {
  finish,     ///< workers have limits::close_grace_ms to finish; those that have not finished are killed
  interrupt,  ///< workers that are not waiting for a message are interrupted (SIGINT), and killed soon after
  kill,       ///< workers are killed at once
};

struct WorkerOptions {
  std::string name = {};  ///< errors and traces show it after the process number: "worker 1234 (name)"
  Codec codec = Codec::msgpack;
  bool shared_memory = true;
  std::optional<Microseconds> spin_us = {};  ///< see ChannelOptions
  std::uint64_t inbox_bytes_max = limits::inbox_bytes_max;
  std::uint64_t message_bytes_max = limits::message_bytes_max;  ///< in each direction; see ChannelOptions
  std::function<void()> on_interrupt = {};                      ///< see ChannelOptions
  ForkOptions fork = {};
};

class Worker;

/// Decides what happens when a call finds that its worker has ended. Supervision (supervised_worker.hpp) implements it.
class Recovery {
 public:
  Recovery() = default;
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;
  virtual ~Recovery() = default;
  /// Called when a call finds that the worker has ended; `why` is a WorkerDied or a WorkerError. It must not wait.
  virtual void on_end(Worker& worker, std::exception_ptr why) = 0;
  /// Called after on_end() if the call may wait. Throws the exception that the caller gets.
  [[noreturn]] virtual void recover(Worker& worker) = 0;
  /// Whether on_end() has been called, and tell() not since.
  [[nodiscard]] virtual bool pending() const = 0;
  /// Throws what a caller of the worker is to hear about the end that was found last.
  [[noreturn]] virtual void tell(Worker& worker) = 0;
};

/// Refers to a worker that may move: it follows the moves, and knows when the worker is gone. A Caller has one.
class WorkerLink {
 public:
  explicit WorkerLink(Worker* worker) : worker_(worker) {}
  /// Null when the Worker object has been destroyed or another worker was assigned to it.
  [[nodiscard]] Worker* worker() const { return worker_; }

 private:
  friend class Worker;
  Worker* worker_;
};

/// A worker may be moved at any time; callers and futures of its calls follow it. A Worker that was moved from has no
/// process: it can be destroyed and assigned to, and every other call on it throws UsageError.
class Worker {
 public:
  /// Forks this process and runs `work` in the child. Throws UsageError if a fork cannot work, because this process has
  /// a live CUDA context, and SystemError if the system refuses the fork.
  explicit Worker(const WorkFunction& work, WorkerOptions options = {});
  /// Starts a program, which has to call run_spawned. Throws SystemError if the program cannot be started.
  static Worker spawn(const std::vector<std::string>& command, WorkerOptions options = {});
  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  /// Closes the worker as close() does. While an exception unwinds the stack, a busy worker is interrupted, and killed
  /// soon after.
  ~Worker();

  // These calls do what the calls of the same names in Channel do, and throw the same exceptions. They also throw
  // WorkerError if the work function threw, WorkerDied if the process died, and EndOfStream if the work function
  // returned. One thread at a time may use a worker.
  void send(const Value& value);
  template <class T>
    requires detail::NeitherValueNorMessage<T>
  void send(const T&) {
    detail::refuse_to_send<T>();
  }
  [[nodiscard]] Value recv(const ReceiveOptions& options = {});
  template <class T>
  [[nodiscard]] T recv(const ReceiveOptions& options = {}) {
    return detail::received_as<T>(recv(options));
  }
  template <class T>
  [[nodiscard]] Array make_array(Shape shape) {
    return channel().make_array<T>(std::move(shape));
  }
  void send(const std::same_as<Message> auto& message) { send_message(message); }
  [[nodiscard]] Message receive(const ReceiveOptions& options = {});
  bool send_some(const Message& message);
  bool flush_some();
  [[nodiscard]] std::optional<Message> try_receive(std::optional<std::uint64_t> max_size = {},
                                                   Lane lane = Lane::messages);
  void put_back(Message message) { channel().put_back(std::move(message)); }
  void pump() { channel().pump(); }
  void look_around() { channel().look_around(); }
  [[nodiscard]] bool has_unsent() { return channel().has_unsent(); }
  [[nodiscard]] bool ended() { return channel().ended(); }
  [[nodiscard]] Codec codec() { return channel().codec(); }

  /// Waits for the process to end. Returns its exit code, or minus the number of the signal that killed it. Messages
  /// that the worker still sends can be received afterwards. Throws TimeoutError if the process does not end in time,
  /// and WorkerDied if the worker's host is lost.
  int wait(Timeout timeout_s = {});
  [[nodiscard]] bool is_alive() const;
  /// Sends a signal. SIGKILL kills the worker and all processes that it started; another signal goes to the worker
  /// only.
  void kill(int signal = 9);
  /// Returns what the process is doing now: its state and its stack. The process is not disturbed.
  [[nodiscard]] std::string stack();
  /// Closes the stream to the worker, which is the first half of close(). Use it to close many workers: end() each,
  /// then close() each.
  void end();
  /// Closes the conversation and ends the process: the worker sees the end of the stream, has grace_s to finish, and is
  /// killed if it has not finished. If no call has thrown the worker's failure, close() reports it on standard error.
  /// If on_interrupt throws during the wait, the worker is interrupted too, and that exception is thrown once the
  /// worker has ended; a second interrupt kills the worker.
  void close(Seconds grace_s = limits::close_grace_ms / 1000.0);

  [[nodiscard]] pid_t pid() const;
  [[nodiscard]] int fileno() const;               ///< readable when recv() may have something
  [[nodiscard]] int process_fileno() const;       ///< readable when the process has ended
  [[nodiscard]] const std::string& name() const;  ///< "worker 1234 (train)"
  /// Returns the channel, one rung lower. The worker owns it.
  [[nodiscard]] Channel& channel();

  /// Sets what happens when a call finds that the process has died or that the work function has thrown: send(), recv()
  /// and receive() call on_end() and recover(), the calls that never wait call on_end() only. By default there is no
  /// recovery.
  void set_recovery(std::shared_ptr<Recovery> recovery) { recovery_ = std::move(recovery); }
  /// Closes this worker's process and takes over the process of another worker. The recovery stays.
  void adopt(Worker other);
  [[nodiscard]] Recovery* recovery() const { return recovery_.get(); }
  /// How often adopt() has been called.
  [[nodiscard]] int replacements() const { return replacements_; }
  /// False if it was moved from.
  [[nodiscard]] bool valid() const { return static_cast<bool>(state_); }
  /// A reference that follows the worker when it is moved.
  [[nodiscard]] std::shared_ptr<const WorkerLink> link();

  class State;  // for the library's own files

 protected:
  explicit Worker(std::unique_ptr<State> state);

 private:
  void send_message(const Message& message);
  friend class Closer;
  friend class Unsupervised;
  enum class Patience : std::uint8_t { wait, none };
  template <class Call>
  auto with_recovery(Patience patience, Call call);
  void handle_end(Patience patience);
  void take(Worker& other) noexcept;
  void close_in_destructor() noexcept;

  Owned<State> state_;
  std::shared_ptr<Recovery> recovery_;
  int replacements_ = 0;
  std::shared_ptr<WorkerLink> link_;  // made when somebody asks for it
};

/// As long as this object lives, calls on these workers throw what they find and do not recover. It is used to handle
/// many workers at once and to prepare a new process. The workers must not be moved meanwhile.
class Unsupervised {
 public:
  explicit Unsupervised(std::span<Worker* const> workers);
  Unsupervised(const Unsupervised&) = delete;
  Unsupervised& operator=(const Unsupervised&) = delete;
  ~Unsupervised();

 private:
  std::vector<std::pair<Worker*, std::shared_ptr<Recovery>>> supervised_;
};

/// Closes many workers together, with one grace for all. It skips workers that another thread is using; they end with
/// this process. It handles interrupts as Worker::close does.
void close_all(std::span<Worker* const> workers, Closing how = Closing::finish);

/// Waits until recv() would return or throw at once for some worker. Returns the positions of all such workers in
/// ascending order, or none after the time-out.
[[nodiscard]] std::vector<std::size_t> wait_any(std::span<Worker* const> workers, Timeout timeout_s = {});
[[nodiscard]] std::vector<std::size_t> wait_any(std::span<Worker> workers, Timeout timeout_s = {});

}  // namespace miniray
