// Where a pool's workers come from, and how one that is gone is replaced.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "miniray/channel.hpp"
#include "miniray/cluster.hpp"
#include "miniray/error.hpp"
#include "miniray/remote_worker.hpp"
#include "miniray/task_options.hpp"
#include "miniray/worker.hpp"

namespace miniray {

/// What the scheduler knows about a machine.
struct PoolNode {
  std::string name;
  double cpus = 0;
  std::vector<std::string> gpu_names = {};  ///< as CUDA_VISIBLE_DEVICES has them there
  Amounts custom = {};
};

struct PlacedWorker {
  std::size_t node;
  std::shared_ptr<Worker> worker;
};

/// A worker that is being made for the place of one that is gone.
class Recruit {
 public:
  Recruit() = default;
  Recruit(const Recruit&) = delete;
  Recruit& operator=(const Recruit&) = delete;
  virtual ~Recruit() = default;
  /// Goes on as far as it can without waiting, and returns the worker once it is there. Throws WillNotCome if none ever
  /// will be. Throws another exception if this attempt failed; the next call begins a new one.
  [[nodiscard]] virtual std::shared_ptr<Worker> advance() = 0;
  /// Returns a connection to the node's server if that is a new one. Call it when the worker is there.
  [[nodiscard]] virtual std::optional<Channel> new_link() { return std::nullopt; }
};

/// A place that the program fills itself, in a thread that may wait. Any thread may answer, once.
class Ticket {
 public:
  Ticket(std::size_t at, std::shared_ptr<Worker> had_it) : node(at), gone(std::move(had_it)) {}

  void fill(std::shared_ptr<Worker> worker);
  /// Says that this attempt failed. The program is asked again after a pause.
  void fail(const std::string& why);
  /// Says that no worker will come.
  void refuse(const std::string& why);
  /// Returns the worker once it is there, and null before. Throws if the answer was fail() or refuse().
  [[nodiscard]] std::shared_ptr<Worker> take();

  const std::size_t node;
  const std::shared_ptr<Worker> gone;
  std::function<void()> on_answer = {};

 private:
  void answer(std::shared_ptr<Worker> worker, std::exception_ptr failure);

  std::mutex mutex_;
  std::shared_ptr<Worker> worker_;
  std::exception_ptr failure_;
};

/// The place of a worker stays empty. what() says why.
class WillNotCome : public Error {
 public:
  using Error::Error;
};

class WorkerSource {
 public:
  WorkerSource() = default;
  WorkerSource(const WorkerSource&) = delete;
  WorkerSource& operator=(const WorkerSource&) = delete;
  virtual ~WorkerSource() = default;
  /// Begins to make a worker for the place of `gone`, whose process has ended or cannot be reached. Throws WillNotCome.
  [[nodiscard]] virtual std::unique_ptr<Recruit> recruit(std::size_t node, const std::shared_ptr<Worker>& gone) = 0;
  /// Returns whether the worker runs on this machine, whose clock can say until when a task may begin.
  [[nodiscard]] virtual bool shares_clock(const Worker& worker) const = 0;

  /// Hands a ticket to the program.
  std::function<void(std::shared_ptr<Ticket>)> on_ticket = {};
};

/// The program makes workers. If `why_none` has a text, it makes none, and this is the reason.
[[nodiscard]] std::unique_ptr<WorkerSource> program_source(std::string why_none = {});
/// A server at this address forks workers. If the server is gone, the program is asked for a worker.
[[nodiscard]] std::unique_ptr<WorkerSource> server_source(RemoteAddress server);
/// The servers of a cluster start workers. A server that is gone is launched again. The cluster must outlive it.
[[nodiscard]] std::unique_ptr<WorkerSource> cluster_source(Cluster& cluster);

/// Returns the machine that a worker's name says; an empty text if that is this one.
[[nodiscard]] std::string host_of(const Worker& worker);

}  // namespace miniray
