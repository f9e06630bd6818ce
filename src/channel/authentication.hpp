// The two ends of a connection prove to each other that they have the same key before they read anything else, and
// agree on keys that seal what follows. This code handles bytes, not sockets; docs/wire_format.md is the grammar. The
// key is never sent, and no error text contains it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/secret.hpp"
#include "channel/seal.hpp"

namespace miniray {

/// A key in memory that is overwritten when its last copy is destroyed, and that forked processes do not inherit.
class Key {
 public:
  static constexpr std::size_t bytes = 32;
  static constexpr std::size_t hex_digits = 2 * bytes;

  static Key random();
  /// Parses 64 hexadecimal digits, which come from `where`. Throws UsageError, whose text does not contain the digits.
  static Key from_hex(std::string_view text, const std::string& where);
  /// Returns the key in MINIRAY_KEY, or in ~/.miniray/key, which the first call creates. Throws UsageError if other
  /// users could read the file.
  static Key of_user();
  static constexpr const char* variable = "MINIRAY_KEY";
  /// Removes MINIRAY_KEY from this process's memory. Workers call it: they need no key. No other thread
  /// may read the environment meanwhile.
  static void wipe_environment();
  /// Returns the key as 64 hexadecimal digits.
  [[nodiscard]] Secret secret_hex() const;
  /// Returns the same for people and tests, as text that is not wiped.
  [[nodiscard]] std::string hex() const { return std::string(secret_hex().text()); }
  /// Returns where the key comes from, for errors: MINIRAY_KEY, a file or an argument; empty for a random key.
  [[nodiscard]] const std::string& origin() const { return origin_; }
  /// Throws UsageError in a process that was forked after the key was made.
  [[nodiscard]] std::span<const unsigned char> get() const { return data_.get(); }

 private:
  Key() : data_(bytes) {}

  Secret data_;
  std::string origin_;
};

std::string random_hex(std::size_t bytes);
std::string to_hex(std::span<const unsigned char> bytes);
/// Returns the SHA-256 hash in hexadecimal digits.
std::string content_hash(std::string_view content);

inline constexpr std::uint32_t protocol_version = 3;

/// Why an end refuses the other.
enum class Refusal : std::uint32_t { none = 0, other_version = 1, wrong_key = 2, too_many = 3, other_sealing = 4 };

/// Whether an end of a connection wants it to be sealed. The connection is sealed if one end says `always` and the
/// other does not say `never`. Ends that say `always` and `never` refuse each other.
enum class Sealing : std::uint8_t { never = 0, if_asked = 1, always = 2 };

/// Returns what to say about a connected socket: what `encrypt` demands; or, by default, `always` if the connection
/// leaves this machine. A Unix-domain socket is never sealed here: the kernel or an ssh tunnel protects it.
[[nodiscard]] Sealing sealing_for(int socket, std::optional<bool> encrypt);

/// One end of the proof. The caller feeds it the bytes that arrive and sends the bytes that take_output() returns,
/// until done() is true or refusal() is set. Input is untrusted.
class Handshake {
 public:
  enum class Role : std::uint8_t { client, server };
  Handshake(Role role, const Key& key, Sealing sealing);
  /// Does the costly part of the next step, if there is one, while the peer does its own. The caller may leave it out.
  void prepare();

  /// Returns the bytes to send now, and drops them.
  [[nodiscard]] std::string take_output() { return std::exchange(output_, {}); }
  /// Returns how many bytes to read next. It is never more than the peer must send, so that the caller does not read
  /// bytes that come after the handshake.
  [[nodiscard]] std::size_t wanted() const { return expected_ - input_.size(); }
  void feed(std::string_view arrived);
  [[nodiscard]] bool done() const { return step_ == Step::done; }
  /// Returns whether the rest of the connection is sealed, once the handshake is done.
  [[nodiscard]] bool seals() const { return done() && sealed_; }
  /// Returns what seals the rest of the connection, once the handshake is done; null if nothing is sealed. The client
  /// should send its last bytes first: both ends then compute at the same time.
  [[nodiscard]] std::shared_ptr<Seal> take_seal();
  /// Returns the reason if the handshake has failed. The connection must then be closed.
  [[nodiscard]] const std::optional<Refusal>& refusal() const { return refusal_; }
  /// Returns the cause and the cure of a failure, for people.
  [[nodiscard]] const std::string& error_text() const { return error_text_; }
  /// Overwrites what a forked process must not have. Nothing else may be called then.
  void wipe() { own_.reset(); }
  /// Returns whether the peer has sent anything.
  [[nodiscard]] bool begun() const { return begun_; }

 private:
  enum class Step : std::uint8_t {
    client_hello,
    server_hello_head,
    server_hello_sealing,
    server_hello_rest,
    client_proof,
    done,
    failed
  };
  void expect(Step step, std::size_t bytes);
  void client_hello_arrived();
  void server_hello_head_arrived();
  void server_hello_sealing_arrived();
  void server_hello_rest_arrived();
  void client_proof_arrived();
  void refuse(Refusal refusal, std::string error_text);
  [[nodiscard]] std::string proof(std::string_view label) const;
  const std::string& own_open_key();
  void refuse_sealing(Sealing theirs);

  Role role_;
  Key key_;
  Sealing sealing_;
  Step step_ = Step::done;
  bool begun_ = false;
  std::size_t expected_ = 0;
  std::string input_, output_;
  std::string transcript_;  // everything that was said before the next proof
  bool sealed_ = false;
  std::optional<KeyPair> own_;  // only this connection uses it
  std::string peers_open_key_;
  std::optional<Refusal> refusal_;
  std::string error_text_;
};

}  // namespace miniray
