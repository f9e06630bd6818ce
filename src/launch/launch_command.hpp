// Builds the command line that starts a node's server, and explains why such a command has failed.
#pragma once

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "miniray/launch.hpp"

namespace miniray {

/// Returns true for "localhost" and its addresses, which are reached without ssh.
[[nodiscard]] bool is_local(const std::string& host);

/// The two ends of a tunnel through ssh: paths of Unix-domain sockets. Both are empty if there is no tunnel.
struct Tunnel {
  std::string here, there;
};

/// Returns the command to run on this machine: ssh with `remote_command`, or for a local node a shell with it.
[[nodiscard]] std::vector<std::string> launch_command(const NodeConfig& node, const std::string& remote_command,
                                                      const Tunnel& tunnel, int unreachable_ms);

/// Returns shell code for the node that sets "$program" to the cached program with this hash, and then runs `command`.
/// If the cache has no such program, the code prints send_program_line and reads the program from its input.
[[nodiscard]] std::string with_shipped_program(const std::string& command, const std::string& hash,
                                               std::uint64_t bytes);
inline constexpr const char* send_program_line = "miniray-send-program";

/// The argument that makes init() turn a C++ program into a worker server.
inline constexpr const char* server_argument = "--miniray-worker-server";

[[nodiscard]] std::string quote_for_shell(const std::string& word);

/// Whether the command runs a C++ program, which is a server only once it calls miniray::init.
enum class Runs : std::uint8_t { python, own_program };
/// Returns the cause and the cure for a command that ended before the server's first line. `error_output` is what ssh,
/// the shell or the interpreter printed.
[[nodiscard]] std::string explain_failure(const NodeConfig& node, int exit_code, const std::string& error_output,
                                          Runs runs);
/// Returns the cure for a program that has started and has not sent its first line; empty if none is known.
[[nodiscard]] std::string explain_silence(const NodeConfig& node, Runs runs);
/// Returns the same for a server that ended after its first line, without saying that it failed.
[[nodiscard]] std::string explain_early_end(int exit_code, const char* stage, const std::string& error_output);
/// Returns the cause and the cure for an attendant (attendant.hpp) that ended before it reached attend().
[[nodiscard]] std::string explain_attendant_end(const ExitStatus& status, Runs runs);
/// The exit code that stands for a command that could not be started.
inline constexpr int command_not_started = INT_MIN;

}  // namespace miniray
