#include "launch/code_bundle.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "channel/authentication.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

namespace fs = std::filesystem;

// A temporary folder, with the cache in it.
struct Scratch {
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "miniray-test-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    folder = pattern;
    setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
  }
  ~Scratch() {
    unsetenv("XDG_CACHE_HOME");
    fs::remove_all(folder);
  }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder / name) << content;
    return (folder / name).string();
  }
  fs::path folder;
};

std::string read(const fs::path& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

// Does what a node does with a manifest. Returns how many files had to be sent.
std::size_t unpack(const CodeBundle& bundle, fs::path* folder = nullptr) {
  CodeUnpacker unpacker(bundle.manifest());
  for (const CodeUnpacker::Missing& file : unpacker.missing()) unpacker.add(file, bundle.content(file.hash));
  const fs::path made = unpacker.finish();
  if (folder != nullptr) *folder = made;
  return unpacker.missing().size();
}

}  // namespace

TEST_CASE("code arrives, and files in the cache are not sent again") {
  const Scratch scratch;
  const std::string one = scratch.write("one.py", "1"), two = scratch.write("two.py", "2");
  const std::string empty = scratch.write("empty.py", "");
  fs::path folder;
  CHECK(unpack(CodeBundle({{"0/one.py", one}, {"0/deep/two.py", two}, {"0/empty.py", empty}}), &folder) == 3);
  CHECK(read(folder / "0/one.py") == "1");
  CHECK(read(folder / "0/deep/two.py") == "2");
  CHECK(fs::file_size(folder / "0/empty.py") == 0);

  CHECK(unpack(CodeBundle({{"0/one.py", one}, {"0/deep/two.py", two}, {"0/empty.py", empty}})) == 0);
  scratch.write("two.py", "changed");
  fs::path changed;
  CHECK(unpack(CodeBundle({{"0/one.py", one}, {"0/deep/two.py", two}, {"0/empty.py", empty}}), &changed) == 1);
  CHECK(changed != folder);
  CHECK(read(changed / "0/deep/two.py") == "changed");
  CHECK(read(folder / "0/deep/two.py") == "2");
}

TEST_CASE("the cache keeps old files that are used, and removes old files that are not") {
  const Scratch scratch;
  const std::string one = scratch.write("one.py", "1"), two = scratch.write("two.py", "2");
  fs::path first;
  CHECK(unpack(CodeBundle({{"one.py", one}, {"two.py", two}}), &first) == 2);
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(24 * 365);
  for (const fs::path& folder : {first.parent_path(), first.parent_path().parent_path() / "files"})
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) fs::last_write_time(entry.path(), long_ago);
  scratch.write("two.py", "changed");
  fs::path second;
  CHECK(unpack(CodeBundle({{"one.py", one}, {"two.py", two}}), &second) == 1);
  CHECK(read(second / "one.py") == "1");
  CHECK_FALSE(fs::exists(first));
}

TEST_CASE("a file that changes while it is copied is refused on both sides") {
  const Scratch scratch;
  const std::string one = scratch.write("one.py", "1");
  const CodeBundle bundle({{"one.py", one}});
  const std::string hash = content_hash("1");
  scratch.write("one.py", "2");
  CHECK_THROWS_WITH_AS((void)bundle.content(hash), doctest::Contains("changed while it was copied"), UsageError);
  const CodeUnpacker unpacker(bundle.manifest());
  CHECK_THROWS_AS(unpacker.add(unpacker.missing().at(0), "2"), ProtocolError);
  CHECK_THROWS_AS((void)bundle.content(content_hash("other")), ProtocolError);
}

TEST_CASE("a cache that another user may have filled is not believed") {
  const Scratch scratch;
  const std::string one = scratch.write("one.py", "1"), two = scratch.write("two.py", "2");
  const CodeBundle bundle({{"0/one.py", one}, {"0/two.py", two}});
  fs::path folder;
  CHECK(unpack(bundle, &folder) == 2);
  const fs::path cache = scratch.folder / "cache" / "miniray";
  const fs::path stored = cache / "files" / content_hash("1");

  // Another content under the right name, of the same size and with the same time of change.
  const auto time = fs::last_write_time(folder / "0/one.py");
  scratch.write("evil", "!");
  fs::copy_file(scratch.folder / "evil", folder / "0/one.py", fs::copy_options::overwrite_existing);
  fs::last_write_time(folder / "0/one.py", time);
  CHECK(unpack(bundle) == 0);
  CHECK(read(folder / "0/one.py") == "1");
  fs::copy_file(scratch.folder / "evil", folder / "0/one.py", fs::copy_options::overwrite_existing);
  fs::copy_file(scratch.folder / "evil", stored, fs::copy_options::overwrite_existing);
  CHECK(unpack(bundle) == 1);  // the cluster sends it again
  CHECK(read(folder / "0/one.py") == "1");

  // A link in place of a file, and a folder that was made for the bundle before it came.
  fs::remove(folder / "0/one.py");
  fs::create_symlink(scratch.folder / "evil", folder / "0/one.py");
  CHECK(unpack(bundle) == 0);
  CHECK_FALSE(fs::is_symlink(folder / "0/one.py"));
  CHECK(read(folder / "0/one.py") == "1");
  fs::remove_all(folder);
  fs::create_directory_symlink(scratch.folder, folder);
  CHECK(unpack(bundle) == 0);
  CHECK_FALSE(fs::is_symlink(folder));
  CHECK(fs::exists(one));

  if (geteuid() != 0) return;  // only root can make files of other users
  const auto give_away = [](const fs::path& path) { CHECK(lchown(path.c_str(), 12345, 12345) == 0); };
  std::ofstream(folder / "0/sitecustomize.py") << "evil";
  give_away(folder / "0/sitecustomize.py");
  give_away(folder / "0/two.py");
  CHECK(unpack(bundle) == 0);
  CHECK_FALSE(fs::exists(folder / "0/sitecustomize.py"));
  CHECK(read(folder / "0/two.py") == "2");
  give_away(folder);
  CHECK(unpack(bundle) == 0);
  CHECK(fs::exists(folder / "0/two.py"));
  struct stat status{};
  CHECK(stat(folder.c_str(), &status) == 0);
  CHECK(status.st_uid == geteuid());
  for (const fs::path& each : {cache / "code", cache / "files", cache}) {
    give_away(each);
    CHECK_THROWS_WITH_AS(unpack(bundle), doctest::Contains("belongs to another user (number 12345)"), UsageError);
    CHECK(lchown(each.c_str(), geteuid(), getegid()) == 0);
  }
}

TEST_CASE("a cache that others could change is closed to them, and what they may have left in it does not run") {
  const Scratch scratch;
  const CodeBundle bundle({{"0/one.py", scratch.write("one.py", "1")}});
  fs::path folder;
  CHECK(unpack(bundle, &folder) == 1);
  const fs::path cache = scratch.folder / "cache" / "miniray";
  fs::create_directory(folder / "0/__pycache__");
  std::ofstream(folder / "0/__pycache__/one.cpython-311.pyc") << "evil";
  fs::permissions(cache, fs::perms::all);
  CHECK(unpack(bundle) == 0);
  CHECK_FALSE(fs::exists(folder / "0/__pycache__"));
  CHECK(fs::status(cache).permissions() == fs::perms::owner_all);
  std::ofstream(folder / "0/own.txt") << "of a worker";  // what this user's programs write stays
  CHECK(unpack(bundle) == 0);
  CHECK(fs::exists(folder / "0/own.txt"));
}

TEST_CASE("too much code is refused, and the largest file is named") {
  const Scratch scratch;
  const std::string small = scratch.write("small.py", "1");
  const std::string large = scratch.write("large.py", std::string(limits::code_bytes_max, 'x'));
  try {
    const CodeBundle bundle({{"small.py", small}, {"large.py", large}});
    FAIL("it was accepted");
  } catch (const UsageError& error) {
    const std::string text = error.what();
    CHECK(text.find("code_bytes_max") != std::string::npos);
    CHECK(text.find(large + " (64 MiB)") != std::string::npos);
  }
}

TEST_CASE("a manifest cannot name paths outside of the folder") {
  const Scratch scratch;
  const std::string hash = content_hash("");
  for (const char* path : {"/etc/passwd", "../up", "a/../../up", ""}) {
    CAPTURE(path);
    const Value manifest{{"hash", hash}, {"files", Value(List{Value{{"path", path}, {"hash", hash}, {"bytes", 0}}})}};
    CHECK_THROWS_AS(CodeUnpacker{manifest}, ProtocolError);
  }
  const Value nameless{{"hash", "../../evil"}, {"files", Value(List{})}};
  CHECK_THROWS_AS(CodeUnpacker{nameless}, ProtocolError);
}

}  // namespace miniray
