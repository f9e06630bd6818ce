#include "launch/code_bundle.hpp"

#include <sys/stat.h>
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

// Returns whether only this user, or root, can have made a file or a folder.
bool is_own(const struct stat& status) { return status.st_uid == geteuid() || status.st_uid == 0; }

// Returns what changes when this user's regular file changes: its size, times and number. Empty for anything else.
std::string fingerprint(const fs::path& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || !is_own(status)) return {};
  std::string text = std::to_string(status.st_ino) + " " + std::to_string(status.st_size);
  for (const timespec& time : {status.st_mtim, status.st_ctim})
    text += " " + std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec);
  return text;
}

bool has_content(const fs::path& path, const std::string& hash) {
  return !fingerprint(path).empty() && content_hash(read_file(path)) == hash;
}

void remove_foreign(const fs::path& path) {
  std::error_code failure;
  fs::remove_all(path, failure);
  if (failure)
    throw UsageError("the cache of code has " + path.string() +
                     ", which is not this user's, and it cannot be removed: " + failure.message() +
                     ". Remove it, or set XDG_CACHE_HOME to a folder of your own");
}

// Makes the folder, or takes it as it is if it is this user's own. Others must not read or change the code.
void make_own_folder(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder.parent_path(), failure);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw UsageError("cannot make the folder " + folder.string() + " for code: " +
                     std::generic_category().message(errno) + ". Set XDG_CACHE_HOME to a folder of your own");
  struct stat status{};
  if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
    throw UsageError("the folder " + folder.string() + " for code is a link, or belongs to another user (number " +
                     std::to_string(status.st_uid) +
                     "), who could run code here. Remove it, or set XDG_CACHE_HOME to a folder of your own");
  if ((status.st_mode & 077) != 0) fs::permissions(folder, fs::perms::owner_all);
}

// If others could change the cache until now, what runs from it without a hash, such as Python's bytecode, is removed.
void make_own_cache(const fs::path& cache) {
  struct stat status{};
  const bool was_open = lstat(cache.c_str(), &status) == 0 && (status.st_mode & 022) != 0;
  make_own_folder(cache);
  if (was_open)
    for (const char* name : {"code", "programs"}) remove_foreign(cache / name);
  make_own_folder(cache / "files");
  make_own_folder(cache / "code");
  make_own_folder(cache / "checked");
}

bool write_file(const fs::path& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out << content;
  out.close();
  return static_cast<bool>(out);
}

// The file gets its name when it is complete, because other servers look for that name.
void put(const std::string& content, const fs::path& path) {
  const fs::path beside = path.string() + "." + random_hex(8);
  std::error_code ignored;
  if (!write_file(beside, content)) {
    fs::remove(beside, ignored);
    throw UsageError("cannot write to " + path.parent_path().string() +
                     ". Is the disk full, or does the folder belong to another user?");
  }
  fs::rename(beside, path);
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

bool CodeBundle::has(const std::string& hash) const {
  return std::ranges::find(files_, hash, &File::hash) != files_.end();
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
  const List& entries = manifest["files"].list();
  std::uint64_t total = 0;
  std::map<std::string, std::uint64_t> sizes;
  for (const Value& entry : entries) {
    const std::string& hash = entry["hash"].string();
    if (!is_hash(hash)) throw ProtocolError("the bundle of code has a file without a valid hash");
    files_.push_back({checked_path(entry["path"].string()), hash});
    sizes[hash] = entry["bytes"].unsigned_integer();
    total += std::min(sizes[hash], limits::code_bytes_max + 1);
  }
  if (total > limits::code_bytes_max || files_.size() > limits::code_files_max)
    throw ProtocolError("the bundle of code has " + std::to_string(files_.size()) + " files and " + megabytes(total) +
                        ", which is more than the limits allow (code_files_max, code_bytes_max)");
  make_own_cache(cache_);
  folder_ = cache_ / "code" / name;
  find_good_files();
  std::set<std::string> asked;
  for (const File& file : files_)
    if (!good_.contains(file.path) && !has_content(stored(file.hash), file.hash) && asked.insert(file.hash).second)
      missing_.push_back({file.hash, sizes[file.hash]});
}

// Notes which files of the folder can be used, and removes what is not this user's.
void CodeUnpacker::find_good_files() {
  struct stat status{};
  if (lstat(folder_.c_str(), &status) != 0) return;
  if (!S_ISDIR(status.st_mode) || !is_own(status)) return remove_foreign(folder_);
  std::vector<fs::path> foreign;
  for (fs::recursive_directory_iterator entry(folder_), end; entry != end; ++entry) {
    const bool known = lstat(entry->path().c_str(), &status) == 0;
    if (known && is_own(status) && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) continue;
    foreign.push_back(entry->path());
    entry.disable_recursion_pending();
  }
  for (const fs::path& each : foreign) remove_foreign(each);
  const std::map<std::string, std::string> checked = read_record();
  for (const File& file : files_) {
    const std::string print = fingerprint(folder_ / file.path);
    if (print.empty()) continue;
    const auto before = checked.find(file.path.string());
    if ((before != checked.end() && before->second == file.hash + " " + print) ||
        has_content(folder_ / file.path, file.hash))
      good_.insert(file.path);
  }
}

// The record has a line for each file: hash, fingerprint, path.
std::map<std::string, std::string> CodeUnpacker::read_record() const {
  std::map<std::string, std::string> checked;
  if (fingerprint(record()).empty()) return checked;
  std::ifstream lines(record());
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    if (tab != std::string::npos) checked[line.substr(tab + 1)] = line.substr(0, tab);
  }
  return checked;
}

void CodeUnpacker::write_record() const {
  std::string text;
  for (const File& file : files_)
    if (file.path.string().find('\n') == std::string::npos)  // otherwise it is checked each time
      text += file.hash + " " + fingerprint(folder_ / file.path) + "\t" + file.path.string() + "\n";
  std::error_code ignored;
  const fs::path beside = record().string() + "." + random_hex(8);
  if (!write_file(beside, text)) {
    fs::remove(beside, ignored);  // then the files are checked again next time
    return;
  }
  fs::rename(beside, record(), ignored);
}

void CodeUnpacker::add(const Missing& file, const std::string& content) const {
  if (content_hash(content) != file.hash) throw ProtocolError("a file of code arrived with a wrong hash");
  put(content, stored(file.hash));
}

// The folder appears with all files in it. If it is there already, what is missing or wrong in it is replaced.
fs::path CodeUnpacker::finish() const {
  std::error_code ignored;
  struct stat status{};
  const bool is_new = lstat(folder_.c_str(), &status) != 0;
  const fs::path target = is_new ? fs::path(folder_.string() + "." + random_hex(8)) : folder_;
  fs::create_directories(target);
  for (const File& file : files_) {
    if (good_.contains(file.path)) continue;
    const std::string content = read_file(stored(file.hash));
    if (content_hash(content) != file.hash)
      throw UsageError("the file " + stored(file.hash).string() +
                       " changed while it was used. Start the cluster again");
    fs::last_write_time(stored(file.hash), fs::file_time_type::clock::now(), ignored);  // so that it is kept
    fs::create_directories((target / file.path).parent_path());
    put(content, target / file.path);
  }
  if (is_new) {
    std::error_code failure;
    fs::rename(target, folder_, failure);
    if (failure) fs::remove_all(target, ignored);  // probably another server has made the folder meanwhile
    if (!fs::exists(folder_))
      throw UsageError("cannot make the folder " + folder_.string() + ": " + failure.message() +
                       ". Is the disk full, or does the folder belong to another user?");
    fs::last_write_time(folder_, fs::file_time_type::clock::now(), ignored);
    remove_unused(cache_ / "code");
    remove_unused(cache_ / "files");
    remove_unused(cache_ / "checked");
    remove_unused(cache_ / "programs");
  }
  fs::last_write_time(folder_, fs::file_time_type::clock::now(), ignored);
  if (good_.size() < files_.size() || fingerprint(record()).empty()) write_record();
  fs::last_write_time(record(), fs::file_time_type::clock::now(), ignored);
  return folder_;
}

}  // namespace miniray
