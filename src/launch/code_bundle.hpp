// CodeBundle collects the files that a cluster copies to its nodes; CodeUnpacker makes a folder of them on a node. The
// folder is in the user's cache and is named by the hash of the whole bundle. Files in the cache are not sent again.
// The cache is not trusted: its folders and files must belong to this user, and each file's content must have its
// hash. A file that was checked once is checked again only if its size or one of its times has changed.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "miniray/launch.hpp"
#include "miniray/value.hpp"

namespace miniray {

/// Returns the content of a file that is copied to the nodes. Throws UsageError if it cannot be read.
[[nodiscard]] std::string read_file(const std::string& path);

class CodeBundle {
 public:
  CodeBundle() = default;
  /// Reads and hashes the files. If they exceed the limits, it throws a UsageError that names the largest files, before
  /// it reads any.
  explicit CodeBundle(const std::vector<ShippedFile>& files);

  /// Returns the list of paths, hashes and sizes that CodeUnpacker reads.
  [[nodiscard]] Value manifest() const;
  /// Returns the content of the file with this hash, which the node has asked for. Throws UsageError if the file has
  /// changed since it was hashed, and ProtocolError if the bundle has no such file.
  [[nodiscard]] std::string content(const std::string& hash) const;
  [[nodiscard]] bool has(const std::string& hash) const;
  [[nodiscard]] bool empty() const { return files_.empty(); }

 private:
  struct File {
    std::string path, source, hash;
    std::uint64_t bytes;
  };
  [[noreturn]] void refuse_as_too_large(std::uint64_t total);
  std::vector<File> files_;
};

/// Returns ${XDG_CACHE_HOME:-~/.cache}/miniray. Throws UsageError if neither variable is set.
std::filesystem::path cache_folder();

/// Turns a manifest into a folder, on the node.
class CodeUnpacker {
 public:
  /// Throws ProtocolError if the manifest is not valid, for example if a path leads out of the folder, and UsageError
  /// if the cache belongs to another user.
  explicit CodeUnpacker(const Value& manifest);

  struct Missing {
    std::string hash;
    std::uint64_t bytes;
  };
  /// Returns the files that are not in the cache.
  [[nodiscard]] const std::vector<Missing>& missing() const { return missing_; }
  /// Puts a missing file into the cache. Throws ProtocolError if the content does not match its hash.
  void add(const Missing& file, const std::string& content) const;
  /// Returns the folder with all files in it. The folder appears complete or not at all, also if another server makes
  /// it at the same time.
  [[nodiscard]] std::filesystem::path finish() const;

 private:
  struct File {
    std::filesystem::path path;
    std::string hash;
  };
  std::filesystem::path stored(const std::string& hash) const { return cache_ / "files" / hash; }
  std::filesystem::path record() const { return cache_ / "checked" / folder_.filename(); }
  [[nodiscard]] std::map<std::string, std::string> read_record() const;
  void write_record() const;
  void find_good_files();
  std::filesystem::path cache_, folder_;
  std::vector<File> files_;
  std::set<std::filesystem::path> good_;  // files in folder_ that have the right content
  std::vector<Missing> missing_;
};

}  // namespace miniray
