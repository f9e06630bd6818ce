// What a cluster and the servers that it started say to each other, as lines of text through ssh:
//
//   server:  miniray-server {"version": ..., "protocol": ...}
//   cluster: {"key": ..., "port": ..., "code": {manifest}, ...}
//   server:  miniray-need ["hash", ...]                   only if files are missing; the cluster sends their bytes
//   server:  miniray-importing {}                         from here on, the cluster says now and then that it lives
//   server:  miniray-ready {"port": ..., "address": ...}  or miniray-failed {"why": ...}
//   server:  >label text                                  a line that a worker printed to standard output
//   server:  !label text                                  a line that a worker printed to standard error
//   cluster: an empty line now and then, so that a server that is cut off knows; what comes before is not waited for
//            for longer either
//
// Lines before the first that begins with miniray- are noise from login scripts. The end of the cluster's stream is the
// end of the server.
#pragma once

#include <string_view>

namespace miniray::launch {

inline constexpr std::string_view hello = "miniray-server ";
inline constexpr std::string_view need = "miniray-need ";
inline constexpr std::string_view importing = "miniray-importing ";
inline constexpr std::string_view ready = "miniray-ready ";
inline constexpr std::string_view failed = "miniray-failed ";
inline constexpr char output = '>';
inline constexpr char errors = '!';

}  // namespace miniray::launch
