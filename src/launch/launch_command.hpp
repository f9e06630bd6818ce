// How a node's server is started: the command line, and what it means when that fails.
#pragma once

#include <climits>
#include <string>
#include <vector>

#include "miniray/launch.hpp"

namespace miniray {

/// "localhost" and its addresses need no ssh.
[[nodiscard]] bool is_local(const std::string& host);

struct Tunnel {
  std::string here, there;  ///< paths of Unix-domain sockets; empty: none
};

/// What to run here. Without ssh it is the same command, in a shell.
[[nodiscard]] std::vector<std::string> launch_command(const NodeConfig& node, const std::string& remote_command,
                                                      const Tunnel& tunnel, int unreachable_ms);

/// For a node's shell: the program of that hash from the cache, sent if it is not there, in place of "$program".
[[nodiscard]] std::string with_shipped_program(const std::string& command, const std::string& hash,
                                               std::uint64_t bytes);
/// The line by which that asks for the program.
inline constexpr const char* send_program_line = "miniray-send-program";

/// With this argument, a C++ program that calls init() is a worker server.
inline constexpr const char* server_argument = "--miniray-worker-server";

[[nodiscard]] std::string quote_for_shell(const std::string& word);

/// The cause and the cure, from what ssh, a shell or an interpreter said before it ended.
[[nodiscard]] std::string explain_failure(const NodeConfig& node, int exit_code, const std::string& complaints);
/// The same for a server that had said hello, and did not say that it failed.
[[nodiscard]] std::string explain_early_end(int exit_code, const char* stage, const std::string& complaints);
/// In place of an exit code: the command could not even be started.
inline constexpr int command_not_started = INT_MIN;

}  // namespace miniray
