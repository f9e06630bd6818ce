// A folder for its owner alone, which goes with the object: for the ends of tunnels.
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
    remove_those_of_the_dead(all);
    std::string pattern = (all / (prefix + std::to_string(getpid()) + "-XXXXXX")).string();
    if (mkdtemp(pattern.data()) == nullptr) throw SystemError("make a folder in " + pattern, errno);
    path_ = pattern;
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  ~PrivateFolder() {
    std::error_code ignored;
    if (generation_ == process_generation()) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  static constexpr const char* prefix = "miniray-tunnel-";

  // A process that was killed could not remove its own; its number is in the name.
  static void remove_those_of_the_dead(const std::filesystem::path& all) {
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
