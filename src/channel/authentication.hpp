// Two ends of a connection prove to each other that they hold the same key, before either reads anything else. Knows
// only bytes, no sockets: docs/wire_format.md is the grammar. The key itself never travels and is in no error text.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace miniray {

class Key {
 public:
  static constexpr std::size_t bytes = 32;

  static Key random();
  /// 64 hexadecimal digits. Throws UsageError that does not repeat them.
  static Key from_hex(std::string_view text, const std::string& where);
  /// MINIRAY_KEY, or ~/.miniray/key, which is made on first use. Throws UsageError if others could read the file.
  static Key of_user();
  [[nodiscard]] std::string hex() const;
  /// Where it was found, for errors: MINIRAY_KEY, a file, an argument; empty if it was made here.
  [[nodiscard]] const std::string& origin() const { return origin_; }
  [[nodiscard]] std::span<const unsigned char> get() const { return data_; }

 private:
  std::array<unsigned char, bytes> data_{};
  std::string origin_;
};

std::string random_hex(std::size_t bytes);
std::string to_hex(std::span<const unsigned char> bytes);
/// SHA-256, in hexadecimal digits.
std::string content_hash(std::string_view content);

inline constexpr std::uint32_t protocol_version = 2;

/// Why a hello is answered with no.
enum class Refusal : std::uint32_t { none = 0, other_version = 1, wrong_key = 2, too_many = 3 };

/// One end of the proof. Feed it what arrives, send what it says, until it is done or has failed.
class Handshake {
 public:
  enum class Role : std::uint8_t { client, server };
  Handshake(Role role, const Key& key);

  /// What is to be sent now; taken once.
  [[nodiscard]] std::string take_output() { return std::exchange(output_, {}); }
  /// How many bytes it waits for: never more than the peer must send, so nothing of what follows is read too early.
  [[nodiscard]] std::size_t wanted() const { return expected_ - input_.size(); }
  void feed(std::string_view arrived);
  [[nodiscard]] bool done() const { return step_ == Step::done; }
  /// Set if the peer must not be talked to.
  [[nodiscard]] const std::optional<Refusal>& refusal() const { return refusal_; }
  /// For people: what is wrong, and what to do.
  [[nodiscard]] const std::string& complaint() const { return complaint_; }
  [[nodiscard]] bool begun() const { return begun_; }

 private:
  enum class Step : std::uint8_t { client_hello, server_hello_head, server_hello_rest, client_proof, done, failed };
  void expect(Step step, std::size_t bytes);
  void client_hello_arrived();
  void server_hello_head_arrived();
  void server_hello_rest_arrived();
  void client_proof_arrived();
  void refuse(Refusal refusal, std::string complaint);
  [[nodiscard]] std::string proof(std::string_view label) const;

  Key key_;
  Step step_ = Step::done;
  bool begun_ = false;
  std::size_t expected_ = 0;
  std::string input_, output_;
  std::string client_nonce_, server_nonce_;
  std::optional<Refusal> refusal_;
  std::string complaint_;
};

}  // namespace miniray
