#include "hardware/hwloc.hpp"

#include <hwloc.h>

#include <memory>

#include "hardware/shared_library.hpp"

namespace miniray {
namespace {

constexpr const char* library_name = "libhwloc.so.15";  // hwloc 2
static_assert(HWLOC_API_VERSION >= 0x00020000);

// The functions of hwloc that are used here, looked up in the library by name. Their types come from its header.
class Hwloc {
 public:
  Hwloc() : library_(library_name) {}
  [[nodiscard]] const SharedLibrary& library() const { return library_; }
  [[nodiscard]] bool usable() const { return init && load && destroy && count_at && object_at && next_cpu; }

 private:
  SharedLibrary library_;

 public:
#define MINIRAY_FIND(name) library_.function<std::remove_pointer_t<decltype(&(name))>>(#name)
  decltype(&hwloc_topology_init) init = MINIRAY_FIND(hwloc_topology_init);
  decltype(&hwloc_topology_load) load = MINIRAY_FIND(hwloc_topology_load);
  decltype(&hwloc_topology_destroy) destroy = MINIRAY_FIND(hwloc_topology_destroy);
  decltype(&hwloc_get_nbobjs_by_depth) count_at = MINIRAY_FIND(hwloc_get_nbobjs_by_depth);
  decltype(&hwloc_get_obj_by_depth) object_at = MINIRAY_FIND(hwloc_get_obj_by_depth);
  decltype(&hwloc_bitmap_next) next_cpu = MINIRAY_FIND(hwloc_bitmap_next);
#undef MINIRAY_FIND
};

}  // namespace

CpuSurvey survey_cpus() {
  CpuSurvey survey;
  const Hwloc hwloc;
  if (!hwloc.usable()) {
    survey.note = "it is not known which CPUs are next to which GPU, because hwloc is missing (" +
                  (hwloc.library().loaded() ? "its version is not 2" : hwloc.library().why_not()) +
                  "). Install it: apt-get install libhwloc15";
    return survey;
  }
  hwloc_topology_t made = nullptr;
  if (hwloc.init(&made) != 0) {
    survey.note = "it is not known which CPUs are next to which GPU, because hwloc failed. Try `lstopo`";
    return survey;
  }
  const std::unique_ptr<hwloc_topology, decltype(hwloc.destroy)> topology(made, hwloc.destroy);
  if (hwloc.load(topology.get()) != 0) {
    survey.note = "it is not known which CPUs are next to which GPU, because hwloc failed. Try `lstopo`";
    return survey;
  }
  const unsigned count = hwloc.count_at(topology.get(), HWLOC_TYPE_DEPTH_NUMANODE);
  for (unsigned i = 0; i < count; ++i) {
    const hwloc_obj_t object = hwloc.object_at(topology.get(), HWLOC_TYPE_DEPTH_NUMANODE, i);
    NumaNode node;
    node.index = static_cast<int>(object->os_index);
    for (int cpu = hwloc.next_cpu(object->cpuset, -1); cpu >= 0; cpu = hwloc.next_cpu(object->cpuset, cpu))
      node.cpus.push_back(cpu);
    // Memory without CPUs, such as a GPU's own, is of no use for affinity.
    if (!node.cpus.empty()) survey.numa_nodes.push_back(std::move(node));
  }
  return survey;
}

}  // namespace miniray
