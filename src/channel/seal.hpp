// Seals a connection between two machines: what one side sends becomes encrypted records, and the other side accepts
// them only unchanged, in order and from that side. This code handles bytes, not sockets; docs/wire_format.md is the
// grammar. Input is untrusted.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/system.hpp"
#include "channel/cipher.hpp"
#include "miniray/limits.hpp"

namespace miniray {

/// Returns a key that others of the same origin do not show: HKDF-Expand, with one block.
[[nodiscard]] SecretBlock derive(const SecretBlock& from, std::string_view text);

/// The two directions of a sealed connection. It belongs to one process: if two continued it, they would use the same
/// nonces for different bytes.
class Seal {
 public:
  Seal(const SecretBlock& sending, const SecretBlock& receiving,
       std::uint64_t records_per_key = limits::sealed_records_per_key);

  // What is sent. Records wait in unsent() until the caller has written them.

  /// Seals the first bytes of the pieces as one record. Returns how many bytes these are.
  std::size_t add(std::span<const iovec> pieces);
  /// Adds the last record, which tells the peer that the stream ends here in good order. No record may follow.
  void add_end();
  [[nodiscard]] bool sent_end() const { return sent_end_; }
  [[nodiscard]] std::span<const std::byte> unsent() const { return {out_.data() + out_.begin, out_.size()}; }
  [[nodiscard]] bool has_unsent() const { return out_.size() > 0; }
  void wrote(std::size_t bytes);
  /// Seals a whole text. Returns its records, for a caller that writes them itself.
  [[nodiscard]] std::string records_of(std::string_view text);

  // What arrives.

  /// From now on, room() has place for more than the next record, which saves system calls. Until then, what follows
  /// the next record stays in the socket, which tells whoever waits for the socket that it is there.
  void read_ahead() { reads_ahead_ = true; }
  /// Returns the place of the next bytes from the peer; committed() takes what was written there.
  [[nodiscard]] std::span<std::byte> room();
  void committed(std::size_t bytes);
  /// Moves plain bytes of records that have arrived whole to `to`, and returns how many. 0 means that no whole record
  /// is there. Throws ProtocolError if a record is not the peer's next one.
  [[nodiscard]] std::size_t read(std::span<std::byte> to);
  /// Returns whether read() would return bytes, or throw.
  [[nodiscard]] bool readable() const;
  /// Returns whether the peer has ended the stream in good order.
  [[nodiscard]] bool ended() const { return ended_; }

  /// Drops what was not written. The stream must be closed after that.
  void drop_unsent() { out_.begin = out_.end; }
  /// Overwrites the keys. For a forked process, which has a copy of them and must not: nothing else may be called then.
  void wipe();

 private:
  // One direction: its key, and the number of its next record.
  struct Direction {
    Direction(const SecretBlock& first_key, std::uint64_t records) : secret(first_key), records_per_key(records) {}
    Cipher& cipher();
    [[nodiscard]] Cipher::Nonce take_nonce();
    SecretBlock secret;
    std::uint64_t records_per_key;
    std::uint64_t number = 0;
    std::optional<Cipher> current = {};
  };
  // Bytes between `begin` and `end`, in memory that grows but is not initialised.
  struct Bytes {
    [[nodiscard]] std::byte* data() const { return memory.get(); }
    [[nodiscard]] std::size_t size() const { return end - begin; }
    void reserve(std::size_t more);  // makes room behind `end`
    std::unique_ptr<std::byte[]> memory = {};
    std::size_t capacity = 0, begin = 0, end = 0;
  };
  struct Record {
    std::size_t bytes;  // of the plain text
    bool last;
  };
  void append_record(std::span<const iovec> pieces, std::size_t bytes, bool last);
  [[nodiscard]] std::optional<Record> next_record() const;
  [[nodiscard]] std::size_t missing_bytes() const;

  Direction sending_, receiving_;
  Bytes out_, in_;
  std::size_t grow_to_ = limits::sealed_buffer_bytes_min;  // the size of in_, which grows if the peer sends much
  std::span<std::byte> opened_;                            // plain bytes in in_ that read() has not moved yet
  bool reads_ahead_ = false, ended_ = false, sent_end_ = false;
};

/// A socket after its handshake. `seal` is null if nothing is sealed.
struct SealedSocket {
  Fd socket;
  std::shared_ptr<Seal> seal;

  [[nodiscard]] int fileno() const { return socket.get(); }
  [[nodiscard]] bool valid() const { return socket.valid(); }
  /// Writes a small text to a socket whose buffer is empty, without waiting. Returns false if the socket does not take
  /// all of it.
  bool write_at_once(std::string_view text) const;
};

/// Like system::receive() and system::send(), but what passes through the socket is sealed, unless `seal` is null. What
/// receive() returns is never more than one record. send() has taken a byte when it is in seal->unsent(): the caller
/// calls send() again, with the rest of its pieces or with none, until has_unsent() is false. After add_end(), it is
/// closed.
system::Transfer receive(int socket, Seal* seal, std::span<std::byte> room, system::Block block,
                         std::vector<Fd>* descriptors);
system::Transfer send(int socket, Seal* seal, std::span<const iovec> pieces, std::span<const int> descriptors);

}  // namespace miniray
