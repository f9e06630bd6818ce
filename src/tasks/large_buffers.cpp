#include "tasks/large_buffers.hpp"

#include <algorithm>
#include <cstring>

#include "miniray/limits.hpp"

namespace miniray {
namespace {

// Tells most buffers apart by a few of their words; equal ones are then compared in full.
std::uint64_t sample_of(std::span<const std::byte> bytes) {
  constexpr std::size_t words = 64;
  std::uint64_t sample = bytes.size();
  const std::size_t step = bytes.size() / words;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * step, sizeof(word));
    sample = (sample ^ word) * 0x9e3779b97f4a7c15ULL;
    sample ^= sample >> 29;
  }
  return sample;
}

}  // namespace

std::vector<std::shared_ptr<const LargeBuffer>> LargeBuffers::own_buffers(Message& call) {
  std::vector<std::shared_ptr<const LargeBuffer>> large;
  std::vector<BufferPlace> places(call.buffers.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    Buffer& buffer = call.buffers[i];
    if (buffer.size < limits::shared_buffer_bytes_min) {
      if (buffer.owner) continue;
      Buffer copy = Buffer::allocate(buffer.size);
      std::ranges::copy(buffer.bytes(), copy.data);
      buffer = std::move(copy);
      continue;
    }
    Recognised found = recognise(buffer.bytes());
    buffer = std::move(found.buffer);
    if (!found.known) continue;
    places[i] = BufferPlace::kept(found.known->number);
    large.push_back(std::move(found.known));
  }
  if (!large.empty()) call.places = std::move(places);
  return large;
}

LargeBuffers::Recognised LargeBuffers::recognise(std::span<const std::byte> bytes) {
  const std::uint64_t sample = sample_of(bytes);
  for (Seen& seen : seen_) {
    if (seen.sample != sample || seen.buffer.size != bytes.size()) continue;
    if (std::memcmp(seen.buffer.data, bytes.data(), bytes.size()) != 0) continue;
    if (!seen.known) seen.known = std::make_shared<LargeBuffer>(LargeBuffer{++last_number_, seen.buffer});
    return {seen.buffer, seen.known};
  }
  Buffer copy = Buffer::allocate(bytes.size());
  std::memcpy(copy.data, bytes.data(), bytes.size());
  if (bytes.size() > limits::recognised_bytes_max) return {std::move(copy), nullptr};
  seen_.push_back({sample, copy, nullptr});
  seen_bytes_ += bytes.size();
  while (seen_.size() > limits::recognised_buffers_max || seen_bytes_ > limits::recognised_bytes_max) {
    seen_bytes_ -= seen_.front().buffer.size;
    seen_.pop_front();
  }
  return {std::move(copy), nullptr};
}

}  // namespace miniray
