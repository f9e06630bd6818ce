#include "launch/private_folder.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "base/system.hpp"

namespace miniray {
namespace {

namespace fs = std::filesystem;

// A folder in place of /tmp.
struct TemporaryRoot {
  TemporaryRoot() {
    std::string pattern = (fs::temp_directory_path() / "miniray-test-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    folder = pattern;
    before = std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "";
    setenv("TMPDIR", folder.c_str(), 1);
  }
  ~TemporaryRoot() {
    before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);
    fs::remove_all(folder);
  }
  fs::path folder;
  std::string before;
};

}  // namespace

TEST_CASE("a folder of a living process stays, even if its number means nothing here, and that of a dead one goes") {
  const TemporaryRoot root;
  auto [here, there] = system::socket_pair();
  const std::array<int, 1> keep{there.get()};
  std::optional<KeepAcrossFork> kept(std::in_place, keep);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::optional<PrivateFolder> made(std::in_place);
    std::ofstream(made->path() / "socket") << "x";
    // As if it were in another pid namespace: its number is not in the name, or is that of no process.
    fs::create_directory(root.folder / "miniray-tunnel-999999999-planted");
    system::send_all(keep[0], made->path().string() + "\n");
    for (;;) pause();
  }
  kept.reset();
  there.reset();
  std::string path;
  for (char letter = 0; letter != '\n';) {
    system::receive_all(here.get(), std::as_writable_bytes(std::span(&letter, 1)));
    if (letter != '\n') path += letter;
  }
  {
    const PrivateFolder mine;
    CHECK(fs::exists(path));
    CHECK(fs::exists(fs::path(path) / "socket"));
    CHECK(fs::exists(root.folder / "miniray-tunnel-999999999-planted"));
    kill(child, SIGKILL);
    CHECK(waitpid(child, nullptr, 0) == child);
    const PrivateFolder next;
    CHECK_FALSE(fs::exists(path));
    CHECK(fs::exists(mine.path()));
  }
  CHECK(fs::exists(root.folder / "miniray-tunnel-999999999-planted"));  // nobody's lock says that it is dead
  fs::remove(root.folder / "miniray-tunnel-999999999-planted");
  CHECK(fs::is_empty(root.folder));
}

TEST_CASE("links and folders of other users are left alone") {
  const TemporaryRoot root;
  const fs::path target = root.folder / "target", link = root.folder / "miniray-tunnel-link",
                 theirs = root.folder / "miniray-tunnel-theirs";
  for (const fs::path& folder : {target, theirs}) {
    fs::create_directory(folder);
    std::ofstream(folder / "lock") << "";
    std::ofstream(folder / "file") << "";
  }
  fs::create_directory_symlink(target, link);
  if (geteuid() == 0) CHECK(chown(theirs.c_str(), 12345, 12345) == 0);
  {
    const PrivateFolder mine;
  }
  CHECK(fs::exists(target / "file"));
  CHECK(fs::is_symlink(link));
  if (geteuid() == 0) CHECK(fs::exists(theirs / "file"));
}

}  // namespace miniray
