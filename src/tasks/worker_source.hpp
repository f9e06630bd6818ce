// Where a pool's workers come from, and what takes the place of one that is gone.
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

/// A machine, as the scheduler sees it.
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

/// A worker on its way to the place of one that is gone. It never waits.
class Recruit {
 public:
  Recruit() = default;
  Recruit(const Recruit&) = delete;
  Recruit& operator=(const Recruit&) = delete;
  virtual ~Recruit() = default;
  /// Goes on as far as it can, and returns the worker once it is there. Throws WillNotCome if none ever will be, and
  /// another exception if none can be had now; the next call begins anew.
  [[nodiscard]] virtual std::shared_ptr<Worker> advance() = 0;
  /// A connection to the node's server, if that is a new one, when the worker is there.
  [[nodiscard]] virtual std::optional<Channel> new_link() { return std::nullopt; }
};

/// A place that the program fills itself, in a thread that may wait. Any thread may answer, once.
class Ticket {
 public:
  Ticket(std::size_t at, std::shared_ptr<Worker> had_it) : node(at), gone(std::move(had_it)) {}

  void fill(std::shared_ptr<Worker> worker);
  /// None can be had now. It is asked again, after a pause.
  void fail(const std::string& why);
  /// None will come.
  void refuse(const std::string& why);
  /// The worker, once it is there. Throws what the answer says.
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

/// The place stays empty, and what() says why.
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
  /// For the place of `gone` on this node. Its process has ended, or is lost. Throws WillNotCome.
  [[nodiscard]] virtual std::unique_ptr<Recruit> recruit(std::size_t node, const std::shared_ptr<Worker>& gone) = 0;
  /// Whether workers of this source can be told, on this machine's clock, until when a task may begin.
  [[nodiscard]] virtual bool shares_clock(const Worker& worker) const = 0;

  /// Hands a ticket to the program.
  std::function<void(std::shared_ptr<Ticket>)> on_ticket = {};
};

/// Where the program makes the workers; or where none takes the place of one that is gone, and why.
[[nodiscard]] std::unique_ptr<WorkerSource> program_source(std::string why_none = {});
/// Where a server at this address forks them. If it is gone, the program is asked for another worker.
[[nodiscard]] std::unique_ptr<WorkerSource> server_source(RemoteAddress server);
/// Workers of a cluster, whose nodes' servers are launched again if they are gone. The cluster must outlive it.
[[nodiscard]] std::unique_ptr<WorkerSource> cluster_source(Cluster& cluster);

/// The machine of a worker, as its name tells; empty if that is this one.
[[nodiscard]] std::string host_of(const Worker& worker);

}  // namespace miniray
