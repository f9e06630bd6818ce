#include "channel/ring.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr std::size_t ring_memory_bytes = ring_head_bytes + limits::ring_bytes;

std::uint64_t with_padding(std::uint64_t frame_bytes) {
  constexpr std::uint64_t step = ring_record_step;
  return (sizeof(RingRecord) + frame_bytes + step - 1) / step * step;
}

// copy_in() and copy_out() continue at the start of the ring when they reach its end.
void copy_in(std::span<std::byte> ring, std::uint64_t position, const void* from, std::size_t bytes) {
  MINIRAY_CHECK(bytes <= limits::ring_bytes, bytes);
  const std::size_t begin = position % limits::ring_bytes, first = std::min(bytes, limits::ring_bytes - begin);
  std::memcpy(ring.data() + begin, from, first);
  if (first < bytes) std::memcpy(ring.data(), static_cast<const std::byte*>(from) + first, bytes - first);
}
void copy_out(std::span<const std::byte> ring, std::uint64_t position, void* to, std::size_t bytes) {
  MINIRAY_CHECK(bytes <= limits::ring_bytes, bytes);
  const std::size_t begin = position % limits::ring_bytes, first = std::min(bytes, limits::ring_bytes - begin);
  std::memcpy(to, ring.data() + begin, first);
  if (first < bytes) std::memcpy(static_cast<std::byte*>(to) + first, ring.data(), bytes - first);
}

}  // namespace

std::optional<std::pair<RingWriter, Fd>> RingWriter::make() {
  Fd memory = system::sealed_memory("miniray", ring_memory_bytes);
  if (!memory.valid()) return {};
  try {
    RingWriter ring(std::make_unique<system::Mapping>(memory.get(), ring_memory_bytes));
    return std::pair(std::move(ring), std::move(memory));
  } catch (const SystemError&) {  // no room in the address space; the channel works without a ring
    return {};
  }
}

// The reader writes to `read` with every frame, so that looking at it costs a cache miss: it is done only now and then.
void RingWriter::look_at_reader(std::int64_t now) {
  const std::uint64_t read = head().read.load(std::memory_order_acquire);
  if (read > written_ || read < seen_read_) return;  // the peer wrote nonsense: there is no more room than before
  if (read != seen_read_) sign_of_life_ns_ = looked_ns_;
  seen_read_ = read;
  looked_ns_ = now;
}

// If the reader sleeps, sets `quiet` and returns true: the caller has to wake the reader, and later puts need not.
bool RingWriter::reader_sleeps() {
  if (head().quiet.load() != 0) return false;
  head().quiet.store(1, std::memory_order_relaxed);
  return true;
}

RingWriter::Outcome RingWriter::put(std::uint64_t stream_bytes, std::span<const iovec> frame, std::int64_t now) {
  RingRecord record{stream_bytes, 0};
  for (const iovec& piece : frame) record.frame_bytes += piece.iov_len;
  const std::uint64_t bytes = with_padding(record.frame_bytes);
  if (record.frame_bytes > limits::ring_frame_bytes_max) return Outcome::not_put;
  // Two looks, of which the second sees a change, are less than the silence apart.
  if (bytes > room() || now - looked_ns_ > limits::ring_silence_ns / 4) look_at_reader(now);
  if (bytes > room()) return Outcome::not_put;
  if (reader_sleeps() || now - sign_of_life_ns_ > limits::ring_silence_ns) {
    sign_of_life_ns_ = now;  // a send through the socket fails if the reader is gone
    return Outcome::not_put;
  }
  // The record must not overwrite one that the reader has not taken.
  MINIRAY_CHECK(written_ + bytes - seen_read_ <= limits::ring_bytes, written_, bytes, seen_read_);
  copy_in(data(), written_, &record, sizeof(record));
  std::uint64_t position = written_ + sizeof(record);
  for (const iovec& piece : frame) {
    copy_in(data(), position, piece.iov_base, piece.iov_len);
    position += piece.iov_len;
  }
  MINIRAY_CHECK(position <= written_ + bytes, position, written_, bytes);
  written_ += bytes;
  // Both this store and the one in sleep() are sequentially consistent. So either the reader, which sleeps first and
  // looks then, sees this frame, or this side sees that the reader sleeps.
  head().written.store(written_);
  return reader_sleeps() ? Outcome::put_and_reader_sleeps : Outcome::put;
}

void RingWriter::check_invariants() const {
  MINIRAY_CHECK(written_ % ring_record_step == 0, written_);
  MINIRAY_CHECK(seen_read_ <= written_ && written_ - seen_read_ <= limits::ring_bytes, seen_read_, written_);
}

RingReader::RingReader(Fd memory)
    : Ring([&] {
        const std::size_t bytes = memory.valid() ? system::sealed_memory_bytes(memory.get()) : 0;
        if (bytes != ring_memory_bytes)
          throw ProtocolError("the peer offered a ring that cannot be used (" + std::to_string(bytes) + " bytes)");
        return std::make_unique<system::Mapping>(memory.get(), bytes);
      }()) {}

std::optional<std::string_view> RingReader::take(std::uint64_t stream_bytes) {
  const std::uint64_t written = head().written.load();
  if (written == read_) return {};
  RingRecord record;
  copy_out(data(), read_, &record, sizeof(record));
  const bool fits = record.frame_bytes <= limits::ring_frame_bytes_max && written > read_ &&
                    written - read_ <= limits::ring_bytes && with_padding(record.frame_bytes) <= written - read_;
  if (!fits)
    throw ProtocolError("the peer wrote a malformed record into the ring (" + std::to_string(record.frame_bytes) +
                        " bytes, of " + std::to_string(written - read_) + ")");
  if (record.stream_bytes > stream_bytes) return {};
  if (frame_.size() < record.frame_bytes) frame_.resize(record.frame_bytes);
  copy_out(data(), read_ + sizeof(record), frame_.data(), record.frame_bytes);
  read_ += with_padding(record.frame_bytes);
  MINIRAY_CHECK(read_ <= written, read_, written);
  head().read.store(read_, std::memory_order_release);
  return std::string_view(frame_).substr(0, record.frame_bytes);
}

bool RingReader::may_take(std::uint64_t stream_bytes) const {
  RingRecord record;
  copy_out(data(), read_, &record, sizeof(record));
  return record.stream_bytes <= stream_bytes;
}

void RingReader::check_invariants() const {
  MINIRAY_CHECK(read_ % ring_record_step == 0, read_);
  MINIRAY_CHECK(frame_.size() <= limits::ring_frame_bytes_max, frame_.size());
}

}  // namespace miniray
