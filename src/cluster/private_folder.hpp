// A folder for its owner alone, which goes with the object: for the ends of tunnels.
#pragma once

#include <stdlib.h>

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
    std::string pattern = (std::filesystem::temp_directory_path() / "miniray-XXXXXX").string();
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
  std::filesystem::path path_;
  std::uint64_t generation_ = process_generation();
};

}  // namespace miniray
