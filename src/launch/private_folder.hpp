// A temporary folder that only this user can read, for the sockets of tunnels. The folder is removed with the object;
// if the process is killed, the next PrivateFolder of any process of this user removes it.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/fd.hpp"
#include "miniray/error.hpp"

namespace miniray {

class PrivateFolder {
 public:
  PrivateFolder() {
    const std::filesystem::path all = std::filesystem::temp_directory_path();
    remove_leftovers(all);
    std::string pattern = (all / (std::string(prefix) + "XXXXXX")).string();
    if (mkdtemp(pattern.data()) == nullptr) throw SystemError("make the folder " + pattern, errno);
    path_ = pattern;
    const int number = open((path_ / lock_name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (number >= 0) lock_ = Fd(number);
    if (number < 0 || flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      remove(path_);
      throw SystemError("lock the folder " + pattern, error);
    }
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  ~PrivateFolder() {
    // In a forked child, the folder belongs to the parent.
    if (generation_ == process_generation()) remove(path_);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  static constexpr const char* prefix = "miniray-tunnel-";
  static constexpr const char* lock_name = "lock";

  // A folder is a leftover if it is this user's and nobody holds its lock. The number of a process would not
  // show that: a process in another container may share this folder, and is not visible from here.
  static void remove_leftovers(const std::filesystem::path& all) {
    std::error_code ignored;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(all, ignored)) {
      if (!entry.path().filename().string().starts_with(prefix)) continue;
      struct stat status{};
      if (lstat(entry.path().c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) continue;
      const int number = open((entry.path() / lock_name).c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
      if (number < 0) continue;  // it was just made, or another program made it
      const Fd lock(number);
      if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) remove(entry.path());
    }
  }

  // The lock goes last, so that another process can finish what this one did not.
  static void remove(const std::filesystem::path& folder) {
    std::error_code ignored;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder, ignored))
      if (entry.path().filename() != lock_name) std::filesystem::remove(entry.path(), ignored);
    std::filesystem::remove(folder / lock_name, ignored);
    std::filesystem::remove(folder, ignored);
  }

  std::filesystem::path path_;
  Fd lock_;
  std::uint64_t generation_ = process_generation();
};

}  // namespace miniray
