#include "channel/seal.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "channel/authentication.hpp"
#include "channel/cipher.hpp"
#include "miniray/channel.hpp"
#include "miniray/error.hpp"
#include "tests/wait_until.hpp"

namespace miniray {
namespace {

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

SecretBlock secret_of(std::string_view bytes) {
  REQUIRE(bytes.size() == SecretBlock::bytes);
  SecretBlock secret;
  std::ranges::copy(bytes, secret.get().begin());
  return secret;
}

std::string bytes_of(const SecretBlock& secret) { return {secret.get().begin(), secret.get().end()}; }

std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<Cipher::Kind> kinds() {
  std::vector<Cipher::Kind> usable{Cipher::Kind::wide, Cipher::Kind::narrow, Cipher::Kind::common};
  std::erase_if(usable, [](Cipher::Kind kind) { return !Cipher::can_use(kind); });
  return usable;
}

std::string random_text(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

struct Pair {
  explicit Pair(std::uint64_t records_per_key = limits::sealed_records_per_key)
      : here(secret_of(std::string(32, 'a')), secret_of(std::string(32, 'b')), records_per_key),
        there(secret_of(std::string(32, 'b')), secret_of(std::string(32, 'a')), records_per_key) {
    here.read_ahead();
    there.read_ahead();
  }
  Seal here, there;
};

// Returns what the peer gets of these bytes, which it reads in pieces.
std::string opened(Seal& seal, std::string_view bytes, std::size_t at_once = SIZE_MAX, std::size_t piece = SIZE_MAX) {
  std::string text;
  std::string room(std::min(piece, limits::sealed_record_bytes), '\0');
  while (!bytes.empty()) {
    std::size_t some = std::min({seal.room().size(), bytes.size(), at_once});
    std::memcpy(seal.room().data(), bytes.data(), some);
    seal.committed(some);
    bytes.remove_prefix(some);
    while (const std::size_t size = seal.read(std::as_writable_bytes(std::span(room)))) text.append(room, 0, size);
  }
  return text;
}

constexpr std::size_t overhead = 4 + Cipher::tag_bytes;

}  // namespace

TEST_CASE("Before read_ahead(), a seal takes no byte of a second record") {
  Pair pair;
  Seal reader(secret_of(std::string(32, 'b')), secret_of(std::string(32, 'a')));
  for (const std::string& text : {random_text(1, 1), random_text(limits::sealed_record_bytes, 2), random_text(9, 3)}) {
    const std::string record = pair.here.records_of(text);
    std::string room(limits::sealed_record_bytes, '\0');
    std::size_t taken = 0;
    while (taken < record.size()) {
      CHECK(reader.read(std::as_writable_bytes(std::span(room))) == 0);
      const std::size_t some = std::min(reader.room().size(), record.size() - taken);
      CHECK(some == reader.room().size());  // never more than is left of this record
      std::memcpy(reader.room().data(), record.data() + taken, some);
      reader.committed(some);
      taken += some;
    }
    room.resize(reader.read(std::as_writable_bytes(std::span(room))));
    CHECK(room == text);
  }
  reader.read_ahead();
  CHECK(reader.room().size() > overhead);
}

TEST_CASE("X25519 is that of RFC 7748") {
  const KeyPair mine, theirs;
  CHECK(mine.open() != theirs.open());
  CHECK(bytes_of(mine.common_with(theirs.open())) == bytes_of(theirs.common_with(mine.open())));
  CHECK(bytes_of(mine.common_with(theirs.open())) != bytes_of(mine.common_with(mine.open())));
  // Section 5.2, first vector
  const KeyPair vector(secret_of(from_hex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")));
  CHECK(bytes_of(vector.common_with(from_hex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"))) ==
        from_hex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"));
}

TEST_CASE("AES-256-GCM is the standard's, on each kind of CPU") {
  const SecretBlock key = secret_of(from_hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"));
  Cipher::Nonce nonce{};
  std::ranges::copy(from_hex("cafebabefacedbaddecaf888"), nonce.begin());
  const std::string head = from_hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  const std::string plain = from_hex(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657"
      "ba637b39");
  const std::string sealed = from_hex(
      "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0a"
      "bcc9f66276fc6ece0f4e1768cddf8853bb2d551b");
  for (const Cipher::Kind kind : kinds()) {
    Cipher cipher(key, kind);
    std::string out(plain.size() + Cipher::tag_bytes, '\0');
    cipher.seal(nonce, as_bytes(head), as_bytes(plain), reinterpret_cast<std::byte*>(out.data()));
    CHECK(out == sealed);
    std::string back(plain.size(), '\0');
    CHECK(cipher.open(nonce, as_bytes(head), as_bytes(sealed), reinterpret_cast<std::byte*>(back.data())));
    CHECK(back == plain);
    for (std::size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
      std::string changed = sealed;
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
      CHECK_FALSE(cipher.open(nonce, as_bytes(head), as_bytes(changed), reinterpret_cast<std::byte*>(back.data())));
    }
    CHECK_FALSE(
        cipher.open(nonce, as_bytes("other head"), as_bytes(sealed), reinterpret_cast<std::byte*>(back.data())));
  }
}

TEST_CASE("the kinds of cipher open what the others have sealed, in place and elsewhere") {
  const SecretBlock key = secret_of(std::string(32, 'k'));
  for (const Cipher::Kind sealing : kinds())
    for (const Cipher::Kind opening : kinds()) {
      Cipher a(key, sealing), b(key, opening);
      for (const std::size_t size : {0, 1, 15, 16, 17, 255, 256, 257, 767, 768, 769, 1000, 4096, 65535, 65536}) {
        const std::string plain = random_text(size, static_cast<unsigned>(size));
        Cipher::Nonce nonce{};
        nonce[0] = 7;
        std::string out = plain + std::string(Cipher::tag_bytes, '\0');
        auto* const place = reinterpret_cast<std::byte*>(out.data());
        a.seal(nonce, as_bytes("head"), {place, size}, place);
        CHECK((size == 0 || out.substr(0, size) != plain));
        std::string elsewhere(size, '\0');
        CHECK(b.open(nonce, as_bytes("head"), as_bytes(out), reinterpret_cast<std::byte*>(elsewhere.data())));
        CHECK(elsewhere == plain);
        CHECK(b.open(nonce, as_bytes("head"), as_bytes(out), place));
        CHECK(out.substr(0, size) == plain);
      }
    }
}

TEST_CASE("texts of any size arrive, however their bytes are split") {
  for (const std::size_t at_once : {SIZE_MAX, std::size_t{1}, std::size_t{3000}})
    for (const std::size_t piece : {SIZE_MAX, std::size_t{1}, std::size_t{4096}}) {
      if (at_once == 1 && piece == 1) continue;
      Pair pair;
      for (const std::size_t size : {1, 2, 4095, 4096, 65536, 65537, 200'000}) {
        if (std::min(at_once, piece) == 1 && size > 70'000) continue;
        const std::string text = random_text(size, static_cast<unsigned>(size));
        const std::string records = pair.here.records_of(text);
        const std::size_t count = (size + limits::sealed_record_bytes - 1) / limits::sealed_record_bytes;
        CHECK(records.size() == size + count * overhead);
        CHECK(opened(pair.there, records, at_once, piece) == text);
      }
    }
}

TEST_CASE("both directions are sealed with keys of their own") {
  Pair pair;
  const std::string to_there = pair.here.records_of("the same text"), to_here = pair.there.records_of("the same text");
  CHECK(to_there != to_here);
  CHECK(opened(pair.there, to_there) == "the same text");
  CHECK(opened(pair.here, to_here) == "the same text");
}

TEST_CASE("a record that was changed, repeated, left out, reordered or sent back is refused") {
  Pair pair;
  const std::string one = pair.here.records_of("one"), two = pair.here.records_of("two");
  const auto refused = [&](const std::string& stream) {
    Pair fresh;
    CHECK_THROWS_WITH_AS((void)opened(fresh.there, stream), doctest::Contains("not the peer's next one"),
                         ProtocolError);
  };
  for (const std::size_t at : {4UL, 6UL, one.size() - 1}) {
    std::string changed = one;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    refused(changed);
  }
  refused(one + one);
  refused(two);
  refused(two + one);
  refused(pair.there.records_of("one"));
  std::string shorter = one;  // its length says less, and the rest looks like another record
  shorter[0] = 2;
  refused(shorter);
}

TEST_CASE("sizes that no record has are refused before anything is read or allocated for them") {
  for (const std::uint32_t size : {0U, 65537U, 1U << 30, (1U << 31) | 1U, 0xffffffffU}) {
    Pair pair;
    const std::string head(reinterpret_cast<const char*>(&size), sizeof(size));
    CHECK_THROWS_WITH_AS((void)opened(pair.there, head), doctest::Contains("impossible size"), ProtocolError);
  }
}

TEST_CASE("the end of a stream is a record, behind which nothing comes") {
  Pair pair;
  std::string stream = pair.here.records_of("text");
  pair.here.add_end();
  const auto unsent = pair.here.unsent();
  stream.append(reinterpret_cast<const char*>(unsent.data()), unsent.size());
  CHECK_FALSE(pair.there.ended());
  CHECK(opened(pair.there, stream) == "text");
  CHECK(pair.there.ended());
  CHECK_THROWS_WITH_AS((void)opened(pair.there, stream), doctest::Contains("behind the end"), ProtocolError);
  Pair forged;
  std::string end = stream.substr(stream.size() - overhead);
  CHECK_THROWS_AS((void)opened(forged.there, end), ProtocolError);  // without the text before it
}

TEST_CASE("a key is replaced after so many records, and the stream goes on") {
  Pair pair(3);
  for (int i = 0; i < 20; ++i) CHECK(opened(pair.there, pair.here.records_of(std::to_string(i))) == std::to_string(i));
  Pair slow(4), quick(3);  // the third record of `quick` is the last of its key
  for (int i = 0; i < 3; ++i) CHECK(opened(slow.there, quick.here.records_of("x")) == "x");
  CHECK_THROWS_AS((void)opened(slow.there, quick.here.records_of("x")), ProtocolError);
}

TEST_CASE("records are those that another implementation makes, with each next key") {
  // tests/sealed_test.py makes them with PyPI's cryptography.
  const std::vector<std::string> expected{
      "0300000061d2d06f90a39a6d0a7d4fd647a8019c72bc60",      // record 1
      "03000000965bedc66d22e41c7728a16a00527641be0000",      // record 2
      "05000000426e4a5f3cca29d7756a4d01c9e1e079735270cbb1",  // record 3, with the next key
      "040000001abc3b239fbaed61dcfe86d5117da924ec10902c",    // record 4
      "0400000092e53207b851d2b1ddbd5cc5dfaef6b33f41a6ec",    // record 5, with the one after it
      "00000080b1adcbdd49c2c3f465b75ba4160f6898",            // record 6, the last one
  };
  std::string key;
  for (int i = 0; i < 32; ++i) key += static_cast<char>(i);
  Seal seal(secret_of(key), secret_of(key), 2), reader(secret_of(key), secret_of(key), 2);
  std::string stream;
  for (const std::string_view text : {"one", "two", "three", "four", "five"}) stream += seal.records_of(text);
  seal.add_end();
  stream.append(reinterpret_cast<const char*>(seal.unsent().data()), seal.unsent().size());
  std::string right;
  for (const std::string& record : expected) right += from_hex(record);
  CHECK(stream == right);
  CHECK(opened(reader, right) == "onetwothreefourfive");
  CHECK(reader.ended());
}

TEST_CASE("two ends that agree on sealing get keys that fit, and never the same ones twice") {
  const Key key = Key::random();
  const auto agree = [&] {
    Handshake client(Handshake::Role::client, key, Sealing::always),
        server(Handshake::Role::server, key, Sealing::if_asked);
    server.feed(client.take_output());
    client.prepare();
    for (std::string answer = server.take_output(); !answer.empty();) {
      const std::size_t some = std::min(client.wanted(), answer.size());
      client.feed(answer.substr(0, some));
      answer.erase(0, some);
    }
    server.feed(client.take_output());
    REQUIRE(client.seals());
    REQUIRE(server.seals());
    return std::pair(client.take_seal(), server.take_seal());
  };
  const auto [client, server] = agree();
  const std::string records = client->records_of("text");
  CHECK(opened(*server, records) == "text");
  CHECK(opened(*client, server->records_of("answer")) == "answer");
  const auto [again, other] = agree();
  CHECK(again->records_of("text") != records);
}

TEST_CASE("what the two ends say decides whether the connection is sealed; a contradiction is told to both") {
  const Key key = Key::random();
  for (const Sealing ours : {Sealing::never, Sealing::if_asked, Sealing::always})
    for (const Sealing theirs : {Sealing::never, Sealing::if_asked, Sealing::always}) {
      Handshake client(Handshake::Role::client, key, ours), server(Handshake::Role::server, key, theirs);
      server.feed(client.take_output());
      for (std::string answer = server.take_output(); !answer.empty() && client.wanted() > 0;) {
        const std::size_t some = std::min(client.wanted(), answer.size());
        client.feed(answer.substr(0, some));
        answer.erase(0, some);
      }
      if (std::max(ours, theirs) == Sealing::always && std::min(ours, theirs) == Sealing::never) {
        CHECK(client.refusal() == Refusal::other_sealing);
        CHECK(server.refusal() == Refusal::other_sealing);
        CHECK(client.error_text().find("encrypt=False") != std::string::npos);
        CHECK(server.error_text().find("encrypt=False") != std::string::npos);
        continue;
      }
      REQUIRE(client.done());
      server.feed(client.take_output());
      REQUIRE(server.done());
      const bool sealed = std::max(ours, theirs) == Sealing::always;
      CHECK(client.seals() == sealed);
      CHECK(server.seals() == sealed);
      CHECK((client.take_seal() != nullptr) == sealed);
      CHECK((server.take_seal() != nullptr) == sealed);
    }
}

TEST_CASE("an attacker who changes any byte of a sealed handshake is noticed") {
  const Key key = Key::random();
  std::size_t hello_bytes = 0, answer_bytes = 0;
  for (std::size_t at = 0;; ++at) {
    Handshake client(Handshake::Role::client, key, Sealing::always),
        server(Handshake::Role::server, key, Sealing::always);
    std::string hello = client.take_output();
    hello_bytes = hello.size();
    if (at < hello_bytes) hello[at] = static_cast<char>(hello[at] ^ 1);
    server.feed(hello);
    std::string answer = server.take_output();
    if (at >= hello_bytes && at < hello_bytes + answer_bytes)
      answer[at - hello_bytes] = static_cast<char>(answer[at - hello_bytes] ^ 1);
    if (at == 0) answer_bytes = 16 + 4 + 32 + 32 + 32;
    while (!answer.empty() && client.wanted() > 0) {
      const std::size_t some = std::min(client.wanted(), answer.size());
      client.feed(answer.substr(0, some));
      answer.erase(0, some);
    }
    std::string proof = client.take_output();
    if (at >= hello_bytes + answer_bytes && !proof.empty())
      proof[at - hello_bytes - answer_bytes] = static_cast<char>(proof[at - hello_bytes - answer_bytes] ^ 1);
    if (!server.refusal() && !proof.empty()) server.feed(proof);
    CAPTURE(at);
    CHECK((client.refusal() || server.refusal()));
    if (at == hello_bytes + answer_bytes + 32 + 32 - 1) return;
  }
}

namespace {

// Two channels over a TCP-like pair, which a socket pair is not: it is told apart by its family.
struct SealedChannels {
  explicit SealedChannels(std::uint64_t inbox_bytes_max = limits::inbox_bytes_max) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    const int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(connect(one, reinterpret_cast<sockaddr*>(&address), size) == 0);
    const int other = accept(listener, nullptr, nullptr);
    close(listener);
    const SecretBlock a = secret_of(std::string(32, 'a')), b = secret_of(std::string(32, 'b'));
    ChannelOptions options;
    options.check_invariants = true;
    options.peer = "the other end";
    options.inbox_bytes_max = inbox_bytes_max;
    options.seal = std::make_shared<Seal>(a, b);
    here.emplace(one, options);
    options.seal = std::make_shared<Seal>(b, a);
    there.emplace(other, options);
  }
  std::optional<Channel> here, there;
};

}  // namespace

TEST_CASE("a sealed channel carries messages of all sizes both ways") {
  SealedChannels ends;
  for (const std::size_t size : {0, 1, 100, 5000, 65536, 1'000'000}) {
    const Value sent{{"text", random_text(size / 10, 1).size()}, {"bytes", Bytes{random_text(size, 2)}}};
    ends.here->send(sent);
    const Value got = ends.there->recv();
    CHECK(got == sent);
    ends.there->send(got);
    CHECK(ends.here->recv() == sent);
  }
}

TEST_CASE("two ends of a sealed channel that both send large messages do not wait for each other") {
  SealedChannels ends;
  const Value large{{"bytes", Bytes{std::string(std::size_t{8} << 20, 'x')}}};
  std::size_t here = 0, there = 0;
  for (int i = 0; i < 3; ++i) {
    (void)ends.here->send_some(encode(large));
    (void)ends.there->send_some(encode(large));
  }
  for (const Patience patience("six large messages"); here < 3 || there < 3; patience.check()) {
    (void)ends.here->flush_some();
    (void)ends.there->flush_some();
    while (ends.here->try_receive()) ++here;
    while (ends.there->try_receive()) ++there;
  }
  CHECK_FALSE(ends.here->has_unsent());
  CHECK_FALSE(ends.there->has_unsent());
}

TEST_CASE("a message that waits because of max_size is received later, with those behind it") {
  SealedChannels ends;
  ends.here->send(Value(std::string(100'000, 'x')));
  ends.here->send(Value(1));
  ends.here->send(Value(2));
  CHECK_THROWS_AS((void)ends.there->recv({.max_size = 1000, .timeout_s = 10.0}), MessageTooLarge);
  CHECK(ends.there->recv({.timeout_s = 10.0}).string().size() == 100'000);
  std::vector<Channel*> waiting{&*ends.there};
  CHECK(wait_any(waiting, 10.0).size() == 1);
  CHECK(ends.there->recv({.timeout_s = 10.0}).integer() == 1);
  CHECK(wait_any(waiting, 10.0).size() == 1);
  CHECK(ends.there->recv({.timeout_s = 10.0}).integer() == 2);
}

TEST_CASE("the end of a sealed channel is told from a cut") {
  SealedChannels ended;
  ended.here->send(Value(1));
  ended.here->close();
  CHECK(ended.there->recv().integer() == 1);
  CHECK_THROWS_WITH_AS((void)ended.there->recv(), doctest::Contains("closed the channel"), EndOfStream);
  SealedChannels cut;
  cut.here->send(Value(1));
  shutdown(cut.here->fileno(), SHUT_WR);
  CHECK(cut.there->recv().integer() == 1);
  CHECK_THROWS_WITH_AS((void)cut.there->recv(), doctest::Contains("was cut"), EndOfStream);
}

TEST_CASE("a send after the end of a sealed channel is an error, and what the peer sends still arrives") {
  SealedChannels ends;
  ends.here->send(Value(1));
  ends.here->end();
  CHECK_THROWS_AS(ends.here->send(Value(2)), EndOfStream);
  CHECK_THROWS_AS((void)ends.here->send_some(encode(Value(2))), EndOfStream);
  CHECK(ends.there->recv().integer() == 1);
  CHECK_THROWS_WITH_AS((void)ends.there->recv(), doctest::Contains("closed the channel"), EndOfStream);
  ends.there->send(Value(3));
  CHECK(ends.here->recv().integer() == 3);
}

TEST_CASE("bytes that an attacker puts into a sealed stream end the channel, and nothing of them is received") {
  SealedChannels ends;
  ends.here->send(Value("before"));
  CHECK(ends.there->recv().string() == "before");
  const std::string injected = std::string("\x05\0\0\0", 4) + std::string(5 + 16, 'x');
  REQUIRE(::send(ends.here->fileno(), injected.data(), injected.size(), 0) == static_cast<ssize_t>(injected.size()));
  ends.here->send(Value("after"));
  CHECK_THROWS_WITH_AS((void)ends.there->recv(),
                       doctest::Contains("the other end's sealed stream has a record that is not the peer's next one"),
                       ProtocolError);
  CHECK_THROWS_AS((void)ends.there->recv(), EndOfStream);
}

}  // namespace miniray
