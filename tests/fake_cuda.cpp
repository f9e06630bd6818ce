// Stands in for the CUDA driver in tests of what a fork would break: devices, and one of them with a live context.
namespace {

int device_count = -1;  // before cuInit
int live_device = -1;

}  // namespace

extern "C" {

void fake_set(int devices, int live) {
  device_count = devices;
  live_device = live;
}

int cuDeviceGetCount(int* count) {
  constexpr int not_initialized = 3;
  if (device_count < 0) return not_initialized;
  *count = device_count;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = device == live_device ? 1 : 0;
  return 0;
}

}  // extern "C"
