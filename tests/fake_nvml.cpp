// A stand-in for NVIDIA's NVML, as a machine with 8 GPUs on 2 NUMA nodes would have it: four next to each. It is what
// the tests have instead of such a machine; MINIRAY_NVML_LIBRARY names it.
#include <array>
#include <cstdio>
#include <cstring>

namespace {

constexpr unsigned gpu_count = 8, gpus_per_numa_node = 4;
constexpr int success = 0, invalid_argument = 2;
struct FakeDevice {
  unsigned index;
};
std::array<FakeDevice, gpu_count> devices{{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}};

struct PciInfo {
  std::array<char, 16> legacy_address;
  unsigned domain, bus, device, device_id, subsystem_id;
  std::array<char, 32> address;
};

}  // namespace

extern "C" {
int nvmlInit_v2() { return success; }
int nvmlShutdown() { return success; }
const char* nvmlErrorString(int) { return "no such thing"; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "999.01");
  return success;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = gpu_count;
  return success;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, FakeDevice** device) {
  if (index >= gpu_count) return invalid_argument;
  *device = &devices[index];
  return success;
}
int nvmlDeviceGetName(FakeDevice*, char* text, unsigned size) {
  std::snprintf(text, size, "Fake GPU");
  return success;
}
int nvmlDeviceGetUUID(FakeDevice* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-fake-%u", device->index);
  return success;
}
int nvmlDeviceGetPciInfo_v3(FakeDevice* device, PciInfo* pci) {
  std::snprintf(pci->address.data(), pci->address.size(), "00000000:%02X:00.0", 0x1A + device->index);
  return success;
}
int nvmlDeviceGetMemoryInfo(FakeDevice*, unsigned long long* memory) {
  memory[0] = 80ULL << 30;
  return success;
}
int nvmlDeviceGetMemoryAffinity(FakeDevice* device, unsigned words, unsigned long* nodes, unsigned) {
  std::memset(nodes, 0, words * sizeof(unsigned long));
  nodes[0] = 1UL << (device->index / gpus_per_numa_node);
  return success;
}
}
