// A probe is a process on a node that reports about the node: its hardware, which addresses names have there, which
// ports are free, and which nodes it reaches. Every server that a cluster starts can run one.
#pragma once

#include <string>

#include "miniray/handle.hpp"
#include "miniray/hardware.hpp"
#include "miniray/value.hpp"

namespace miniray {

/// The name of run_probe() as a work function, in servers of every language.
inline constexpr const char* probe_function = "miniray.probe";

/// Answers orders until its coordinator closes the connection. An order is a map with "cmd":
///   machine                                  -> what discover_machine() found
///   facts                                    -> the machine and everything else about the node
///   clock                                    -> {"now_ns"}: the time of day on the node
///   resolve  {"host"}                        -> {"found": the list of its addresses, "seconds": how long it took}
///   listen   {"port"}                        -> {"port"}, or {"error": "is taken by process 1234 (...)"}
///   dial     {"to": [{"host", "port", "token"}], "timeout_ms"}  -> {"outcomes": see Dial::outcome()}
///   close                                    -> {}: the probe stops listening
/// A probe that listens sends its token over every connection, so that the other side knows which probe it has reached.
void run_probe(Handle& handle);

/// Reads the answer to "machine".
[[nodiscard]] Machine machine_from(const Value& facts);

}  // namespace miniray
