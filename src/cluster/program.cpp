#include "cluster/program.hpp"

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "cluster/probe.hpp"
#include "launch/attendant.hpp"
#include "launch/launch_command.hpp"
#include "launch/stdio_server.hpp"
#include "miniray/cluster.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constexpr const char* attendant_argument = "--miniray-attendant";

bool inside_init = false;  // this process serves a node
bool initialised = false;  // init() was called; without it, the program would run its main() on every node

WorkFunction find(const std::map<std::string, WorkFunction>& functions, const std::string& name) {
  const auto found = functions.find(name);
  if (found != functions.end()) return found->second;
  std::string known;
  for (const auto& [each, function] : functions) known += (known.empty() ? "" : ", ") + each;
  // serve_calls is in a higher layer than this file, so the program has to pass it to init() itself.
  const std::string cure = name == "miniray.serve_calls" ? "{\"miniray.serve_calls\", miniray::serve_calls}" : "it";
  throw UsageError("this program has no work function \"" + name + "\"; it passed to miniray::init " +
                   (known.empty() ? "none" : known) + ". Add " + cure + " to the functions of miniray::init");
}

}  // namespace

void init(int argc, char** argv, const std::map<std::string, WorkFunction>& functions) {
  initialised = true;
  const std::string_view role = argc > 1 ? argv[1] : "";
  if (role == attendant_argument && argc == 4) std::exit(attend(std::atoi(argv[2]), std::atoi(argv[3])));
  if (role != server_argument) return;
  inside_init = true;
  StdioProgram program;
  program.own_functions = {{probe_function, run_probe}};
  program.server.find_work = [&](const std::string& name) { return find(functions, name); };
  const int code = serve_stdio(std::move(program));
  std::exit(code);  // NOLINT(concurrency-mt-unsafe): there is one thread
}

namespace {

std::string path_of_this_program() {
  if (!initialised)
    throw UsageError(
        "this program cannot be its own worker server on the nodes, because it did not call miniray::init. Call "
        "miniray::init(argc, argv, {{\"name\", function}, ...}) first in main()");
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace

bool runs_inside_init() { return inside_init; }
ServerProgram this_program() { return ServerProgram::cpp(path_of_this_program()); }
std::vector<std::string> this_programs_attendant() { return {path_of_this_program(), attendant_argument}; }

}  // namespace miniray
