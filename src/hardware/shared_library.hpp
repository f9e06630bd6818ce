// A shared library that is loaded at run time and unloaded with the object. It need not exist: loaded() says so.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

namespace miniray {

class SharedLibrary {
 public:
  explicit SharedLibrary(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) why_not_ = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc has one for each thread
  }
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;
  ~SharedLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }

  [[nodiscard]] bool loaded() const { return handle_ != nullptr; }
  /// Returns why the library was not loaded.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  /// Returns null if the library has no function of this name.
  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    return handle_ != nullptr ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
  }

 private:
  void* handle_;
  std::string why_not_;
};

}  // namespace miniray
