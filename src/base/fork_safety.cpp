#include "base/fork_safety.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/system.hpp"

namespace miniray {
namespace {

template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Handles of the loaded libraries whose path contains a word. Nothing is searched for on disk, as dlopen would.
std::vector<void*> loaded_libraries(const char* word) {
  struct Search {
    const char* word;
    std::vector<std::string> paths;
  } search{word, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        auto& found = *static_cast<Search*>(argument);
        if (info->dlpi_name != nullptr && std::strstr(info->dlpi_name, found.word) != nullptr)
          found.paths.emplace_back(info->dlpi_name);
        return 0;
      },
      &search);
  std::vector<void*> handles;
  for (const std::string& path : search.paths) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY)) {
      dlclose(handle);  // the program's own reference keeps it loaded
      handles.push_back(handle);
    }
  }
  return handles;
}

// int stands for CUresult and CUdevice; 0 is success. Before cuInit every call fails, and there is no context.
bool has_live_context(void* driver) {
  auto* device_count = symbol<int(int*)>(driver, "cuDeviceGetCount");
  auto* context_state = symbol<int(int, unsigned*, int*)>(driver, "cuDevicePrimaryCtxGetState");
  int devices = 0;
  if (device_count == nullptr || context_state == nullptr || device_count(&devices) != 0) return false;
  for (int device = 0; device < devices; ++device) {
    unsigned flags = 0;
    int active = 0;
    if (context_state(device, &flags, &active) == 0 && active != 0) return true;
  }
  return false;
}

}  // namespace

bool cuda_context_is_live() {
  const std::vector<void*> drivers = loaded_libraries("libcuda.so");
  return std::any_of(drivers.begin(), drivers.end(), has_live_context);
}

OpenMpAfterFork::OpenMpAfterFork() {
  if (system::thread_count() == 1) return;
  for (void* library : loaded_libraries("libgomp")) {
    if (auto* set = symbol<void(int)>(library, "omp_set_num_threads")) set_num_threads_.push_back(set);
  }
}

void OpenMpAfterFork::run_in_child() const {
  for (auto* set : set_num_threads_) set(1);
}

}  // namespace miniray
