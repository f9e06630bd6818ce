#include "launch/launch_command.hpp"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "miniray/error.hpp"
#include "miniray/limits.hpp"
#include "miniray/version.hpp"

namespace miniray {
namespace {

constexpr int ssh_failed = 255, not_found = 127, not_executable = 126;

constexpr const char* call_init_first =
    "On a node the program has to reach miniray::init: call miniray::init(argc, argv, functions) first in main(), "
    "because what stands before it runs on every node too";

constexpr const char* killed_by_somebody =
    "A person, a program or the kernel (out of memory) has killed it: `dmesg` may say which";

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

bool is_local(const std::string& host) { return host == "localhost" || host == "127.0.0.1" || host == "::1"; }

std::string quote_for_shell(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

ServerProgram ServerProgram::cpp(const std::string& path) {
  ServerProgram program;
  program.executable = std::filesystem::absolute(path).string();
  if (access(program.executable.c_str(), X_OK) != 0)
    throw UsageError("cannot copy the program " + program.executable + " to the nodes: it is not an executable file");
  program.command = [](const NodeConfig&) { return std::string("exec \"$program\" ") + server_argument; };
  return program;
}

ServerProgram ServerProgram::python(const std::string& interpreter) {
  ServerProgram program;
  program.command = [interpreter](const NodeConfig& node) {
    const std::string arguments = " -m miniray.worker_server --stdio";
    if (!node.python_bin.empty()) return "exec " + quote_for_shell(node.python_bin) + arguments;
    const std::string here = quote_for_shell(interpreter);
    return "if [ -x " + here + " ]; then exec " + here + arguments + "; else exec python3" + arguments + "; fi";
  };
  return program;
}

std::vector<std::string> launch_command(const NodeConfig& node, const std::string& remote_command, const Tunnel& tunnel,
                                        int unreachable_ms) {
  // The command is written for sh, and the user's login shell may be another one.
  if (is_local(node.host)) return {"/bin/sh", "-c", remote_command};
  const std::string alive_s = std::to_string(std::max(1, unreachable_ms / limits::heartbeats / 1000));
  std::vector<std::string> command{"ssh", "-T",
                                   "-o",  "BatchMode=yes",
                                   "-o",  "LogLevel=ERROR",
                                   "-o",  "ConnectTimeout=" + std::to_string(limits::ssh_connect_timeout_ms / 1000),
                                   "-o",  "ServerAliveInterval=" + alive_s,
                                   "-o",  "ServerAliveCountMax=" + std::to_string(limits::heartbeats)};
  if (!node.ssh_key.empty()) command.insert(command.end(), {"-i", node.ssh_key});
  if (!tunnel.here.empty())
    command.insert(command.end(), {"-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindUnlink=yes", "-L",
                                   tunnel.here + ":" + tunnel.there});
  command.insert(command.end(), {"--", node.host, "exec /bin/sh -c " + quote_for_shell(remote_command)});
  return command;
}

std::string with_shipped_program(const std::string& command, const std::string& hash, std::uint64_t bytes) {
  // The program is written to another name and renamed, so that the cache never has half a program under its hash. A
  // program in the cache is used only if it is this user's, in folders of this user, and has the right content: another
  // user may have put it there.
  const std::string size = std::to_string(bytes);
  return "cache=\"${XDG_CACHE_HOME:-$HOME/.cache}/miniray\"; folder=\"$cache/programs\"; program=\"$folder/" + hash +
         "\"; (umask 077; mkdir -p \"$folder\"); for each in \"$cache\" \"$folder\"; do "
         "if [ -O \"$each\" ] && [ ! -L \"$each\" ]; then chmod 700 \"$each\"; "
         "else echo \"the folder $each for programs is missing, a link, or belongs to another user. Remove it, or set "
         "XDG_CACHE_HOME to a folder of your own\" >&2; exit 1; fi; done; "
         "if [ ! -x \"$program\" ] || [ ! -O \"$program\" ] || [ -L \"$program\" ] || "
         "[ \"$(sha256sum < \"$program\" | cut -c 1-64)\" != " +
         hash + " ]; then echo; echo " + send_program_line + "; (umask 077; head -c " + size +
         " > \"$program.$$\" && [ $(wc -c < \"$program.$$\") -eq " + size +
         " ] && chmod 700 \"$program.$$\" && mv \"$program.$$\" \"$program\") || " +
         "{ rm -f \"$program.$$\"; exit 1; }; fi; " + command;
}

std::string explain_failure(const NodeConfig& node, int exit_code, const std::string& error_output, Runs runs) {
  const std::string said = trimmed(error_output);
  const std::string& host = node.host;
  const auto with_cure = [&](const std::string& cause, const std::string& cure) {
    return cause + ". " + cure + (said.empty() ? "" : "\n" + said);
  };
  if (exit_code == command_not_started)
    return with_cure("cannot start ssh on this machine", "Install openssh-client, or put ssh into PATH");
  if (exit_code < 0 && exit_code != -SIGKILL && runs == Runs::own_program && is_local(host))
    return with_cure("its program was ended by signal " + std::to_string(-exit_code) + " (" + strsignal(-exit_code) +
                         ") before it called miniray::init",
                     call_init_first);
  if (exit_code < 0)
    return with_cure(std::string(is_local(host) ? "its server" : "the ssh to it") + " was killed by signal " +
                         std::to_string(-exit_code),
                     killed_by_somebody);
  if (exit_code == ssh_failed && !is_local(host)) {
    if (has(said, "Could not resolve hostname"))
      return with_cure("the host is unknown", "Check the name: `ssh " + host + "` must work on this machine");
    if (has(said, "HOST IDENTIFICATION HAS CHANGED"))
      return with_cure("its host key has changed", "If the machine was set up anew, run `ssh-keygen -R " + host +
                                                       "`, then `ssh " + host + "` once and accept the new key");
    if (has(said, "Host key verification failed") || has(said, "host key is known"))
      return with_cure("this machine does not know its host key", "Run `ssh " + host + "` once and accept the key");
    if (has(said, "Permission denied"))
      return with_cure("ssh refused the login (key rejected)",
                       "Run `ssh-copy-id " + host + "`, or load your key with ssh-add, or set ssh_key");
    if (has(said, "Connection refused"))
      return with_cure("no ssh server listens there (connection refused)",
                       "Check that sshd runs on the host, and that ssh uses the right port");
    if (has(said, "timed out") || has(said, "not responding") || has(said, "No route to host") ||
        has(said, "unreachable"))
      return with_cure("the host does not answer", "Check that it is up: `ping " + host + "`");
    if (has(said, "forward"))
      return with_cure("its sshd does not forward Unix-domain sockets",
                       "Set AllowStreamLocalForwarding yes in its sshd_config, or do not use tunnel");
    if (runs == Runs::own_program && said.empty())
      return with_cure("ssh failed, or the program crashed there before it called miniray::init",
                       "Try `ssh " + host + " true`. " + call_init_first);
    return with_cure("ssh failed", "Try `ssh " + host + " true`");
  }
  if (has(said, "No module named miniray") || has(said, "No module named 'miniray'"))
    return with_cure("its Python has no MiniRay",
                     std::string("Run on the node: ") + (node.python_bin.empty() ? "python3" : node.python_bin) +
                         " -m pip install miniray==" + version + "; or set python_bin to a Python that has it");
  if (exit_code == not_found || exit_code == not_executable)
    return with_cure(node.python_bin.empty() ? "the node does not have the program to run"
                                             : "the node has no program " + node.python_bin,
                     "Set python_bin to an interpreter that the node has");
  if (runs == Runs::own_program)
    return with_cure(
        "its program ended with exit code " + std::to_string(exit_code) + " before it called miniray::init",
        call_init_first);
  return "its server ended with exit code " + std::to_string(exit_code) + " before it was ready" +
         (said.empty() ? "" : ":\n" + said);
}

std::string explain_attendant_end(const ExitStatus& status, Runs runs) {
  const std::string how = status.signal == 0 ? " ended with exit code " + std::to_string(status.exit_code)
                                             : " was ended by signal " + std::to_string(status.signal) + " (" +
                                                   strsignal(status.signal) + ")";
  if (runs == Runs::own_program && status.signal != SIGKILL)
    return "this program was started a second time on this machine, to look after the connections to the nodes, and "
           "it" +
           how + " before it called miniray::init. " + call_init_first;
  return "the process on this machine that looks after the connections to the nodes" + how + " before it was ready. " +
         (status.signal == SIGKILL ? killed_by_somebody : "What it printed to standard error says why");
}

std::string explain_silence(const NodeConfig& node, Runs runs) {
  if (runs != Runs::own_program) return {};
  return std::string(is_local(node.host) ? ": its program has started, and has not called miniray::init. "
                                         : ". If ssh works, its program may not have called miniray::init. ") +
         call_init_first;
}

std::string explain_early_end(int exit_code, const char* stage, const std::string& error_output) {
  const std::string said = trimmed(error_output);
  std::string how = "ended with exit code " + std::to_string(exit_code);
  if (exit_code < 0) how = "was killed by signal " + std::to_string(-exit_code);
  // ssh has one exit code for both.
  if (exit_code == ssh_failed) how = "was killed, or the ssh connection to it broke,";
  return "its server " + how + " while it was " + stage + (said.empty() ? "" : ":\n" + said);
}

}  // namespace miniray
