// A function that runs in a process of its own, and the conversation with it:
//
//   miniray::Worker worker([](miniray::Handle& handle) {
//     for (;;) handle.send(handle.recv());
//   });
//   worker.send({{"cmd", "echo"}});
//   miniray::Value answer = worker.recv();
//
// A worker never outlives its coordinator, however that ends, nor do processes that the worker started.
#pragma once

#include <sys/types.h>

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
#include "miniray/handle.hpp"

namespace miniray {

/// How a process forks a worker.
struct ForkOptions {
  /// A fork may go wrong in this process: what, and what to do instead. By default it is printed, once.
  std::function<void(const std::string&)> on_warning = {};

  // For language bindings.
  std::function<void()> limit_threads_in_child = {};  ///< there were OpenMP threads, which the child has not
  std::function<void()> before_fork = {}, after_fork_in_parent = {}, after_fork_in_child = {};
  bool warn_of_threads = true;
};

/// How workers are ended. Each way begins with the end of the stream, which a worker sees when it next receives.
enum class Closing : std::uint8_t {
  finish,     ///< they have limits::close_grace_ms to finish, and are killed if they have not
  interrupt,  ///< those that do not wait for a message are interrupted (SIGINT), and soon killed
  kill,       ///< at once
};

struct WorkerOptions {
  std::string name = {};  ///< goes behind the process number in errors and traces
  Codec codec = Codec::msgpack;
  bool shared_memory = true;
  std::optional<int> spin_us = {};
  std::uint64_t inbox_bytes_max = limits::inbox_bytes_max;
  std::function<void()> on_interrupt = {};  ///< see ChannelOptions
  ForkOptions fork = {};
};

class Worker;

/// What is done about the end of a worker by the call that finds it. Supervision (supervised_worker.hpp) is one.
class Recovery {
 public:
  Recovery() = default;
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;
  virtual ~Recovery() = default;
  /// A call has found the end of the worker: `why` is a WorkerDied or a WorkerError. Never waits.
  virtual void on_end(Worker& worker, std::exception_ptr why) = 0;
  /// Follows on_end() in a call that may wait. Throws what its caller is to hear.
  [[noreturn]] virtual void recover(Worker& worker) = 0;
  /// Whether on_end() has been called, and tell() not since.
  [[nodiscard]] virtual bool pending() const = 0;
  /// Throws what a caller of the worker is to hear about the end that was found last.
  [[noreturn]] virtual void tell(Worker& worker) = 0;
};

class Worker {
 public:
  /// Forks. Throws UsageError where a fork cannot work: a live CUDA context does not survive one.
  explicit Worker(const WorkFunction& work, WorkerOptions options = {});
  /// Starts a program that calls run_spawned.
  static Worker spawn(const std::vector<std::string>& command, WorkerOptions options = {});
  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  /// Like close(); but while an exception unwinds the stack, a worker that is busy is interrupted, and soon killed.
  ~Worker();

  // Each throws WorkerError if the work function threw, WorkerDied if the process died, EndOfStream if the work
  // function returned; and what Channel's calls throw.
  void send(const Value& value);
  [[nodiscard]] Value recv(const ReceiveOptions& options = {});
  void send(const Message& message);
  [[nodiscard]] Message receive(const ReceiveOptions& options = {});
  bool send_some(const Message& message);
  bool flush_some();
  [[nodiscard]] std::optional<Message> try_receive(std::optional<std::uint64_t> max_size = {},
                                                   Lane lane = Lane::messages);
  // As Channel's.
  void put_back(Message message) { channel().put_back(std::move(message)); }
  void pump() { channel().pump(); }
  void look_around() { channel().look_around(); }
  [[nodiscard]] bool has_unsent() { return channel().has_unsent(); }
  [[nodiscard]] bool ended() { return channel().ended(); }
  [[nodiscard]] Codec codec() { return channel().codec(); }

  /// Waits for the process to end and returns its exit code, or minus the signal that killed it. What the worker
  /// still sends can be received afterwards. TimeoutError if it does not end in time.
  int wait(std::optional<double> timeout_s = {});
  [[nodiscard]] bool is_alive() const;
  /// SIGKILL ends the worker and all that it started; another signal goes to the worker alone.
  void kill(int signal = 9);
  /// What its process is doing now: its state, and where it is. It goes on as if nothing had been asked.
  [[nodiscard]] std::string stack();
  /// The first half of close(): the worker sees the end of the stream.
  void end();
  /// Ends the conversation: the worker sees the end of the stream, has grace_s to finish, and is killed if it has
  /// not. A failure that nobody received is then reported on standard error. If the wait is interrupted, the worker is
  /// too, and the interrupt is thrown once it has ended; a second one kills it.
  void close(double grace_s = limits::close_grace_ms / 1000.0);

  [[nodiscard]] pid_t pid() const;
  [[nodiscard]] int fileno() const;               ///< readable when recv() may have something
  [[nodiscard]] int process_fileno() const;       ///< readable when the process has ended
  [[nodiscard]] const std::string& name() const;  ///< "worker 1234 (train)"
  /// One rung lower.
  [[nodiscard]] Channel& channel();

  /// From now on, send(), recv() and receive() recover when they find that the process has died or that the work
  /// function has thrown. The calls that never wait only tell the recovery about it. None (the default): no recovery.
  void set_recovery(std::shared_ptr<Recovery> recovery) { recovery_ = std::move(recovery); }
  /// Takes the process of another worker in place of its own, which it closes; its recovery stays.
  void adopt(Worker other);
  [[nodiscard]] Recovery* recovery() const { return recovery_.get(); }
  /// How often adopt() has been called.
  [[nodiscard]] int replacements() const { return replacements_; }

  class State;  // the inside, for the library's own files

 protected:
  explicit Worker(std::unique_ptr<State> state);

 private:
  friend class Closer;
  friend class Unsupervised;
  enum class Patience : std::uint8_t { wait, none };
  template <class Call>
  auto recovering(Patience patience, Call call);
  void end_was_found(Patience patience);

  std::unique_ptr<State> state_;
  std::shared_ptr<Recovery> recovery_;
  int replacements_ = 0;
};

/// While it lives, calls on these workers throw what they find and recover nothing: for what is done with many workers
/// at once, and for the preparation of a new process. The workers stay where they are meanwhile.
class Unsupervised {
 public:
  explicit Unsupervised(std::span<Worker* const> workers);
  Unsupervised(const Unsupervised&) = delete;
  Unsupervised& operator=(const Unsupervised&) = delete;
  ~Unsupervised();

 private:
  std::vector<std::pair<Worker*, std::shared_ptr<Recovery>>> supervised_;
};

/// Closes many workers together: they share one grace. Those that another thread is using are left alone; the end of
/// this process ends them. Interrupts are handled as by Worker::close.
void close_all(std::span<Worker* const> workers, Closing how = Closing::finish);

/// The positions of the workers from which recv() returns or throws at once, in order; none on time-out.
[[nodiscard]] std::vector<std::size_t> wait_any(std::span<Worker* const> workers, std::optional<double> timeout_s = {});
[[nodiscard]] std::vector<std::size_t> wait_any(std::span<Worker> workers, std::optional<double> timeout_s = {});

}  // namespace miniray
