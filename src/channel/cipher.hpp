// What MiniRay needs of cryptography: HMAC-SHA-256, X25519, and AES-256-GCM, which encrypts bytes and shows whether
// anybody has changed them. Libraries do the work, with the instructions of the CPU where it has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace miniray {

/// 32 secret bytes of one connection, which are wiped when the object is destroyed. (base/secret.hpp is for keys that
/// live long.)
class SecretBlock {
 public:
  static constexpr std::size_t bytes = 32;
  SecretBlock() = default;
  SecretBlock(const SecretBlock&) = default;
  SecretBlock& operator=(const SecretBlock&) = default;
  ~SecretBlock();
  [[nodiscard]] std::span<unsigned char, bytes> get() { return data_; }
  [[nodiscard]] std::span<const unsigned char, bytes> get() const { return data_; }

 private:
  std::array<unsigned char, bytes> data_{};
};

/// Returns the HMAC-SHA-256 of the parts, one after the other.
[[nodiscard]] SecretBlock hmac(std::span<const unsigned char> key, std::initializer_list<std::string_view> parts);
[[nodiscard]] std::string sha256(std::string_view content);
void fill_randomly(std::span<unsigned char> room);

/// An X25519 key pair. Two ends that know their own secret and the other's open key compute the same common secret.
class KeyPair {
 public:
  static constexpr std::size_t open_bytes = 32;
  KeyPair();
  /// For tests.
  explicit KeyPair(const SecretBlock& secret);
  [[nodiscard]] const std::string& open() const { return open_; }
  /// A peer may send a key with which the result is known to everybody. So the result alone must not be trusted.
  [[nodiscard]] SecretBlock common_with(std::string_view their_open_key) const;

 private:
  SecretBlock secret_;
  std::string open_;
};

class Cipher {
 public:
  static constexpr std::size_t nonce_bytes = 12, tag_bytes = 16;
  using Nonce = std::array<unsigned char, nonce_bytes>;

  explicit Cipher(const SecretBlock& key);
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;
  ~Cipher();  // wipes what was derived from the key

  /// Writes the encrypted bytes and a tag: plain.size() + tag_bytes. `sealed` may be the place of the plain bytes. The
  /// tag also covers `head`, which is sent as it is. A nonce must never be used twice with one key.
  void seal(const Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> plain, std::byte* sealed);
  /// Undoes seal(): writes sealed.size() - tag_bytes plain bytes, possibly to the place of the sealed ones. Returns
  /// false if nonce, head or sealed bytes are not those of seal(); what was written is then worthless.
  [[nodiscard]] bool open(const Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> sealed,
                          std::byte* plain);

  class Implementation;  // one for each kind of CPU
  /// The fastest first: with instructions for four blocks at once, with instructions for one block, and for any CPU.
  /// All make the same bytes. Tests and benchmarks choose one by its name in MINIRAY_TEST_CIPHER.
  enum class Kind : std::uint8_t { wide, narrow, common };
  [[nodiscard]] static bool can_use(Kind kind);
  Cipher(const SecretBlock& key, Kind kind);

 private:
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace miniray
