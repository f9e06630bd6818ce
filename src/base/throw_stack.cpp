#include "base/throw_stack.hpp"

#include <typeinfo>

#include "base/crash.hpp"
#include "base/stack_text.hpp"
#include "base/stack_trace.hpp"
#include "base/system.hpp"
#include "miniray/error.hpp"

namespace miniray {
namespace {

constinit thread_local StackTrace last_throw;

}  // namespace

// The type_info of ThrowProbe, for all of the program. The C++ runtime calls __do_catch() of each catch clause that an
// exception comes to.
class ProbeType final : public std::type_info {
 public:
  ProbeType() : std::type_info("miniray::ThrowProbe") {}
  bool __do_catch(const std::type_info* /*thrown*/, void** /*object*/, unsigned /*outer*/) const override {
    last_throw.take();
    return false;
  }
};

// The compiler refers to the type_info of a class by this symbol. It is initialised before the program's own objects.
extern const ProbeType type_of_probe asm("_ZTIN7miniray10ThrowProbeE");
[[gnu::used, gnu::init_priority(101)]] const ProbeType type_of_probe;

std::string last_throw_stack() {
  if (last_throw.empty() || !stacks_are_wanted()) return {};
  const StackTrace stack = last_throw;
  last_throw.clear();
  try {
    const Fd file = system::memory_file("miniray-stack");
    constexpr const char* title = "C++ stack at the throw:";
    write_titled_stack(file.get(), title, stack);
    const std::string text = system::read_memory_file(file.get(), limits::crash_report_bytes_max);
    const std::string readable = readable_stacks(text, OwnCalls::drop_all);
    return readable == std::string(title) + "\n" ? std::string() : readable;
  } catch (const Error&) {
    return {};  // the error that is reported matters more than its stack
  }
}

}  // namespace miniray
