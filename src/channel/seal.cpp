#include "channel/seal.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr std::size_t record_head_bytes = 4;
constexpr std::uint32_t last_record = 1U << 31;

std::size_t total_bytes(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

}  // namespace

SecretBlock derive(const SecretBlock& from, std::string_view text) { return hmac(from.get(), {text, "\x01"}); }

Seal::Seal(const SecretBlock& sending, const SecretBlock& receiving, std::uint64_t records_per_key)
    : sending_(sending, records_per_key), receiving_(receiving, records_per_key) {
  MINIRAY_CHECK(records_per_key > 0);
}

// Replaces the key before it has encrypted more records than is safe. The next key is derived from it.
Cipher& Seal::Direction::cipher() {
  if (number > 0 && number % records_per_key == 0) {
    secret = derive(secret, "MiniRay next key");
    current.reset();
  }
  if (!current) current.emplace(secret);
  return *current;
}

Cipher::Nonce Seal::Direction::take_nonce() {
  Cipher::Nonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof(number));
  ++number;
  return nonce;
}

void Seal::Bytes::reserve(std::size_t more) {
  if (begin == end) begin = end = 0;
  if (capacity - end >= more) return;
  if (capacity - size() >= more) {
    std::memmove(data(), data() + begin, size());
  } else {
    capacity = size() + more;
    auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (size() > 0) std::memcpy(larger.get(), data() + begin, size());
    memory = std::move(larger);
  }
  end -= std::exchange(begin, 0);
}

// The pieces are gathered in the place of the record and encrypted there. A single piece needs no copy.
void Seal::append_record(std::span<const iovec> pieces, std::size_t bytes, bool last) {
  MINIRAY_CHECK(bytes <= limits::sealed_record_bytes && !sent_end_, bytes, sent_end_);
  out_.reserve(record_head_bytes + bytes + Cipher::tag_bytes);
  const std::span<std::byte> head(out_.data() + out_.end, record_head_bytes);
  const std::uint32_t announced = static_cast<std::uint32_t>(bytes) | (last ? last_record : 0);
  std::memcpy(head.data(), &announced, sizeof(announced));
  std::byte* const place = head.data() + head.size();
  std::span<const std::byte> plain(place, bytes);
  if (!pieces.empty() && pieces[0].iov_len >= bytes) {
    plain = {static_cast<const std::byte*>(pieces[0].iov_base), bytes};
  } else {
    std::size_t gathered = 0;
    for (const iovec& piece : pieces) {
      const std::size_t some = std::min(piece.iov_len, bytes - gathered);
      if (some > 0) std::memcpy(place + gathered, piece.iov_base, some);
      gathered += some;
    }
    MINIRAY_CHECK(gathered == bytes, gathered, bytes);
  }
  Cipher& cipher = sending_.cipher();
  cipher.seal(sending_.take_nonce(), head, plain, place);
  out_.end += record_head_bytes + bytes + Cipher::tag_bytes;
}

std::size_t Seal::add(std::span<const iovec> pieces) {
  const std::size_t bytes = std::min<std::size_t>(total_bytes(pieces), limits::sealed_record_bytes);
  MINIRAY_CHECK(bytes > 0);
  append_record(pieces, bytes, false);
  return bytes;
}

void Seal::add_end() {
  if (sent_end_) return;
  append_record({}, 0, true);
  sent_end_ = true;
}

void Seal::wrote(std::size_t bytes) {
  MINIRAY_CHECK(bytes <= out_.size(), bytes, out_.size());
  out_.begin += bytes;
}

std::string Seal::records_of(std::string_view text) {
  MINIRAY_CHECK(!has_unsent(), out_.size());
  iovec rest{const_cast<char*>(text.data()), text.size()};
  while (rest.iov_len > 0) {
    const std::size_t bytes = add(std::span(&rest, 1));
    rest = {static_cast<char*>(rest.iov_base) + bytes, rest.iov_len - bytes};
  }
  const std::string records(reinterpret_cast<const char*>(unsent().data()), unsent().size());
  wrote(records.size());
  return records;
}

// Room for what is missing of the next record, and for more if the peer sends much.
std::span<std::byte> Seal::room() {
  MINIRAY_CHECK(opened_.empty() && !next_record(), opened_.size());  // the caller must call read() first
  if (!reads_ahead_) {
    const std::size_t missing = missing_bytes();
    in_.reserve(missing);
    return {in_.data() + in_.end, missing};
  }
  constexpr std::size_t record_bytes_max = record_head_bytes + limits::sealed_record_bytes + Cipher::tag_bytes;
  const std::size_t wanted = std::max(grow_to_, in_.size() > record_head_bytes ? record_bytes_max : 0);
  in_.reserve(wanted - std::min(wanted - 1, in_.size()));
  return {in_.data() + in_.end, in_.capacity - in_.end};
}

// Returns how many bytes are missing of the next record's head, or of the whole record once its head is there.
std::size_t Seal::missing_bytes() const {
  if (in_.size() < record_head_bytes) return record_head_bytes - in_.size();
  std::uint32_t announced = 0;
  std::memcpy(&announced, in_.data() + in_.begin, sizeof(announced));
  return record_head_bytes + (announced & ~last_record) + Cipher::tag_bytes - in_.size();
}

void Seal::committed(std::size_t bytes) {
  in_.end += bytes;
  MINIRAY_CHECK(in_.end <= in_.capacity, in_.end, in_.capacity);
  if (reads_ahead_ && in_.end == in_.capacity) grow_to_ = std::min(2 * in_.capacity, limits::sealed_buffer_bytes_max);
}

std::optional<Seal::Record> Seal::next_record() const {
  if (in_.size() < record_head_bytes) return std::nullopt;
  std::uint32_t announced = 0;
  std::memcpy(&announced, in_.data() + in_.begin, sizeof(announced));
  const Record record{announced & ~last_record, (announced & last_record) != 0};
  if (ended_) throw ProtocolError("the peer sent bytes behind the end of a sealed stream");
  if (record.bytes > limits::sealed_record_bytes || (record.bytes == 0) != record.last)
    throw ProtocolError(
        "the peer's sealed stream has a record of an impossible size: somebody has changed it on its way");
  if (in_.size() < record_head_bytes + record.bytes + Cipher::tag_bytes) return std::nullopt;
  return record;
}

bool Seal::readable() const {
  if (!opened_.empty()) return true;
  try {
    return next_record().has_value();
  } catch (const ProtocolError&) {
    return true;
  }
}

std::size_t Seal::read(std::span<std::byte> to) {
  if (opened_.empty()) {
    const std::optional<Record> record = next_record();
    if (!record) return 0;
    const std::span<const std::byte> head(in_.data() + in_.begin, record_head_bytes);
    const std::span<std::byte> sealed(in_.data() + in_.begin + record_head_bytes, record->bytes + Cipher::tag_bytes);
    const bool fits = record->bytes <= to.size();
    Cipher& cipher = receiving_.cipher();
    if (!cipher.open(receiving_.take_nonce(), head, sealed, fits ? to.data() : sealed.data()))
      throw ProtocolError(
          "the peer's sealed stream has a record that is not the peer's next one: on its way, somebody has changed, "
          "repeated, reordered or "
          "removed what the peer sent. Is there a faulty or hostile device on the network path?");
    in_.begin += record_head_bytes + sealed.size();
    ended_ = record->last;
    if (fits) return record->bytes;
    opened_ = sealed.first(record->bytes);
  }
  const std::size_t bytes = std::min(to.size(), opened_.size());
  std::memcpy(to.data(), opened_.data(), bytes);
  opened_ = opened_.subspan(bytes);
  return bytes;
}

void Seal::wipe() {
  for (Direction* const direction : {&sending_, &receiving_}) {
    direction->secret = SecretBlock();
    direction->current.reset();
  }
}

bool SealedSocket::write_at_once(std::string_view text) const {
  const std::string records = seal ? seal->records_of(text) : std::string(text);
  const iovec piece{const_cast<char*>(records.data()), records.size()};
  try {
    return system::send(socket.get(), std::span(&piece, 1), {}).bytes == records.size();
  } catch (const SystemError&) {
    return false;
  }
}

system::Transfer receive(int socket, Seal* seal, std::span<std::byte> room, system::Block block,
                         std::vector<Fd>* descriptors) {
  if (seal == nullptr) return system::receive(socket, room, block, descriptors);
  while (true) {
    if (const std::size_t bytes = seal->read(room); bytes > 0) return {system::Transfer::Outcome::moved, bytes};
    if (seal->ended()) return {system::Transfer::Outcome::closed};
    const system::Transfer transfer = system::receive(socket, seal->room(), block, nullptr);
    if (transfer.outcome != system::Transfer::Outcome::moved) return transfer;
    seal->committed(transfer.bytes);
  }
}

// A record is either unsent or in the caller's pieces, never both, even if writing it throws: it is written by the next
// call.
system::Transfer send(int socket, Seal* seal, std::span<const iovec> pieces, std::span<const int> descriptors) {
  if (seal == nullptr) return system::send(socket, pieces, descriptors);
  MINIRAY_CHECK(descriptors.empty(), descriptors.size());  // only TCP is sealed, which passes none
  while (seal->has_unsent()) {
    const std::span<const std::byte> unsent = seal->unsent();
    const iovec piece{const_cast<std::byte*>(unsent.data()), unsent.size()};
    const system::Transfer transfer = system::send(socket, std::span(&piece, 1), {});
    if (transfer.outcome != system::Transfer::Outcome::moved) return transfer;
    seal->wrote(transfer.bytes);
  }
  if (pieces.empty()) return {system::Transfer::Outcome::moved, 0};
  if (seal->sent_end()) return {system::Transfer::Outcome::closed};
  return {system::Transfer::Outcome::moved, seal->add(pieces)};
}

}  // namespace miniray
