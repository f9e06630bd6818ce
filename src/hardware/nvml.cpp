#include "hardware/nvml.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/system.hpp"
#include "hardware/shared_library.hpp"

namespace miniray {
namespace {

// The part of NVML's interface that is used here, so that no header of NVIDIA's is needed. NVML keeps it stable: when a
// layout changes, the function gets a new name with a version.
using Return = int;
using Device = struct OpaqueDevice*;
constexpr Return success = 0;
struct PciInfo {
  std::array<char, 16> legacy_address;
  unsigned domain, bus, device, device_id, subsystem_id;
  std::array<char, 32> address;
};
static_assert(sizeof(PciInfo) == 68);
struct Memory {
  unsigned long long total, free, used;
};
constexpr std::size_t text_bytes = 96;
constexpr unsigned affinity_of_node = 0;
constexpr unsigned numa_words = 16;  // a bit for each NUMA node

class Nvml {
 public:
  explicit Nvml(const std::string& path) : library_(path) {
    if (!library_.loaded()) {
      failure_ = "there is no NVIDIA driver (" + library_.why_not() + ")";
      return;
    }
    const auto init = library_.function<Return()>("nvmlInit_v2");
    if (init == nullptr) {
      failure_ = path + " is not the NVML library: it has no nvmlInit_v2";
      return;
    }
    if (const Return code = init(); code == success)
      initialised_ = true;
    else
      failure_ = "the NVIDIA driver does not answer: " + error_text(code) + ". Try `nvidia-smi`";
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    const auto shutdown = library_.function<Return()>("nvmlShutdown");
    if (initialised_ && shutdown != nullptr) shutdown();
  }

  [[nodiscard]] bool usable() const { return initialised_; }
  [[nodiscard]] const std::string& failure() const { return failure_; }

  /// Returns false if the library has no such function, or if the function failed.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    const auto function = library_.function<Return(Arguments...)>(name);
    return function != nullptr && function(arguments...) == success;
  }

  /// Returns the text that the function writes; an empty one if it failed.
  template <class... Before>
  [[nodiscard]] std::string text(const char* name, Before... before) const {
    std::array<char, text_bytes> room{};
    if (!call(name, before..., room.data(), static_cast<unsigned>(room.size()))) return {};
    return {room.data(), strnlen(room.data(), room.size())};
  }

 private:
  [[nodiscard]] std::string error_text(Return code) const {
    const auto describe = library_.function<const char*(Return)>("nvmlErrorString");
    return describe != nullptr ? describe(code) : "error " + std::to_string(code);
  }

  SharedLibrary library_;
  bool initialised_ = false;
  std::string failure_;
};

// Turns NVML's form of a PCI address, "00000000:3B:00.0", into the kernel's, "0000:3b:00.0".
std::string kernel_address(const PciInfo& pci) {
  std::string address(pci.address.data(), strnlen(pci.address.data(), pci.address.size()));
  std::ranges::transform(address, address.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::size_t long_domain = 8, short_domain = 4;
  return address.find(':') == long_domain ? address.substr(long_domain - short_domain) : address;
}

// Old drivers cannot say it; then the kernel may know.
int numa_node_of(const Nvml& nvml, Device device, const std::string& pci_address) {
  constexpr std::size_t word_bits = 8 * sizeof(unsigned long);
  std::array<unsigned long, numa_words> nodes{};
  if (nvml.call("nvmlDeviceGetMemoryAffinity", device, numa_words, nodes.data(), affinity_of_node)) {
    for (std::size_t bit = 0; bit < word_bits * nodes.size(); ++bit)
      if ((nodes[bit / word_bits] >> (bit % word_bits) & 1) != 0) return static_cast<int>(bit);
  }
  const std::string text =
      pci_address.empty() ? ""
                          : system::read_small_file(("/sys/bus/pci/devices/" + pci_address + "/numa_node").c_str());
  return text.empty() ? -1 : std::atoi(text.c_str());
}

GpuSurvey ask(const char* library) {
  const Nvml nvml(library);
  GpuSurvey survey;
  unsigned count = 0;
  if (!nvml.usable()) {
    survey.note = nvml.failure();
    return survey;
  }
  survey.driver_version = nvml.text("nvmlSystemGetDriverVersion");
  (void)nvml.call("nvmlDeviceGetCount_v2", &count);
  for (unsigned index = 0; index < count; ++index) {
    Gpu gpu;
    gpu.index = static_cast<int>(index);
    Device device = nullptr;
    if (nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device)) {
      gpu.name = nvml.text("nvmlDeviceGetName", device);
      gpu.uuid = nvml.text("nvmlDeviceGetUUID", device);
      PciInfo pci{};
      if (nvml.call("nvmlDeviceGetPciInfo_v3", device, &pci)) gpu.pci_address = kernel_address(pci);
      Memory memory{};
      if (nvml.call("nvmlDeviceGetMemoryInfo", device, &memory)) gpu.memory_bytes = memory.total;
      gpu.numa_node = numa_node_of(nvml, device, gpu.pci_address);
    }
    survey.gpus.push_back(std::move(gpu));
  }
  if (survey.gpus.empty()) survey.note = "there is no GPU, although there is an NVIDIA driver";
  return survey;
}

}  // namespace

// The driver is asked once in a process: each nvmlInit() that nvmlShutdown() follows leaves an eventfd open.
GpuSurvey survey_gpus() {
  if (const char* path = std::getenv("MINIRAY_NVML_LIBRARY")) return ask(path);
  static const GpuSurvey found = ask("libnvidia-ml.so.1");
  return found;
}

}  // namespace miniray
