#include "channel/cipher.hpp"

#include <bearssl.h>
#include <string.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#ifdef MINIRAY_HAS_IPSEC_MB
#include <intel-ipsec-mb.h>
// The library's header has the functions for older CPUs, and the types of all, but not these functions.
extern "C" {
std::remove_pointer_t<aes_gcm_precomp_t> aes_gcm_precomp_256_vaes_avx512;
std::remove_pointer_t<aes_gcm_enc_dec_t> aes_gcm_enc_256_vaes_avx512, aes_gcm_dec_256_vaes_avx512;
}
#endif

#include "base/check.hpp"
#include "base/secret.hpp"
#include "miniray/error.hpp"

namespace miniray {

class Cipher::Implementation {
 public:
  Implementation() = default;
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;
  virtual ~Implementation() = default;
  virtual void seal(const Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> plain,
                    std::byte* sealed) = 0;
  virtual bool open(const Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> sealed,
                    std::byte* plain) = 0;
};

namespace {

// BearSSL runs on any CPU, in constant time. It uses AES-NI and PCLMULQDQ where the CPU has them.
class CommonCipher final : public Cipher::Implementation {
 public:
  explicit CommonCipher(const SecretBlock& key) {
    const br_block_ctr_class* const with_instructions = br_aes_x86ni_ctr_get_vtable();
    const br_block_ctr_class* const aes = with_instructions != nullptr ? with_instructions : &br_aes_ct64_ctr_vtable;
    aes->init(&keys_.vtable, key.get().data(), key.get().size());
    const br_ghash ghash = br_ghash_pclmul_get();
    br_gcm_init(&context_, &keys_.vtable, ghash != nullptr ? ghash : &br_ghash_ctmul64);
  }
  ~CommonCipher() override {
    explicit_bzero(&keys_, sizeof(keys_));
    explicit_bzero(&context_, sizeof(context_));
  }
  void seal(const Cipher::Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> plain,
            std::byte* sealed) override {
    begin(nonce, head);
    if (sealed != plain.data() && !plain.empty()) std::memcpy(sealed, plain.data(), plain.size());
    br_gcm_run(&context_, 1, sealed, plain.size());
    br_gcm_get_tag(&context_, sealed + plain.size());
  }
  bool open(const Cipher::Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> sealed,
            std::byte* plain) override {
    const std::size_t bytes = sealed.size() - Cipher::tag_bytes;
    begin(nonce, head);
    if (plain != sealed.data() && bytes > 0) std::memcpy(plain, sealed.data(), bytes);
    br_gcm_run(&context_, 0, plain, bytes);
    return br_gcm_check_tag(&context_, sealed.data() + bytes) == 1;
  }

 private:
  void begin(const Cipher::Nonce& nonce, std::span<const std::byte> head) {
    br_gcm_reset(&context_, nonce.data(), nonce.size());
    br_gcm_aad_inject(&context_, head.data(), head.size());
    br_gcm_flip(&context_);
  }

  br_aes_gen_ctr_keys keys_{};
  br_gcm_context context_{};
};

#ifdef MINIRAY_HAS_IPSEC_MB
// IPsec-MB has the same functions for several sets of instructions.
struct GcmFunctions {
  aes_gcm_precomp_t precompute;
  aes_gcm_enc_dec_t encrypt, decrypt;
};
// Any CPU with AES-NI and PCLMULQDQ. Those of the library for AVX and AVX2 take as long, or longer.
constexpr GcmFunctions narrow_functions{aes_gcm_precomp_256_sse, aes_gcm_enc_256_sse, aes_gcm_dec_256_sse};
// Newer CPUs encrypt four blocks with one instruction.
constexpr GcmFunctions wide_functions{aes_gcm_precomp_256_vaes_avx512, aes_gcm_enc_256_vaes_avx512,
                                      aes_gcm_dec_256_vaes_avx512};

class QuickCipher final : public Cipher::Implementation {
 public:
  QuickCipher(const SecretBlock& key, const GcmFunctions& functions) : functions_(functions) {
    aes_keyexp_256_enc_sse(key.get().data(), keys_.expanded_keys);
    functions_.precompute(&keys_);
  }
  ~QuickCipher() override {
    explicit_bzero(&keys_, sizeof(keys_));
    explicit_bzero(&context_, sizeof(context_));
  }
  void seal(const Cipher::Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> plain,
            std::byte* sealed) override {
    auto* const out = reinterpret_cast<std::uint8_t*>(sealed);
    functions_.encrypt(&keys_, &context_, out, reinterpret_cast<const std::uint8_t*>(plain.data()), plain.size(),
                       nonce.data(), reinterpret_cast<const std::uint8_t*>(head.data()), head.size(),
                       out + plain.size(), Cipher::tag_bytes);
  }
  bool open(const Cipher::Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> sealed,
            std::byte* plain) override {
    const std::size_t bytes = sealed.size() - Cipher::tag_bytes;
    std::array<std::uint8_t, Cipher::tag_bytes> tag{};
    functions_.decrypt(&keys_, &context_, reinterpret_cast<std::uint8_t*>(plain),
                       reinterpret_cast<const std::uint8_t*>(sealed.data()), bytes, nonce.data(),
                       reinterpret_cast<const std::uint8_t*>(head.data()), head.size(), tag.data(), tag.size());
    unsigned difference = 0;  // compares in constant time, which does not show where the tags differ
    for (std::size_t i = 0; i < tag.size(); ++i)
      difference |= static_cast<unsigned>(tag[i]) ^ static_cast<unsigned>(sealed[bytes + i]);
    return difference == 0;
  }

 private:
  GcmFunctions functions_;
  alignas(64) gcm_key_data keys_{};
  alignas(64) gcm_context_data context_{};
};
#endif

std::unique_ptr<Cipher::Implementation> make_cipher([[maybe_unused]] Cipher::Kind kind, const SecretBlock& key) {
#ifdef MINIRAY_HAS_IPSEC_MB
  if (kind == Cipher::Kind::wide) return std::make_unique<QuickCipher>(key, wide_functions);
  if (kind == Cipher::Kind::narrow) return std::make_unique<QuickCipher>(key, narrow_functions);
#endif
  return std::make_unique<CommonCipher>(key);
}

// The fastest kind, unless a test or a benchmark chooses another one.
Cipher::Kind kind_to_use() {
  using enum Cipher::Kind;
  const char* const setting = std::getenv("MINIRAY_TEST_CIPHER");
  const std::string_view chosen = setting == nullptr ? "" : setting;
  if (Cipher::can_use(wide) && (chosen.empty() || chosen == "wide")) return wide;
  if (Cipher::can_use(narrow) && (chosen.empty() || chosen == "narrow")) return narrow;
  MINIRAY_CHECK(chosen.empty() || chosen == "common");
  return common;
}

}  // namespace

SecretBlock::~SecretBlock() { explicit_bzero(data_.data(), data_.size()); }

SecretBlock hmac(std::span<const unsigned char> key, std::initializer_list<std::string_view> parts) {
  br_hmac_key_context key_context;
  br_hmac_key_init(&key_context, &br_sha256_vtable, key.data(), key.size());
  br_hmac_context context;
  br_hmac_init(&context, &key_context, 0);
  for (const std::string_view part : parts) br_hmac_update(&context, part.data(), part.size());
  SecretBlock made;
  br_hmac_out(&context, made.get().data());
  // What was computed from the key would serve as well as the key, and a forked worker has a copy of this stack.
  explicit_bzero(&key_context, sizeof(key_context));
  explicit_bzero(&context, sizeof(context));
  wipe_stack();
  return made;
}

std::string sha256(std::string_view content) {
  br_sha256_context context;
  br_sha256_init(&context);
  br_sha256_update(&context, content.data(), content.size());
  std::string hash(br_sha256_SIZE, '\0');
  br_sha256_out(&context, hash.data());
  return hash;
}

void fill_randomly(std::span<unsigned char> room) {
  while (!room.empty()) {
    const ssize_t size = getrandom(room.data(), room.size(), 0);
    if (size < 0 && errno != EINTR) throw SystemError("get random numbers", errno);
    if (size > 0) room = room.subspan(static_cast<std::size_t>(size));
  }
}

KeyPair::KeyPair()
    : KeyPair([] {
        SecretBlock random;
        fill_randomly(random.get());
        return random;
      }()) {}

KeyPair::KeyPair(const SecretBlock& secret) : secret_(secret), open_(open_bytes, '\0') {
  const std::size_t bytes = br_ec_c25519_m31.mulgen(reinterpret_cast<unsigned char*>(open_.data()),
                                                    secret_.get().data(), SecretBlock::bytes, BR_EC_curve25519);
  MINIRAY_CHECK(bytes == open_bytes, bytes);
}

SecretBlock KeyPair::common_with(std::string_view their_open_key) const {
  MINIRAY_CHECK(their_open_key.size() == open_bytes, their_open_key.size());
  SecretBlock common;
  std::ranges::copy(their_open_key, common.get().begin());
  (void)br_ec_c25519_m31.mul(common.get().data(), SecretBlock::bytes, secret_.get().data(), SecretBlock::bytes,
                             BR_EC_curve25519);
  return common;
}

bool Cipher::can_use(Kind kind) {
  if (kind == Kind::common) return true;
#ifdef MINIRAY_HAS_IPSEC_MB
  static const bool narrow = __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0 &&
                             __builtin_cpu_supports("sse4.2") != 0;
  static const bool wide = narrow && __builtin_cpu_supports("avx512f") != 0 &&
                           __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("vaes") != 0 &&
                           __builtin_cpu_supports("vpclmulqdq") != 0;
  return kind == Kind::wide ? wide : narrow;
#else
  return false;
#endif
}

Cipher::Cipher(const SecretBlock& key)
    : Cipher(key, [] {
        static const Kind kind = kind_to_use();
        return kind;
      }()) {}

Cipher::Cipher(const SecretBlock& key, Kind kind) : implementation_(make_cipher(kind, key)) {
  MINIRAY_CHECK(can_use(kind), kind);
}

Cipher::~Cipher() = default;

void Cipher::seal(const Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> plain,
                  std::byte* sealed) {
  implementation_->seal(nonce, head, plain, sealed);
}

bool Cipher::open(const Nonce& nonce, std::span<const std::byte> head, std::span<const std::byte> sealed,
                  std::byte* plain) {
  MINIRAY_CHECK(sealed.size() >= tag_bytes, sealed.size());
  return implementation_->open(nonce, head, sealed, plain);
}

}  // namespace miniray
