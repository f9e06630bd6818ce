#include "cluster/program.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cluster/stdio_server.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr const char* server_argument = "--miniray-worker-server";

bool initialised = false;  // a program that did not call init() would run its main() on every node

WorkFunction find(const std::map<std::string, WorkFunction>& functions, const std::string& name) {
  const auto found = functions.find(name);
  if (found != functions.end()) return found->second;
  std::string known;
  for (const auto& [each, function] : functions) known += (known.empty() ? "" : ", ") + each;
  throw UsageError("this program has no work function \"" + name + "\"; it gave miniray::init " +
                   (known.empty() ? "none" : known));
}

}  // namespace

void init(int argc, char** argv, const std::map<std::string, WorkFunction>& functions) {
  initialised = true;
  if (argc < 2 || std::strcmp(argv[1], server_argument) != 0) return;
  StdioProgram program;
  program.server.find_work = [&](const std::string& name) { return find(functions, name); };
  const int code = serve_stdio(std::move(program));
  std::exit(code);  // NOLINT(concurrency-mt-unsafe): there is one thread
}

ServerProgram this_program() {
  if (!initialised)
    throw UsageError(
        "a program that starts a cluster is its own worker server on the nodes: call miniray::init(argc, argv, "
        "{{\"name\", function}, ...}) first in main()");
  ServerProgram program;
  program.executable = std::filesystem::read_symlink("/proc/self/exe").string();
  program.command = [](const NodeConfig&) { return std::string("exec \"$program\" ") + server_argument; };
  return program;
}

}  // namespace miniray
