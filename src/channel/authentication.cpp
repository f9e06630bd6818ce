#include "channel/authentication.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/check.hpp"
#include "base/fd.hpp"
#include "base/network.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr std::string_view client_magic = "MiniRay?";
constexpr std::string_view server_magic = "MiniRay!";
constexpr std::size_t nonce_bytes = 32, proof_bytes = 32;
constexpr std::size_t sealing_bytes = 4;
constexpr std::size_t client_hello_bytes = 8 + 4 + sealing_bytes + nonce_bytes;
constexpr std::size_t server_head_bytes = 8 + 4 + 4;
constexpr const char* make_key = "python3 -c 'import secrets; print(secrets.token_hex(32))'";

std::string random_string(std::size_t bytes) {
  std::string text(bytes, '\0');
  fill_randomly({reinterpret_cast<unsigned char*>(text.data()), text.size()});
  return text;
}

// The time that it takes does not show where the first difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

void write_hex(std::span<const unsigned char> bytes, unsigned char* to) {
  constexpr std::string_view digits = "0123456789abcdef";
  for (const unsigned char byte : bytes) {
    *to++ = static_cast<unsigned char>(digits[byte >> 4]);
    *to++ = static_cast<unsigned char>(digits[byte & 15]);
  }
}

unsigned value_of_digit(char digit) {
  if (digit <= '9') return static_cast<unsigned>(digit - '0');
  return static_cast<unsigned>((digit | 0x20) - 'a' + 10);
}

void append_number(std::string& out, std::uint32_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::uint32_t number_at(std::string_view bytes, std::size_t at) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

std::string versions_differ(std::uint32_t theirs) {
  return "it speaks version " + std::to_string(theirs) + " of MiniRay's protocol, and this side speaks version " +
         std::to_string(protocol_version) + ": install the same MiniRay on both machines";
}

std::string wrong_key(const Key& ours) {
  const std::string origin = ours.origin().empty() ? "" : " (this side's is the one in " + ours.origin() + ")";
  return "it has another key. Give both sides the same one: copy ~/.miniray/key, or set MINIRAY_KEY on both" + origin;
}

// Reads the key straight into memory that is wiped later.
Key read_key_file(const std::filesystem::path& path) {
  constexpr std::size_t room_for_key = 4096;
  const Secret content(room_for_key);
  const int number = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait for its writer
  if (number < 0) throw SystemError("open the key file " + path.string(), errno);
  const Fd file(number);
  struct stat status{};
  if (fstat(number, &status) != 0) throw SystemError("look at the key file " + path.string(), errno);
  if (!S_ISREG(status.st_mode))
    throw UsageError(path.string() +
                     " should be the key file, and it is no ordinary file. Remove it: a new key is made when none is "
                     "there");
  const ssize_t size = read(number, content.get().data(), room_for_key);
  if (size < 0) throw SystemError("read the key file " + path.string(), errno);
  return Key::from_hex(content.text().substr(0, static_cast<std::size_t>(size)), path.string());
}

void make_key_file(const std::filesystem::path& path) {
  const Secret key = Key::random().secret_hex();
  std::error_code failure;
  std::filesystem::create_directories(path.parent_path(), failure);
  if (!failure) std::filesystem::permissions(path.parent_path(), std::filesystem::perms::owner_all, failure);
  if (failure) throw SystemError("make the folder " + path.parent_path().string() + " for the key", failure.value());
  // The key is written to another file and linked into place: of two programs that start together, the first one's link
  // succeeds, and both use its key.
  const std::string beside = path.string() + "." + random_hex(8);
  const int number = open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (number < 0) throw SystemError("make the key file " + path.string(), errno);
  const Fd file(number);
  const std::string_view text = key.text();
  const bool written =
      write(number, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && write(number, "\n", 1) == 1;
  const int error = errno;
  [[maybe_unused]] const int linked =
      written ? link(beside.c_str(), path.c_str()) : 0;  // fails if another program was first
  unlink(beside.c_str());
  if (!written) throw SystemError("write the key file " + path.string(), error);
}

}  // namespace

std::string to_hex(std::span<const unsigned char> bytes) {
  std::string text(2 * bytes.size(), '\0');
  write_hex(bytes, reinterpret_cast<unsigned char*>(text.data()));
  return text;
}

std::string random_hex(std::size_t bytes) {
  const std::string random = random_string(bytes);
  return to_hex({reinterpret_cast<const unsigned char*>(random.data()), random.size()});
}

std::string content_hash(std::string_view content) {
  const std::string hash = sha256(content);
  return to_hex({reinterpret_cast<const unsigned char*>(hash.data()), hash.size()});
}

Key Key::random() {
  Key key;
  fill_randomly(key.data_.get());
  return key;
}

Key Key::from_hex(std::string_view text, const std::string& where) {
  while (!text.empty() && std::strchr(" \t\r\n", text.back()) != nullptr) text.remove_suffix(1);
  const bool right = text.size() == 2 * bytes && text.find_first_not_of("0123456789abcdefABCDEF") == text.npos;
  if (!right)
    throw UsageError("the key in " + where + " must be " + std::to_string(2 * bytes) +
                     " hexadecimal digits, and it has " +
                     (text.size() == 2 * bytes ? "other characters" : std::to_string(text.size()) + " characters") +
                     ". Make one with: " + make_key);
  Key key;
  key.origin_ = where;
  const std::span<unsigned char> data = key.data_.get();
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<unsigned char>(value_of_digit(text[2 * i]) << 4 | value_of_digit(text[2 * i + 1]));
  return key;
}

Key Key::of_user() {
  if (const char* setting = std::getenv(variable)) return from_hex(setting, variable);
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0')
    throw UsageError(
        "there is no key: neither MINIRAY_KEY nor HOME (for ~/.miniray/key) is set. Set HOME, or: export "
        "MINIRAY_KEY=$(" +
        std::string(make_key) + ")");
  const std::filesystem::path path = std::filesystem::path(home) / ".miniray" / "key";
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) {
    make_key_file(path);
    return read_key_file(path);
  }
  if ((status.st_mode & 077) != 0 || (status.st_uid != geteuid() && geteuid() != 0))
    throw UsageError("others may read the key file " + path.string() + ", so it is no secret. Make a new one: rm " +
                     path.string() + " (and restart the servers that used it)");
  return read_key_file(path);
}

void Key::wipe_environment() { wipe_from_environment(variable); }

Secret Key::secret_hex() const {
  Secret hex(hex_digits);
  write_hex(get(), hex.get().data());
  return hex;
}

Sealing sealing_for(int socket, std::optional<bool> encrypt) {
  if (system::is_unix_socket(socket)) return Sealing::never;
  if (encrypt) return *encrypt ? Sealing::always : Sealing::never;
  return network::stays_on_machine(socket) ? Sealing::if_asked : Sealing::always;
}

Handshake::Handshake(Role role, const Key& key, Sealing sealing) : role_(role), key_(key), sealing_(sealing) {
  if (role == Role::server) {
    expect(Step::client_hello, client_hello_bytes);
    return;
  }
  output_ = client_magic;
  append_number(output_, protocol_version);
  append_number(output_, static_cast<std::uint32_t>(sealing));
  output_ += random_string(nonce_bytes);
  transcript_ = output_;
  expect(Step::server_hello_head, server_head_bytes);
}

void Handshake::prepare() {
  if (role_ == Role::client && sealing_ == Sealing::always) (void)own_open_key();
}

const std::string& Handshake::own_open_key() {
  if (!own_) own_.emplace();
  return own_->open();
}

// Goes to a step that needs this many bytes of the peer.
void Handshake::expect(Step step, std::size_t bytes) {
  step_ = step;
  expected_ = bytes;
  input_.clear();
}

void Handshake::refuse(Refusal refusal, std::string error_text) {
  refusal_ = refusal;
  error_text_ = std::move(error_text);
  expect(Step::failed, 0);
}

// A proof depends on everything that was said before it, of which the nonces are new for each connection, and on the
// side that sends it. So a recorded proof of another connection, or the peer's own proof sent back, is worthless, and
// nobody can change a hello unnoticed.
std::string Handshake::proof(std::string_view label) const {
  const SecretBlock made = hmac(key_.get(), {label, transcript_});
  return {made.get().begin(), made.get().end()};
}

void Handshake::feed(std::string_view arrived) {
  MINIRAY_CHECK(arrived.size() <= wanted(), arrived.size(), wanted());
  begun_ = begun_ || !arrived.empty();
  input_ += arrived;
  // A peer that speaks another protocol is refused at its first bytes, even if it never sends a whole hello.
  if (step_ == Step::client_hello && !client_magic.starts_with(input_.substr(0, client_magic.size())))
    return refuse(Refusal::other_version, "it does not speak MiniRay's protocol");
  // So is a peer of another version, whose hello may be shorter.
  constexpr std::size_t version_end = client_magic.size() + 4;
  if (step_ == Step::client_hello && input_.size() >= version_end && input_.size() < client_hello_bytes &&
      number_at(input_, client_magic.size()) != protocol_version)
    return client_hello_arrived();
  if (wanted() > 0) return;
  switch (step_) {
    case Step::client_hello:
      return client_hello_arrived();
    case Step::server_hello_head:
      return server_hello_head_arrived();
    case Step::server_hello_sealing:
      return server_hello_sealing_arrived();
    case Step::server_hello_rest:
      return server_hello_rest_arrived();
    case Step::client_proof:
      return client_proof_arrived();
    case Step::done:
    case Step::failed:
      return;
  }
}

// Each end knows what it says itself, and what the other must have said.
void Handshake::refuse_sealing(Sealing theirs) {
  refuse(
      Refusal::other_sealing,
      theirs == Sealing::never
          ? "it was told not to encrypt (encrypt=False, --no-encrypt), and this side encrypts what leaves the machine. "
            "Say the same on both sides: not to encrypt only on networks that you trust"
          : "it encrypts its connections, and this side was told not to (encrypt=False, --no-encrypt). Say the same on "
            "both sides");
}

// The server proves first, so that a client never gives its proof to a server without the key.
void Handshake::client_hello_arrived() {
  const std::uint32_t theirs = number_at(input_, client_magic.size());
  output_ = server_magic;
  append_number(output_, protocol_version);
  if (theirs != protocol_version) {
    append_number(output_, static_cast<std::uint32_t>(Refusal::other_version));
    return refuse(Refusal::other_version, versions_differ(theirs));
  }
  const std::uint32_t said = number_at(input_, client_magic.size() + 4);
  if (said > static_cast<std::uint32_t>(Sealing::always))
    return refuse(Refusal::other_version, "its hello is malformed");
  const auto sealing = static_cast<Sealing>(said);
  sealed_ = std::max(sealing, sealing_) == Sealing::always;
  if (sealed_ && std::min(sealing, sealing_) == Sealing::never) {
    append_number(output_, static_cast<std::uint32_t>(Refusal::other_sealing));
    return refuse_sealing(sealing);
  }
  append_number(output_, static_cast<std::uint32_t>(Refusal::none));
  append_number(output_, sealed_ ? 1 : 0);
  output_ += random_string(nonce_bytes);
  if (sealed_) output_ += own_open_key();
  transcript_ = input_ + output_;
  output_ += proof("MiniRay server");
  transcript_ = input_ + output_;
  expect(Step::client_proof, (sealed_ ? KeyPair::open_bytes : 0) + proof_bytes);
}

// The head of the server's hello has the version and the refusal. It is read by itself, because a refusal ends there.
void Handshake::server_hello_head_arrived() {
  if (!input_.starts_with(server_magic))
    return refuse(Refusal::other_version, "the program that listens there is not a MiniRay worker server");
  const std::uint32_t theirs = number_at(input_, server_magic.size());
  const auto refusal = static_cast<Refusal>(number_at(input_, server_magic.size() + 4));
  if (theirs != protocol_version || refusal == Refusal::other_version)
    return refuse(Refusal::other_version, versions_differ(theirs));
  if (refusal == Refusal::other_sealing)
    return refuse_sealing(sealing_ == Sealing::never ? Sealing::always : Sealing::never);
  if (refusal != Refusal::none)
    return refuse(refusal, "it has more unfinished connections than it can hold. Try again later");
  transcript_ += input_;
  expect(Step::server_hello_sealing, sealing_bytes);
}

void Handshake::server_hello_sealing_arrived() {
  const std::uint32_t said = number_at(input_, 0);
  if (said > 1) return refuse(Refusal::other_version, "its hello is malformed");
  sealed_ = said == 1;
  if (sealing_ == (sealed_ ? Sealing::never : Sealing::always))
    return refuse_sealing(sealed_ ? Sealing::always : Sealing::never);
  transcript_ += input_;
  expect(Step::server_hello_rest, nonce_bytes + (sealed_ ? KeyPair::open_bytes : 0) + proof_bytes);
}

void Handshake::server_hello_rest_arrived() {
  const std::size_t before_proof = input_.size() - proof_bytes;
  transcript_.append(input_, 0, before_proof);
  const std::string_view theirs = std::string_view(input_).substr(before_proof);
  if (!equal_in_constant_time(theirs, proof("MiniRay server"))) return refuse(Refusal::wrong_key, wrong_key(key_));
  transcript_ += theirs;
  if (sealed_) {
    peers_open_key_ = input_.substr(nonce_bytes, KeyPair::open_bytes);
    output_ = own_open_key();
    transcript_ += own_open_key();
  }
  const std::string own = proof("MiniRay client");
  output_ += own;
  transcript_ += own;
  expect(Step::done, 0);
}

void Handshake::client_proof_arrived() {
  const std::size_t before_proof = input_.size() - proof_bytes;
  transcript_.append(input_, 0, before_proof);
  const std::string_view theirs = std::string_view(input_).substr(before_proof);
  if (!equal_in_constant_time(theirs, proof("MiniRay client"))) return refuse(Refusal::wrong_key, wrong_key(key_));
  transcript_ += theirs;
  if (sealed_) peers_open_key_ = input_.substr(0, KeyPair::open_bytes);
  expect(Step::done, 0);
}

// The keys depend on the shared key, on what only these two ends can compute from their key pairs, and on everything
// that they have said. The key pair is dropped, so that nobody can open a recorded connection later.
std::shared_ptr<Seal> Handshake::take_seal() {
  MINIRAY_CHECK(done());
  if (!sealed_) return nullptr;
  const SecretBlock common = own_->common_with(peers_open_key_);
  own_.reset();
  const SecretBlock session =
      hmac(key_.get(), {{reinterpret_cast<const char*>(common.get().data()), SecretBlock::bytes}});
  const std::string said = sha256(transcript_);
  const SecretBlock from_client = derive(session, "MiniRay from client" + said);
  const SecretBlock from_server = derive(session, "MiniRay from server" + said);
  const bool client = role_ == Role::client;
  return std::make_shared<Seal>(client ? from_client : from_server, client ? from_server : from_client);
}

}  // namespace miniray
