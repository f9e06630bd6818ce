#include "tasks/worker_source.hpp"

#include <cctype>
#include <string_view>
#include <utility>

#include "base/check.hpp"
#include "cluster/replacement.hpp"
#include "worker/connect_workers.hpp"

namespace miniray {

// "worker 1234 at node1:10000 (name)"
std::string host_of(const Worker& worker) {
  constexpr std::string_view title = "worker ", place = " at ";
  std::string_view rest = worker.name();
  if (!rest.starts_with(title)) return {};
  rest.remove_prefix(title.size());
  while (!rest.empty() && std::isdigit(static_cast<unsigned char>(rest.front())) != 0) rest.remove_prefix(1);
  if (!rest.starts_with(place)) return {};
  rest.remove_prefix(place.size());
  rest = rest.substr(0, rest.find(" ("));
  return std::string(rest.substr(0, rest.rfind(':')));
}

void Ticket::answer(std::shared_ptr<Worker> worker, std::exception_ptr failure) {
  {
    const std::scoped_lock lock(mutex_);
    MINIRAY_CHECK(!worker_ && !failure_);
    worker_ = std::move(worker);
    failure_ = std::move(failure);
  }
  on_answer();
}

void Ticket::fill(std::shared_ptr<Worker> worker) {
  MINIRAY_CHECK(worker);
  answer(std::move(worker), {});
}
void Ticket::fail(const std::string& why) { answer({}, std::make_exception_ptr(Error(why))); }
void Ticket::refuse(const std::string& why) { answer({}, std::make_exception_ptr(WillNotCome(why))); }

std::shared_ptr<Worker> Ticket::take() {
  const std::scoped_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  return std::move(worker_);
}

namespace {

class AskedRecruit : public Recruit {
 public:
  AskedRecruit(const WorkerSource& source, std::size_t node, std::shared_ptr<Worker> gone)
      : source_(source), node_(node), gone_(std::move(gone)) {}

  std::shared_ptr<Worker> advance() override {
    if (!ticket_) source_.on_ticket(ticket_ = std::make_shared<Ticket>(node_, gone_));
    try {
      return ticket_->take();
    } catch (...) {
      ticket_.reset();
      throw;
    }
  }

 private:
  const WorkerSource& source_;
  const std::size_t node_;
  const std::shared_ptr<Worker> gone_;
  std::shared_ptr<Ticket> ticket_;
};

class ProgramSource : public WorkerSource {
 public:
  explicit ProgramSource(std::string why_none) : why_none_(std::move(why_none)) {}
  std::unique_ptr<Recruit> recruit(std::size_t node, const std::shared_ptr<Worker>& gone) override {
    if (!why_none_.empty()) throw WillNotCome(why_none_);
    return std::make_unique<AskedRecruit>(*this, node, gone);
  }
  bool shares_clock(const Worker& worker) const override { return host_of(worker).empty(); }

 private:
  std::string why_none_;
};

class ServerSource : public WorkerSource {
 public:
  explicit ServerSource(RemoteAddress server) : server_(std::move(server)) {}
  std::unique_ptr<Recruit> recruit(std::size_t node, const std::shared_ptr<Worker>& gone) override {
    return std::make_unique<Forked>(*this, node, gone);
  }
  bool shares_clock(const Worker& /*worker*/) const override { return true; }

 private:
  class Forked : public Recruit {
   public:
    Forked(const ServerSource& source, std::size_t node, const std::shared_ptr<Worker>& gone)
        : source_(source), otherwise_(source, node, gone) {}
    std::shared_ptr<Worker> advance() override {
      if (!server_gone_ && !connection_) connection_ = std::make_unique<WorkerConnection>(source_.server_);
      std::shared_ptr<Worker> worker = connected();
      return server_gone_ ? otherwise_.advance() : worker;
    }

   private:
    std::shared_ptr<Worker> connected() {
      if (!connection_) return nullptr;
      try {
        std::optional<Worker> made = connection_->advance();
        if (!made) return nullptr;
        connection_.reset();
        return std::make_shared<Worker>(std::move(*made));
      } catch (const Error&) {
        connection_.reset();
        server_gone_ = true;
        return nullptr;
      }
    }

    const ServerSource& source_;
    AskedRecruit otherwise_;
    std::unique_ptr<WorkerConnection> connection_;
    bool server_gone_ = false;
  };

  RemoteAddress server_;
};

class ClusterSource : public WorkerSource {
 public:
  explicit ClusterSource(Cluster& cluster) : cluster_(cluster) {}
  std::unique_ptr<Recruit> recruit(std::size_t node, const std::shared_ptr<Worker>& gone) override {
    try {
      return std::make_unique<Replaced>(cluster_, *gone, node);
    } catch (const UsageError& error) {  // it was stopped
      throw WillNotCome(error.what());
    }
  }
  bool shares_clock(const Worker& /*worker*/) const override { return false; }

 private:
  class Replaced : public Recruit {
   public:
    Replaced(Cluster& cluster, Worker& gone, std::size_t node) : replacement_(cluster, gone, node) {}
    std::shared_ptr<Worker> advance() override {
      std::optional<Worker> made = replacement_.advance();
      return made ? std::make_shared<Worker>(std::move(*made)) : nullptr;
    }
    std::optional<Channel> new_link() override { return replacement_.new_link(); }

   private:
    Replacement replacement_;
  };

  Cluster& cluster_;
};

}  // namespace

std::unique_ptr<WorkerSource> program_source(std::string why_none) {
  return std::make_unique<ProgramSource>(std::move(why_none));
}
std::unique_ptr<WorkerSource> server_source(RemoteAddress server) {
  return std::make_unique<ServerSource>(std::move(server));
}
std::unique_ptr<WorkerSource> cluster_source(Cluster& cluster) { return std::make_unique<ClusterSource>(cluster); }

}  // namespace miniray
