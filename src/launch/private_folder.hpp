// A temporary folder that only this user can read, for the sockets of tunnels. The folder is removed with the object;
// if the process is killed, the next PrivateFolder of any process removes it.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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
    std::string pattern = (all / (prefix + std::to_string(getpid()) + "-XXXXXX")).string();
    if (mkdtemp(pattern.data()) == nullptr) throw SystemError("make the folder " + pattern, errno);
    path_ = pattern;
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  ~PrivateFolder() {
    std::error_code ignored;
    // In a forked child, the folder belongs to the parent.
    if (generation_ == process_generation()) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  static constexpr const char* prefix = "miniray-tunnel-";

  // A folder's name has the number of its process. If that process is gone, it was killed and left the folder behind.
  static void remove_leftovers(const std::filesystem::path& all) {
    std::error_code ignored;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(all, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(prefix)) continue;
      const int pid = std::atoi(name.c_str() + std::strlen(prefix));
      if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) std::filesystem::remove_all(entry.path(), ignored);
    }
  }

  std::filesystem::path path_;
  std::uint64_t generation_ = process_generation();
};

}  // namespace miniray
