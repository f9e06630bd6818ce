// Holds buffers that the peer has sent once, and that later messages name by a number. Each message gets a private view
// of the buffer, so that no other message sees what is written to it. Input is untrusted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/check.hpp"
#include "base/fd.hpp"
#include "base/system.hpp"
#include "miniray/array.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {

class KeptBuffers {
 public:
  void keep(std::uint64_t number, std::span<const std::byte> bytes) {
    drop(number);
    if (bytes.empty() || bytes_ + bytes.size() > limits::kept_bytes_max || kept_.size() >= limits::kept_buffers_max)
      throw ProtocolError("the peer asked to keep an empty buffer, or more than " +
                          std::to_string(limits::kept_buffers_max) + " buffers or " +
                          std::to_string(limits::kept_bytes_max) + " bytes");
    Fd memory = system::sealed_memory("miniray-kept", bytes.size());
    if (!memory.valid()) throw ProtocolError("cannot keep a buffer for the peer: out of shared memory");
    system::write_memory(memory.get(), bytes);
    bytes_ += bytes.size();
    kept_[number] = {std::move(memory), bytes.size()};
  }
  void drop(std::uint64_t number) {
    const auto found = kept_.find(number);
    if (found == kept_.end()) return;
    MINIRAY_CHECK(bytes_ >= found->second.bytes, bytes_, found->second.bytes);
    bytes_ -= found->second.bytes;
    kept_.erase(found);
  }
  [[nodiscard]] Buffer take(std::uint64_t number, std::uint64_t bytes) const {
    const auto found = kept_.find(number);
    if (found == kept_.end() || found->second.bytes != bytes)
      throw ProtocolError("the peer named a kept buffer that it has not sent");
    auto mapping =
        std::make_shared<system::Mapping>(found->second.memory.get(), bytes, system::Mapping::Kind::private_copy);
    std::byte* const data = mapping->bytes().data();
    return {std::move(mapping), data, static_cast<std::size_t>(bytes)};
  }
  /// Checks that each buffer has its memory, and that the sum of their bytes is right and within the limit.
  void check_invariants() const {
    std::uint64_t bytes = 0;
    for (const auto& [number, kept] : kept_) {
      MINIRAY_CHECK(kept.memory.valid() && kept.bytes > 0, number, kept.bytes);
      bytes += kept.bytes;
    }
    MINIRAY_CHECK(bytes == bytes_ && bytes <= limits::kept_bytes_max, bytes, bytes_);
  }

 private:
  struct Kept {
    Fd memory;
    std::uint64_t bytes;
  };
  std::map<std::uint64_t, Kept> kept_;
  std::uint64_t bytes_ = 0;
};

}  // namespace miniray
