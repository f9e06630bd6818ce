// A process on a node that tells of it: what hardware it has, what its names mean there, which ports are free, and who
// can be reached from there. Every server that a cluster starts can run one.
#pragma once

#include <string>

#include "miniray/handle.hpp"
#include "miniray/hardware.hpp"
#include "miniray/value.hpp"

namespace miniray {

/// How servers know it, whatever language they are in.
inline constexpr const char* probe_function = "miniray.probe";

/// Answers orders until its coordinator has finished. Each is a map with "cmd":
///   machine                                  -> what discover_machine() found
///   facts                                    -> the machine and everything else about the node
///   clock                                    -> {"now_ns"}: the time of day there
///   resolve  {"host"}                        -> {"found": the list of its addresses, "seconds": how long it took}
///   listen   {"port"}                        -> {"port"}, or {"error": "is taken by process 1234 (...)"}
///   dial     {"to": [{"host", "port", "token"}], "timeout_ms"}  -> {"outcomes": for each "", or what happened}
///   close                                    -> {}: nothing listens any more
/// A probe that listens sends its token to everyone who connects, so that the other side knows which probe it has
/// reached.
void run_probe(Handle& handle);

/// As the probe tells of it.
[[nodiscard]] Machine machine_from(const Value& facts);

}  // namespace miniray
