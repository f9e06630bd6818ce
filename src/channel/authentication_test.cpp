#include "channel/authentication.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "miniray/error.hpp"

namespace miniray {
namespace {

using Role = Handshake::Role;
constexpr std::size_t client_hello_bytes = 48, server_hello_bytes = 84, proof_bytes = 32, nonce_bytes = 32;

Handshake client_of(const Key& key) { return {Role::client, key, Sealing::never}; }
Handshake server_of(const Key& key) { return {Role::server, key, Sealing::never}; }

// Feeds bytes in pieces, never more than wanted(). Returns the bytes that were not wanted.
std::string deliver(Handshake& to, std::string bytes, std::size_t piece = SIZE_MAX) {
  while (!bytes.empty() && to.wanted() > 0) {
    const std::size_t size = std::min({piece, to.wanted(), bytes.size()});
    to.feed(std::string_view(bytes).substr(0, size));
    bytes.erase(0, size);
  }
  return bytes;
}

// Passes bytes between the two ends until both have nothing more to send.
void converse(Handshake& client, Handshake& server, std::size_t piece = SIZE_MAX) {
  for (int turn = 0; turn < 4; ++turn) {
    CHECK(deliver(server, client.take_output(), piece).empty());
    if (client.refusal()) return;  // the rest of a hello may be unread
    (void)deliver(client, server.take_output(), piece);
  }
}

std::string number(std::uint32_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

// Sets a variable of the environment, and restores it at the end of the scope.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) before_ = old;
    set(value);
  }
  ~Setting() { set(before_ ? before_->c_str() : nullptr); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  void set(const char* value) { value != nullptr ? setenv(name_, value, 1) : unsetenv(name_); }
  const char* name_;
  std::optional<std::string> before_;
};

struct TemporaryHome {
  std::filesystem::path path = [] {
    std::string made = std::filesystem::temp_directory_path() / "miniray-home-XXXXXX";
    REQUIRE(mkdtemp(made.data()) != nullptr);
    return made;
  }();
  Setting home{"HOME", path.c_str()}, no_key{"MINIRAY_KEY", nullptr};
  std::filesystem::path key_file = path / ".miniray" / "key";
  TemporaryHome() = default;
  ~TemporaryHome() { std::filesystem::remove_all(path); }
  TemporaryHome(const TemporaryHome&) = delete;
  TemporaryHome& operator=(const TemporaryHome&) = delete;
};

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status{};
  REQUIRE(stat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  FAIL("no error");
  return {};
}

}  // namespace

TEST_CASE("two ends with one key agree, however their bytes are split") {
  for (const std::size_t piece : {SIZE_MAX, std::size_t{1}, std::size_t{7}}) {
    const Key key = Key::random();
    Handshake client = client_of(key), server = server_of(key);
    CHECK_FALSE(server.begun());
    converse(client, server, piece);
    CHECK(client.done());
    CHECK(server.done());
    CHECK(server.begun());
    CHECK_FALSE(client.refusal());
    CHECK_FALSE(server.refusal());
    CHECK(client.wanted() == 0);
    CHECK(server.wanted() == 0);
  }
}

TEST_CASE("the hellos are those of docs/wire_format.md") {
  const Key key = Key::random();
  Handshake client = client_of(key), server = server_of(key);
  const std::string hello = client.take_output();
  CHECK(hello.size() == client_hello_bytes);
  CHECK(hello.starts_with("MiniRay?" + number(protocol_version)));
  CHECK(client.take_output().empty());
  CHECK(server.wanted() == client_hello_bytes);
  server.feed(hello);
  const std::string answer = server.take_output();
  CHECK(answer.size() == server_hello_bytes);
  CHECK(answer.starts_with("MiniRay!" + number(protocol_version) + number(0)));
  CHECK(deliver(client, answer).empty());
  CHECK(client.take_output().size() == proof_bytes);
  CHECK(client_of(key).take_output() != hello);  // a nonce is never used twice
}

TEST_CASE("an end never wants more than its peer must send next") {
  const Key key = Key::random();
  Handshake client = client_of(key), server = server_of(key);
  std::size_t to_server = client_hello_bytes, to_client = server_hello_bytes;
  const std::string hello = client.take_output();
  for (const char byte : hello) {
    CHECK(server.wanted() <= to_server);
    server.feed({&byte, 1});
    --to_server;
  }
  for (const char byte : server.take_output()) {
    CHECK(client.wanted() <= to_client);
    client.feed({&byte, 1});
    --to_client;
  }
  CHECK(client.done());
  CHECK(client.wanted() == 0);
  std::string rest = client.take_output();
  CHECK(server.wanted() == rest.size());
  rest += "the request that follows";
  CHECK(deliver(server, rest) == "the request that follows");
  CHECK(server.done());
}

TEST_CASE("the client notices that the server has another key, and gives no proof") {
  Handshake client = client_of(Key::random()), server = server_of(Key::random());
  converse(client, server);
  CHECK(client.refusal() == Refusal::wrong_key);
  CHECK(client.error_text().find("MINIRAY_KEY") != std::string::npos);
  CHECK(client.take_output().empty());
  CHECK_FALSE(client.done());
  CHECK_FALSE(server.done());
}

TEST_CASE("the server notices that the client has another key") {
  Handshake client = client_of(Key::random()), server = server_of(Key::random());
  server.feed(client.take_output());
  server.feed(std::string(proof_bytes, 'x'));
  CHECK(server.refusal() == Refusal::wrong_key);
  CHECK(server.error_text().find("~/.miniray/key") != std::string::npos);
  CHECK_FALSE(server.done());
  CHECK(server.wanted() == 0);
}

TEST_CASE("a proof that differs in any one bit is wrong") {
  const Key key = Key::random();
  for (std::size_t bit = 0; bit < 8 * proof_bytes; ++bit) {
    Handshake client = client_of(key), server = server_of(key);
    server.feed(client.take_output());
    CHECK(deliver(client, server.take_output()).empty());
    std::string proof = client.take_output();
    proof[bit / 8] = static_cast<char>(proof[bit / 8] ^ (1 << bit % 8));
    server.feed(proof);
    CHECK(server.refusal() == Refusal::wrong_key);
  }
}

TEST_CASE("both sides report another version") {
  for (const std::uint32_t version : {0U, 1U, 2U, 0xffffffffU}) {
    Handshake server = server_of(Key::random());
    server.feed("MiniRay?" + number(version));  // hellos of other versions have other sizes
    CHECK(server.refusal() == Refusal::other_version);
    CHECK(server.error_text().find("version " + std::to_string(version)) != std::string::npos);
    // A client of another version gets the refusal, but neither nonce nor proof.
    CHECK(server.take_output() == "MiniRay!" + number(protocol_version) + number(1));
  }
  Handshake refused = client_of(Key::random());
  refused.feed("MiniRay!" + number(7) + number(1));
  CHECK(refused.refusal() == Refusal::other_version);
  CHECK(refused.error_text().find("version 7") != std::string::npos);
  Handshake unrefused = client_of(Key::random());
  unrefused.feed("MiniRay!" + number(7) + number(0));
  CHECK(unrefused.refusal() == Refusal::other_version);
}

TEST_CASE("a server that is too busy says so") {
  Handshake client = client_of(Key::random());
  client.feed("MiniRay!" + number(protocol_version) + number(3));
  CHECK(client.refusal() == Refusal::too_many);
  CHECK(client.error_text().find("Try again later") != std::string::npos);
}

TEST_CASE("another protocol is refused at its first bytes") {
  for (const std::string garbage : {"GET / HTTP/1.1\r\n", "MR", "MiniRay!", "\x16\x03\x01", "miniray?", "MiniRayX"}) {
    CAPTURE(garbage);
    Handshake server = server_of(Key::random());
    CHECK(deliver(server, garbage, 1).size() < garbage.size());
    CHECK(server.refusal() == Refusal::other_version);
    CHECK(server.error_text() == "it does not speak MiniRay's protocol");
    CHECK(server.take_output().empty());  // the server sends nothing to such a peer
  }
  Handshake client = client_of(Key::random());
  CHECK(deliver(client, "HTTP/1.1 400 Bad Request\r\n").size() == 10);
  CHECK(client.refusal() == Refusal::other_version);
  CHECK(client.error_text() == "the program that listens there is not a MiniRay worker server");
}

TEST_CASE("a server's own proof, sent back to it, is not a client's proof") {
  const Key key = Key::random();
  Handshake client = client_of(key), server = server_of(key);
  server.feed(client.take_output());
  server.feed(server.take_output().substr(server_hello_bytes - proof_bytes));
  CHECK(server.refusal() == Refusal::wrong_key);
}

TEST_CASE("a proof recorded in another conversation is refused") {
  const Key key = Key::random();
  Handshake client = client_of(key), first = server_of(key), second = server_of(key);
  const std::string hello = client.take_output();
  first.feed(hello);
  const std::string heard_of_server = first.take_output();
  CHECK(deliver(client, heard_of_server).empty());
  const std::string heard_of_client = client.take_output();
  second.feed(hello);  // the client's nonce is the same, but the server's is not, so the proof differs
  second.feed(heard_of_client);
  CHECK(second.refusal() == Refusal::wrong_key);
  Handshake other = client_of(key);
  CHECK(deliver(other, heard_of_server).empty());
  CHECK(other.refusal() == Refusal::wrong_key);
  first.feed(heard_of_client);
  CHECK(first.done());
}

TEST_CASE("a client's hello, sent back to it, is not a server's") {
  const Key key = Key::random();
  Handshake client = client_of(key);
  (void)deliver(client, client.take_output());
  CHECK(client.refusal() == Refusal::other_version);
}

TEST_CASE("a key is 64 hexadecimal digits, and no error text contains it") {
  const Key key = Key::random();
  CHECK(key.hex().size() == 64);
  CHECK(Key::from_hex(key.hex(), "a test").hex() == key.hex());
  CHECK(Key::from_hex(key.hex() + " \r\n", "a test").hex() == key.hex());
  std::string upper = key.hex();
  std::ranges::transform(upper, upper.begin(), [](char c) { return static_cast<char>(std::toupper(c)); });
  CHECK(Key::from_hex(upper, "a test").hex() == key.hex());
  CHECK(Key::random().hex() != key.hex());
  const std::string digits(62, 'a');
  for (const std::string& wrong : {std::string(), digits, digits + "b", digits + "bcd", digits + "xy", digits + "0x",
                                   digits + " b", "0x" + digits, digits + "\xc3\xa9", " " + digits + "b"}) {
    const std::string text = error_of([&] { (void)Key::from_hex(wrong, "a test"); });
    CHECK(text.starts_with("the key in a test must be 64 hexadecimal digits"));
    CHECK(text.find("aaaa") == std::string::npos);
  }
}

TEST_CASE("a content hash is SHA-256") {
  CHECK(content_hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(content_hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST_CASE("the first use makes a key file that only its owner may read") {
  const TemporaryHome home;
  std::filesystem::create_directory(home.path / ".miniray");
  std::filesystem::permissions(home.path / ".miniray", std::filesystem::perms(0755));
  const mode_t before = umask(0);
  const Key made = Key::of_user();
  umask(before);
  CHECK(mode_of(home.key_file) == 0600);
  CHECK(mode_of(home.path / ".miniray") == 0700);
  CHECK(Key::of_user().hex() == made.hex());
  const std::filesystem::directory_iterator folder(home.path / ".miniray");
  CHECK(std::distance(begin(folder), end(folder)) == 1);  // the temporary file is gone
}

TEST_CASE("a key file that other users can read is refused") {
  const TemporaryHome home;
  const std::string key = Key::of_user().hex();
  for (const int mode : {0640, 0604, 0620, 0666}) {
    std::filesystem::permissions(home.key_file, std::filesystem::perms(mode));
    const std::string text = error_of([] { (void)Key::of_user(); });
    CHECK(text.find("rm " + home.key_file.string()) != std::string::npos);
    CHECK(text.find(key) == std::string::npos);
  }
  std::filesystem::permissions(home.key_file, std::filesystem::perms(0600));
  CHECK(Key::of_user().hex() == key);
}

TEST_CASE("the error for a key file with other content names the file, and not its content") {
  const TemporaryHome home;
  (void)Key::of_user();
  std::ofstream(home.key_file) << "secret but short\n";
  const std::string text = error_of([] { (void)Key::of_user(); });
  CHECK(text.find(home.key_file.string()) != std::string::npos);
  CHECK(text.find("secret but short") == std::string::npos);
}

TEST_CASE("a key file that is a pipe or a folder is an error, and nobody waits for the pipe's writer") {
  const TemporaryHome home;
  std::filesystem::create_directories(home.key_file.parent_path());
  REQUIRE(mkfifo(home.key_file.c_str(), 0600) == 0);
  CHECK(error_of([] { (void)Key::of_user(); }).find("no ordinary file") != std::string::npos);
  std::filesystem::remove(home.key_file);
  std::filesystem::create_directory(home.key_file);
  std::filesystem::permissions(home.key_file, std::filesystem::perms::owner_all);
  CHECK(error_of([] { (void)Key::of_user(); }).find("no ordinary file") != std::string::npos);
}

TEST_CASE("MINIRAY_KEY takes precedence over the file, which is then not made") {
  const TemporaryHome home;
  const std::string key(64, 'c');
  {
    const Setting setting("MINIRAY_KEY", key.c_str());
    CHECK(Key::of_user().hex() == key);
    CHECK_FALSE(std::filesystem::exists(home.key_file));
  }
  CHECK(Key::of_user().hex() != key);
  CHECK(std::filesystem::exists(home.key_file));
  const Setting setting("MINIRAY_KEY", key.c_str());
  CHECK(Key::of_user().hex() == key);
  const Setting wrong("MINIRAY_KEY", "abcabcabc");
  const std::string text = error_of([] { (void)Key::of_user(); });
  CHECK(text.find("the key in MINIRAY_KEY") != std::string::npos);
  CHECK(text.find("abcabcabc") == std::string::npos);
}

TEST_CASE("without HOME the error says what to set") {
  const TemporaryHome home;
  {
    const Setting nowhere("HOME", nullptr);
    CHECK(error_of([] { (void)Key::of_user(); }).find("neither MINIRAY_KEY nor HOME") != std::string::npos);
  }
  const Setting no_folder("HOME", "/dev/null");
  CHECK_THROWS_WITH_AS((void)Key::of_user(), doctest::Contains("/dev/null/.miniray"), Error);
}

}  // namespace miniray
