#include "worker/supply.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/check.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

// A request or an answer on the socket. The size of a request is 0, and so is that of an answer without a buffer.
struct Record {
  std::uint64_t number, bytes;
};

bool send_record(int socket, Record record, std::span<const int> descriptors) {
  const iovec piece{&record, sizeof(record)};
  return system::send(socket, std::span(&piece, 1), descriptors).bytes == sizeof(record);
}

}  // namespace

Buffer SupplyLine::fetch(std::uint64_t number, std::uint64_t bytes) {
  if (!send_record(socket_.get(), {number, 0}, {}))
    throw ProtocolError("cannot ask the worker server for a buffer that several workers share");
  Record answer{};
  std::vector<Fd> descriptors;
  system::Transfer transfer{};
  while (system::poll_one(socket_.get(), POLLIN, limits::wait_slice_ms) <= 0)
    if (on_interrupt_) on_interrupt_();
  do {
    transfer =
        system::receive(socket_.get(), std::as_writable_bytes(std::span(&answer, 1)), system::Block::yes, &descriptors);
  } while (transfer.outcome == system::Transfer::Outcome::interrupted);
  const bool right = transfer.bytes == sizeof(answer) && answer.number == number && answer.bytes == bytes &&
                     descriptors.size() == 1 && system::sealed_memory_bytes(descriptors[0].get()) >= bytes;
  if (!right)
    throw ProtocolError("the worker server does not have a buffer that several workers share; its log says why");
  if (bytes == 0) return Buffer::allocate(0);  // nothing can be mapped
  auto mapping = std::make_shared<system::Mapping>(descriptors[0].get(), bytes, system::Mapping::Kind::private_copy);
  std::byte* const data = mapping->bytes().data();
  return {std::move(mapping), data, bytes};
}

void SupplyStore::hand_over(std::uint64_t number, Worker worker, int socket) {
  const auto found = items_.find(number);
  MINIRAY_CHECK(found != items_.end() && found->second.wanted_by.contains(worker), number, worker);
  Item& item = found->second;
  const std::array<int, 1> descriptor{item.memory.valid() ? item.memory.get() : -1};
  send_record(socket, {number, item.bytes}, std::span(descriptor).first(item.memory.valid() ? 1 : 0));
  item.wanted_by.erase(worker);
  if (item.wanted_by.empty()) items_.erase(found);
}

// Stores the buffer, and answers the workers that already wait for it.
void SupplyStore::keep(std::uint64_t number, Item item) {
  const std::set<Worker> workers = item.wanted_by;
  if (workers.empty()) return;
  MINIRAY_CHECK(item.memory.valid() || item.bytes == 0, number, item.bytes);
  items_[number] = std::move(item);
  for (const Worker worker : workers) {
    const auto found = waiting_.find(worker);
    if (found == waiting_.end() || found->second.number != number) continue;
    const int socket = found->second.socket;
    waiting_.erase(found);
    hand_over(number, worker, socket);
  }
}

void SupplyStore::put(std::uint64_t number, std::span<const std::byte> bytes, const std::vector<Worker>& workers) {
  Fd memory = system::sealed_memory("miniray-supply", std::max<std::size_t>(bytes.size(), 1));
  if (!memory.valid())
    throw SystemError("hold a buffer of " + std::to_string(bytes.size()) + " bytes for the workers", ENOMEM);
  system::write_memory(memory.get(), bytes);
  keep(number, {std::move(memory), bytes.size(), {workers.begin(), workers.end()}});
}

void SupplyStore::put_missing(std::uint64_t number, const std::vector<Worker>& workers) {
  keep(number, {{}, 0, {workers.begin(), workers.end()}});
}

bool SupplyStore::on_request(Worker worker, int socket) {
  Record question{};
  const system::Transfer transfer =
      system::receive(socket, std::as_writable_bytes(std::span(&question, 1)), system::Block::no, nullptr);
  if (transfer.outcome == system::Transfer::Outcome::would_block) return true;
  if (transfer.bytes != sizeof(question)) return false;
  const auto found = items_.find(question.number);
  if (found != items_.end() && found->second.wanted_by.contains(worker))
    hand_over(question.number, worker, socket);
  else if (expecting_)
    waiting_[worker] = {question.number, socket};
  else
    send_record(socket, {question.number, 0}, {});
  return true;
}

void SupplyStore::set_expecting(bool expecting) {
  expecting_ = expecting;
  if (expecting) return;
  for (const auto& [worker, asked] : waiting_) send_record(asked.socket, {asked.number, 0}, {});
  waiting_.clear();
}

void SupplyStore::drop_worker(Worker worker) {
  waiting_.erase(worker);
  for (auto& [number, item] : items_) {
    MINIRAY_CHECK(!item.wanted_by.empty(), number);  // otherwise the store would keep a buffer that no worker wants
    item.wanted_by.erase(worker);
  }
  std::erase_if(items_, [](const auto& entry) { return entry.second.wanted_by.empty(); });
}

}  // namespace miniray
