#include "launch/code_bundle.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "channel/authentication.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray {
namespace {

namespace fs = std::filesystem;

std::string megabytes(std::uint64_t bytes) { return std::to_string(bytes / limits::mib) + " MiB"; }

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// A path must stay inside the folder, although the sender of the manifest has the key.
fs::path checked_path(const std::string& text) {
  const fs::path path = fs::path(text).lexically_normal();
  if (path.empty() || path.is_absolute() || *path.begin() == "..")
    throw ProtocolError("the bundle of code has a file with the path \"" + text + "\", which leads out of its folder");
  return path;
}

void remove_unused(const fs::path& folder) {
  const auto oldest = fs::file_time_type::clock::now() - std::chrono::hours(24 * limits::cache_unused_days_max);
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.last_write_time(ignored) < oldest) fs::remove_all(entry.path(), ignored);
}

}  // namespace

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf() || file.peek() == std::ifstream::traits_type::eof()))
    throw UsageError("cannot copy " + path +
                     " to the nodes: it cannot be read: " + std::generic_category().message(errno != 0 ? errno : EIO));
  return content.str();
}

CodeBundle::CodeBundle(const std::vector<ShippedFile>& files) {
  std::uint64_t total = 0;
  for (const ShippedFile& file : files) {
    std::error_code unreadable;  // ignored here: read_file() below has the better error text
    const std::uintmax_t bytes = fs::file_size(file.source, unreadable);
    files_.push_back({file.path, file.source, {}, unreadable ? 0 : bytes});
    total += files_.back().bytes;
  }
  if (total > limits::code_bytes_max || files_.size() > limits::code_files_max) refuse_as_too_large(total);
  for (File& file : files_) {
    const std::string content = read_file(file.source);
    file.bytes = content.size();
    file.hash = content_hash(content);
  }
}

void CodeBundle::refuse_as_too_large(std::uint64_t total) {
  std::ranges::sort(files_, std::ranges::greater(), &File::bytes);
  std::string largest;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, files_.size()); ++i)
    largest += "\n  " + files_[i].source + " (" + megabytes(files_[i].bytes) + ")";
  throw UsageError(
      "the code to copy to the nodes is too large: it has " + std::to_string(files_.size()) + " files and " +
      megabytes(total) + "; the limits are " + std::to_string(limits::code_files_max) + " files (code_files_max) and " +
      megabytes(limits::code_bytes_max) + " (code_bytes_max). The largest files are:" + largest +
      "\nMove the script into a folder of its own, or set ship_code=False and install the code on the nodes");
}

Value CodeBundle::manifest() const {
  List files;
  std::string all;
  for (const File& file : files_) {
    files.push_back({{"path", file.path}, {"hash", file.hash}, {"bytes", file.bytes}});
    all += file.path + '\0' + file.hash + '\0';
  }
  return {{"hash", content_hash(all)}, {"files", Value(std::move(files))}};
}

std::string CodeBundle::content(const std::string& hash) const {
  const auto found = std::ranges::find(files_, hash, &File::hash);
  if (found == files_.end()) throw ProtocolError("the node asked for a file that is not in the bundle of code");
  std::string content = read_file(found->source);
  if (content_hash(content) != hash)
    throw UsageError(found->source + " changed while it was copied to the nodes. Start the cluster again");
  return content;
}

fs::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return fs::path(cache) / "miniray";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0')
    throw UsageError("there is no cache folder for code: neither HOME nor XDG_CACHE_HOME is set. Set one of them");
  return fs::path(home) / ".cache" / "miniray";
}

CodeUnpacker::CodeUnpacker(const Value& manifest) : cache_(cache_folder()) {
  const std::string& name = manifest["hash"].string();
  if (!is_hash(name)) throw ProtocolError("the bundle of code has no valid hash");
  folder_ = cache_ / "code" / name;
  std::error_code ignored;
  const bool complete = fs::exists(folder_, ignored);
  std::set<std::string> asked;
  for (const Value& entry : manifest["files"].list()) {
    const std::string& hash = entry["hash"].string();
    if (!is_hash(hash)) throw ProtocolError("the bundle of code has a file without a valid hash");
    files_.push_back({checked_path(entry["path"].string()), hash});
    if (!complete && !fs::exists(stored(hash), ignored) && asked.insert(hash).second)
      missing_.push_back({hash, entry["bytes"].unsigned_integer()});
  }
}

void CodeUnpacker::add(const Missing& file, const std::string& content) const {
  if (content_hash(content) != file.hash) throw ProtocolError("a file of code arrived with a wrong hash");
  fs::create_directories(cache_ / "files");
  fs::permissions(cache_, fs::perms::owner_all);  // other users must not read or change the code
  // The file gets its name when it is complete, because other servers look for that name.
  const fs::path beside = stored(file.hash).string() + "." + random_hex(8);
  std::ofstream out(beside, std::ios::binary);
  out << content;
  out.close();
  if (!out) {
    std::error_code ignored;
    fs::remove(beside, ignored);
    throw UsageError("cannot write to " + (cache_ / "files").string() +
                     ". Is the disk full, or does the folder belong to another user?");
  }
  fs::rename(beside, stored(file.hash));
}

fs::path CodeUnpacker::finish() const {
  std::error_code ignored;
  if (!fs::exists(folder_)) {
    const fs::path beside = folder_.string() + "." + random_hex(8);
    for (const File& file : files_) {
      fs::last_write_time(stored(file.hash), fs::file_time_type::clock::now(),
                          ignored);  // so that remove_unused() keeps it
      fs::create_directories((beside / file.path).parent_path());
      fs::copy_file(stored(file.hash), beside / file.path);
    }
    fs::create_directories(beside);
    std::error_code failure;
    fs::rename(beside, folder_, failure);
    if (failure) fs::remove_all(beside, ignored);  // probably another server has made the folder meanwhile
    if (!fs::exists(folder_))
      throw UsageError("cannot make the folder " + folder_.string() + ": " + failure.message() +
                       ". Is the disk full, or does the folder belong to another user?");
    fs::last_write_time(folder_, fs::file_time_type::clock::now(), ignored);
    remove_unused(cache_ / "code");
    remove_unused(cache_ / "files");
    remove_unused(cache_ / "programs");
  }
  fs::last_write_time(folder_, fs::file_time_type::clock::now(), ignored);
  return folder_;
}

}  // namespace miniray
