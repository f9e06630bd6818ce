// The part of check() that looks at the clock, GPUs, shared memory and limits of each node.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "base/system.hpp"
#include "cluster/node_plan.hpp"
#include "cluster/probe.hpp"
#include "collective/examination.hpp"

namespace miniray {
namespace {

constexpr double clock_difference_s_max = limits::clock_difference_max_ms / 1000.0;

class MachineCheck {
 public:
  explicit MachineCheck(Examination& examination) : exam_(examination) {}

  void run() {
    check_clocks();
    check_gpus();
    check_room();
  }

 private:
  // Returns how far the node's clock is ahead of this machine's. The node's time is compared with the middle between
  // question and answer. Of several rounds, the quickest counts, because its middle is the most exact.
  [[nodiscard]] double clock_offset_s(std::size_t node) {
    double offset_s = 0, best_s = INFINITY;
    for (int round = 0; round < limits::clock_rounds; ++round) {
      const std::int64_t before_ns = system::time_of_day_ns();
      const std::int64_t there_ns = exam_.probes->ask(node, {{"cmd", "clock"}})["now_ns"].integer();
      const std::int64_t after_ns = system::time_of_day_ns();
      const double took_s = static_cast<double>(after_ns - before_ns) / 1e9;
      if (took_s >= best_s) continue;
      best_s = took_s;
      offset_s = static_cast<double>(there_ns - before_ns) / 1e9 - took_s / 2;
    }
    return offset_s;
  }

  void check_clocks() {
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      const double offset_s = clock_offset_s(i);
      exam_.facts[i]["clock_offset_s"] = offset_s;
      if (std::abs(offset_s) <= clock_difference_s_max) continue;
      std::array<char, 120> text{};
      std::snprintf(text.data(), text.size(), "its clock is %.1f s %s this machine's", std::abs(offset_s),
                    offset_s > 0 ? "ahead of" : "behind");
      exam_.warning(exam_.name(i), "clock", text.data(), "On " + exam_.name(i) + ": sudo timedatectl set-ntp true");
    }
  }

  void check_gpus() {
    std::map<std::string, std::string> drivers;
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      const Machine machine = machine_from(exam_.facts[i]["machine"]);
      if (!machine.driver_version.empty()) drivers[machine.driver_version] += " " + exam_.name(i);
      const std::optional<GpuShortage> shortage =
          gpu_shortage(machine, exam_.nodes[i].num_workers, exam_.nodes[i].gpus_per_worker, {});
      if (shortage) exam_.problem(exam_.name(i), "gpu", shortage->what, shortage->cure);
      if (exam_.nodes[i].gpus_per_worker > 0 && machine.gpus.empty())
        exam_.problem(
            exam_.name(i), "gpu",
            "has no GPU, so its workers would run without one: " +
                (machine.notes.empty() ? "none is visible" : machine.notes.front()),
            "Run `nvidia-smi` on " + exam_.name(i) + "; if no GPU is needed there, leave gpus_per_worker out");
      for (const std::string& note : machine.notes)
        if (!machine.gpus.empty()) exam_.warning(exam_.name(i), "gpu", note, "");
      const Value* cuda = i < exam_.languages.size() ? exam_.languages[i].find("cuda") : nullptr;
      const Value* torch = i < exam_.languages.size() ? exam_.languages[i].find("torch") : nullptr;
      if (!machine.gpus.empty() && cuda != nullptr && cuda->is_null() && torch != nullptr && !torch->is_null())
        exam_.problem(exam_.name(i), "gpu",
                      "has " + std::to_string(machine.gpus.size()) + " GPUs, but its torch (" + torch->string() +
                          ") is built without CUDA",
                      "On " + exam_.name(i) + ": install a CUDA build of torch");
    }
    if (drivers.size() < 2) return;
    std::string text;
    for (const auto& [version, names] : drivers) text += (text.empty() ? "" : "; ") + version + " on" + names;
    exam_.warning("all", "gpu", "versions of the NVIDIA driver differ: " + text,
                  "Install the same driver on all nodes");
  }

  // Defaults are often too small: 64 MiB of shared memory in a container, 1024 open files.
  void check_room() {
    for (std::size_t i = 0; i < exam_.nodes.size(); ++i) {
      const std::uint64_t shared = exam_.facts[i]["shared_memory_bytes"].unsigned_integer();
      const std::uint64_t files = exam_.facts[i]["open_files_max"].unsigned_integer();
      const std::uint64_t locked = exam_.facts[i]["locked_memory_bytes_max"].unsigned_integer();
      if (shared < limits::checked_shared_memory_bytes_min)
        exam_.warning(
            exam_.name(i), "memory",
            "/dev/shm has " + std::to_string(shared / limits::mib) +
                " MiB, but NCCL and torch's data loaders need more",
            "On " + exam_.name(i) + ": sudo mount -o remount,size=8G /dev/shm (in Docker: run with --shm-size=8g)");
      if (files < limits::checked_open_files_min)
        exam_.warning(exam_.name(i), "limit",
                      "a process may have " + std::to_string(files) + " files open, but data loaders need thousands",
                      "On " + exam_.name(i) + ": ulimit -n 65536, or set nofile in /etc/security/limits.conf");
      if (exam_.facts[i]["infiniband"].boolean() && locked != UINT64_MAX)
        exam_.problem(exam_.name(i), "limit",
                      "a process may lock " + std::to_string(locked / limits::kib) +
                          " KiB of memory, but InfiniBand needs this unlimited",
                      "On " + exam_.name(i) +
                          ": put \"* - memlock unlimited\" into /etc/security/limits.conf, then log in again");
    }
  }

  Examination& exam_;
};

}  // namespace

void check_machines(Examination& examination) { MachineCheck(examination).run(); }

}  // namespace miniray
