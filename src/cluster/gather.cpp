#include "cluster/gather.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "miniray/cluster.hpp"
#include "miniray/error.hpp"

namespace miniray {

std::vector<std::size_t> Gathered::missing() const {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (!messages[i]) positions.push_back(i);
  return positions;
}

Gathered gather_messages(std::span<Worker* const> workers, const ReceiveOptions& options) {
  const Unsupervised tells_of_deaths(workers);  // a restart of one worker must not delay the others
  const Deadline deadline = Deadline::in_seconds(options.timeout_s);
  Gathered gathered;
  gathered.messages.resize(workers.size());
  try {
    for (std::vector<std::size_t> missing = gathered.missing(); !missing.empty() && !gathered.failed;
         missing = gathered.missing()) {
      std::vector<Worker*> silent;
      for (const std::size_t position : missing) silent.push_back(workers[position]);
      const std::vector<std::size_t> ready = wait_any(silent, deadline.seconds_left());
      if (ready.empty()) break;
      for (const std::size_t at : ready) {
        if (gathered.failed) break;  // a later call receives from the others
        try {
          gathered.messages[missing[at]] = silent[at]->receive({options.max_size, {}});
        } catch (const Error&) {
          gathered.failed = missing[at];
          gathered.error = std::current_exception();
        }
      }
    }
  } catch (...) {
    put_back(workers, gathered);
    throw;
  }
  return gathered;
}

void put_back(std::span<Worker* const> workers, Gathered& gathered) {
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (gathered.messages[i] && !workers[i]->channel().closed())
      workers[i]->channel().put_back(std::move(*gathered.messages[i]));
    gathered.messages[i].reset();
  }
}

std::vector<Message> take_messages(Gathered& gathered) {
  std::vector<Message> messages;
  messages.reserve(gathered.messages.size());
  for (std::optional<Message>& message : gathered.messages) messages.push_back(std::move(*message));
  return messages;
}

std::vector<Message> Cluster::gather(std::span<Worker* const> workers, const ReceiveOptions& options) {
  Gathered gathered = gather_messages(workers, options);
  if (gathered.complete()) return take_messages(gathered);
  std::string silent;
  for (const std::size_t position : gathered.missing())
    silent += (silent.empty() ? "" : ", ") + workers[position]->name();
  put_back(workers, gathered);
  if (gathered.error) std::rethrow_exception(gathered.error);
  throw TimeoutError("no message came within the time-out from " + silent);
}

}  // namespace miniray
