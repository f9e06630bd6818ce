// The table of functions without a name. Each is identified by its type, and by the build of the program or library
// that contains it.
#include "miniray/typed_function.hpp"

#include <link.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>

#include "miniray/error.hpp"
#include "miniray/limits.hpp"

namespace miniray::detail {
namespace {

constexpr std::string_view mark = " [c++ ";
constexpr std::size_t digits = 16;
constexpr std::size_t tail_size = mark.size() + digits + 1;  // " [c++ 0123456789abcdef]"

class Fnv1a {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) hash_ = (hash_ ^ static_cast<unsigned char>(byte)) * 1099511628211U;
  }
  [[nodiscard]] std::string text() const {
    std::string hex(digits, '0');
    for (std::size_t i = 0; i < digits; ++i) hex[i] = "0123456789abcdef"[(hash_ >> (60 - 4 * i)) & 15U];
    return hex;
  }

 private:
  std::uint64_t hash_ = 14695981039346656037U;
};

// A program or a library in memory.
struct Module {
  std::uintptr_t address = 0;  // any address inside it
  bool found = false;
  std::string path, build_id;
};

constexpr std::size_t padded(std::size_t size) { return (size + 3) & ~std::size_t{3}; }

// Returns the build id from the notes of one segment; empty if they have none.
std::string build_id_in(const char* notes, std::size_t size) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head;
    std::memcpy(&head, notes, sizeof(head));
    const std::size_t name = padded(head.n_namesz), all = sizeof(head) + name + padded(head.n_descsz);
    if (all > size) break;
    if (head.n_type == NT_GNU_BUILD_ID &&
        std::string_view(notes + sizeof(head), head.n_namesz) == std::string_view("GNU\0", 4))
      return {notes + sizeof(head) + name, head.n_descsz};
    notes += all;
    size -= all;
  }
  return {};
}

int look_at_module(dl_phdr_info* info, std::size_t /*size*/, void* data) {
  Module& module = *static_cast<Module*>(data);
  std::string build_id;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && module.address >= begin && module.address - begin < segment.p_memsz)
      module.found = true;
    if (segment.p_type == PT_NOTE && build_id.empty())
      build_id =
          build_id_in(reinterpret_cast<const char*>(begin), segment.p_memsz);  // NOLINT(performance-no-int-to-ptr)
  }
  if (!module.found) return 0;
  module.path = info->dlpi_name;
  module.build_id = build_id;
  return 1;
}

// Returns the build id of the program or library at this address; if it has none, a hash of its content.
std::string identity_of(std::uintptr_t address) {
  Module module;
  module.address = address;
  (void)dl_iterate_phdr(look_at_module, &module);
  if (!module.build_id.empty()) return module.build_id;
  const std::string path = module.path.empty() ? "/proc/self/exe" : module.path;
  std::ifstream file(path, std::ios::binary);
  Fnv1a hash;
  std::array<char, 65536> block;
  while (file.read(block.data(), block.size()) || file.gcount() > 0)
    hash.add({block.data(), static_cast<std::size_t>(file.gcount())});
  if (!module.found || !file.eof())
    throw UsageError("the program of this function cannot be identified, because " + path +
                     " has no build id and cannot be read. Link it with -Wl,--build-id, or register the function: "
                     "registry().add(\"name\", function)");
  return hash.text();
}

// "main()::<lambda(double)>", of "constexpr std::string_view ...type_text() [with Function = main()::<lambda(double)>;
// std::string_view = ...]", or what clang writes: "... [Function = (lambda at /home/me/main.cpp:3:15)]".
std::string spoken(std::string_view type) {
  constexpr std::string_view begin = "Function = ";
  if (const std::size_t at = type.find(begin); at != std::string_view::npos) type.remove_prefix(at + begin.size());
  type = type.substr(0, type.find("; std::string_view = "));
  if (type.ends_with(']')) type.remove_suffix(1);
  constexpr std::string_view constant = "miniray::FunctionConstant<";
  if (type.starts_with(constant)) {  // "miniray::FunctionConstant<square, double (*)(double)>"
    type.remove_prefix(constant.size());
    if (type.starts_with('&')) type.remove_prefix(1);
    type = type.substr(0, type.find(','));
  }
  constexpr std::string_view lambda_at = "(lambda at ";
  if (type.starts_with(lambda_at))
    return "lambda at " +
           std::string(type.substr(type.rfind('/') == std::string_view::npos ? lambda_at.size() : type.rfind('/') + 1,
                                   std::string_view::npos))
               .substr(0, limits::spoken_name_bytes_max - 12);
  return std::string(type.substr(0, limits::spoken_name_bytes_max));
}

}  // namespace

// The entries are a list that allocates no memory, because entries are added before main() in any order, and by
// libraries in any thread.
class TypedTable {
 public:
  void add(TypedEntry& entry) noexcept {
    const std::scoped_lock lock(mutex_);
    TypedEntry** last = &first_;
    while (*last != nullptr) last = &(*last)->next_;
    *last = &entry;
    ++changes_;
  }
  void remove(const TypedEntry& entry) noexcept {
    const std::scoped_lock lock(mutex_);
    for (TypedEntry** at = &first_; *at != nullptr; at = &(*at)->next_) {
      if (*at != &entry) continue;
      *at = entry.next_;
      break;
    }
    ++changes_;
  }
  [[nodiscard]] std::string name_of(const TypedEntry& entry) {
    const std::scoped_lock lock(mutex_);
    return make_name(entry);
  }
  [[nodiscard]] TypedEntry::Call find(std::string_view name) {
    const std::scoped_lock lock(mutex_);
    if (indexed_ != changes_) {
      index_.clear();
      for (const TypedEntry* entry = first_; entry != nullptr; entry = entry->next_)
        index_.emplace(make_name(*entry), entry->call_);
      indexed_ = changes_;
    }
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : found->second;
  }

 private:
  // Two source files may have functions whose types look the same. Their order in the program, which the linker chose,
  // tells them apart: it is the same in every run.
  [[nodiscard]] std::string make_name(const TypedEntry& entry) const {
    const auto address = [](const TypedEntry& of) { return reinterpret_cast<std::uintptr_t>(of.call_); };
    const std::string module = identity_of(address(entry));
    std::size_t before = 0;
    for (const TypedEntry* other = first_; other != nullptr && other != &entry; other = other->next_)
      if (other->type_ == entry.type_ && identity_of(address(*other)) == module) ++before;
    Fnv1a hash;
    hash.add(module);
    hash.add(entry.type_);
    hash.add(std::to_string(before));
    return spoken(entry.type_) + std::string(mark) + hash.text() + "]";
  }

  std::mutex mutex_;
  TypedEntry* first_ = nullptr;
  std::uint64_t changes_ = 0, indexed_ = 0;
  std::map<std::string, TypedEntry::Call, std::less<>> index_;
};

namespace {

// It is never destroyed, because entries are removed from it while the program ends.
TypedTable& typed_table() {
  static auto* const table = new TypedTable;
  return *table;
}

}  // namespace

TypedEntry::TypedEntry(std::string_view type, Call call) noexcept : type_(type), call_(call) {
  typed_table().add(*this);
}
TypedEntry::~TypedEntry() { typed_table().remove(*this); }
std::string TypedEntry::name() const { return typed_table().name_of(*this); }

bool is_typed_name(std::string_view name) {
  return name.size() > tail_size && name.ends_with(']') && name.substr(name.size() - tail_size).starts_with(mark);
}

std::string_view spoken_name(std::string_view name) {
  return is_typed_name(name) ? name.substr(0, name.size() - tail_size) : name;
}

TypedEntry::Call typed_function(std::string_view name) {
  if (const TypedEntry::Call call = typed_table().find(name)) return call;
  throw UsageError(
      std::string(spoken_name(name)) +
      " is not in the program of this worker. A lambda or a fn<> can be called only in workers that run "
      "the same build of the same program as the caller; if it is in a library that is loaded with dlopen, "
      "the worker has to load the library before. For another program, register the function there, with "
      "registry().add(\"name\", function), and call it by its name");
}

}  // namespace miniray::detail
