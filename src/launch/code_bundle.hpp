// Code that goes along to a node. A bundle is files with their hashes; on the node it becomes a folder in the user's
// cache, named after the hash of the whole, and files that are there already are not sent again.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "miniray/launch.hpp"
#include "miniray/value.hpp"

namespace miniray {

/// The whole file. Throws UsageError if it cannot be read.
[[nodiscard]] std::string read_file(const std::string& path);

class CodeBundle {
 public:
  CodeBundle() = default;
  /// Reads and hashes the files. Throws UsageError before that, naming the largest, if they are more than the limits
  /// allow.
  explicit CodeBundle(const std::vector<ShippedFile>& files);

  /// For the node: what the bundle consists of.
  [[nodiscard]] Value manifest() const;
  /// The contents of a file that the node asked for. Throws UsageError if it has changed meanwhile.
  [[nodiscard]] std::string content(const std::string& hash) const;
  [[nodiscard]] bool empty() const { return files_.empty(); }

 private:
  struct File {
    std::string path, source, hash;
    std::uint64_t bytes;
  };
  [[noreturn]] void refuse(std::uint64_t total);
  std::vector<File> files_;
};

/// On the node: ${XDG_CACHE_HOME:-~/.cache}/miniray
std::filesystem::path cache_folder();

/// On the node: turns a manifest into a folder.
class CodeUnpacker {
 public:
  explicit CodeUnpacker(const Value& manifest);

  struct Missing {
    std::string hash;
    std::uint64_t bytes;
  };
  /// What has to be sent.
  [[nodiscard]] const std::vector<Missing>& missing() const { return missing_; }
  /// Throws ProtocolError if it is not what it should be.
  void add(const Missing& file, const std::string& content) const;
  /// The folder with everything in it; made at once or not at all, whoever else is making it.
  [[nodiscard]] std::filesystem::path finish() const;

 private:
  struct File {
    std::filesystem::path path;
    std::string hash;
  };
  std::filesystem::path stored(const std::string& hash) const { return cache_ / "files" / hash; }
  std::filesystem::path cache_, folder_;
  std::vector<File> files_;
  std::vector<Missing> missing_;
};

}  // namespace miniray
