// A library that is loaded while it is needed, if it is there at all.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

namespace miniray {

class SharedLibrary {
 public:
  explicit SharedLibrary(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) why_not_ = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is for each thread
  }
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;
  ~SharedLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }

  [[nodiscard]] bool loaded() const { return handle_ != nullptr; }
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  /// Null if the library has none of that name.
  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    return handle_ != nullptr ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
  }

 private:
  void* handle_;
  std::string why_not_;
};

}  // namespace miniray
