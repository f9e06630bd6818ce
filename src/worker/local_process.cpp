#include "worker/local_process.hpp"

#include <signal.h>

#include <algorithm>
#include <atomic>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/crash.hpp"
#include "base/fork_safety.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "base/stack_text.hpp"
#include "base/system.hpp"
#include "channel/authentication.hpp"
#include "channel/trace.hpp"
#include "worker/work_function.hpp"

namespace miniray {
namespace {

// Returns the part about a crash. The file may begin with a stack that was asked for and came too late.
std::string crash_part(const std::string& text) {
  const std::size_t at = std::min({text.find("Fatal Python error"), text.find("C++ stack at SIG"),
                                   text.find("miniray: a bug in MiniRay"), text.find(asan_title)});
  return at == std::string::npos ? "" : text.substr(at);
}

void warn(const ForkOptions& options, const std::string& text) {
  if (options.on_warning) return options.on_warning(text);
  static std::atomic<bool> given = false;
  if (!given.exchange(true)) log(LogLevel::warning, text);
}

void check_fork_is_safe(const ForkOptions& options, const OpenMpAfterFork& openmp) {
  if (cuda_context_is_live())
    throw UsageError(
        "cannot fork a worker: this process holds a live CUDA context, which does not survive a fork. "
        "Start the worker before CUDA is first used, or with " +
        options.spawn_call);
  if (openmp.needed())
    warn(
        options,
        "GNU OpenMP has threads in this process, which do not survive a fork. The worker's parallel regions run on one "
        "thread. Start workers before the first parallel region, or with " +
            options.spawn_call + ", for more");
  else if (options.warn_of_threads && system::thread_count() > 1)
    warn(options,
         "this process has several threads; a forked worker has only the thread that forked it, and locks that "
         "other threads hold stay locked in the worker. Start workers before threads, or with " +
             options.spawn_call);
}

}  // namespace

std::pair<LocalProcess::Ties, Fd> LocalProcess::make_ties() {
  (void)tracing();  // throws if the trace file cannot be opened, before there is a process
  auto [here, there] = system::socket_pair();
  return {Ties{std::move(here), system::memory_file("miniray-crash")}, std::move(there)};
}

// The kernel takes tens of microseconds to count what it has killed, so it is asked while the new process starts.
LocalProcess::LocalProcess(pid_t pid, Ties ties)
    : process_(pid), ties_(std::move(ties)), memory_kills_(out_of_memory_kills()), generation_(process_generation()) {}

std::unique_ptr<LocalProcess> LocalProcess::fork(const ForkOptions& options, std::span<const int> keep,
                                                 const std::function<int()>& child_main) {
  prepare_crash_stacks();
  prepare_to_wipe_environment();
  const OpenMpAfterFork openmp;
  check_fork_is_safe(options, openmp);
  auto [ties, lifeline] = make_ties();
  const int lifeline_there = lifeline.get(), crash_file = ties.crash_file.get();
  std::vector<int> all(keep.begin(), keep.end());
  all.insert(all.end(), {lifeline_there, crash_file});
  const ForkHooks hooks{options.before_fork, options.after_fork_in_parent, options.after_fork_in_child};
  const pid_t pid = fork_process(all, hooks, [&] {
    openmp.run_in_child();
    if (openmp.needed() && options.limit_threads_in_child) options.limit_threads_in_child();
    become_worker(lifeline_there, crash_file);
    Key::wipe_environment();
    return child_main();
  });
  return std::unique_ptr<LocalProcess>(new LocalProcess(pid, std::move(ties)));
}

std::unique_ptr<LocalProcess> LocalProcess::spawn(const std::vector<std::string>& command, std::span<const int> keep,
                                                  const std::function<std::string(int, int)>& setting) {
  auto [ties, lifeline] = make_ties();
  std::vector<int> all(keep.begin(), keep.end());
  all.insert(all.end(), {lifeline.get(), ties.crash_file.get()});
  const pid_t pid = spawn_process(command, {setting(lifeline.get(), ties.crash_file.get()), Key::variable}, all);
  return std::unique_ptr<LocalProcess>(new LocalProcess(pid, std::move(ties)));
}

LocalProcess::~LocalProcess() {
  if (generation_ != process_generation()) return;  // a fork of the coordinator must not end its workers
  process_.signal_group(SIGKILL);
  if (!process_.status()) process_.reap();
}

bool LocalProcess::signal(int number) {
  killed_here_ = killed_here_ || number == SIGKILL;
  if (number != SIGKILL) return process_.signal(number);
  process_.signal_group(number);
  return true;
}

void LocalProcess::ask_for_stack() {
  MINIRAY_CHECK(ties_.crash_file.valid(), pid());
  system::clear_memory_file(ties_.crash_file.get());
  (void)process_.signal(stack_signal());
}

std::string LocalProcess::take_stack() {
  std::string text = system::read_memory_file(ties_.crash_file.get(), limits::crash_report_bytes_max);
  system::clear_memory_file(ties_.crash_file.get());  // otherwise a death certificate would show this stack
  return process_state(pid()) + "\n" + readable_stacks(text);
}

bool LocalProcess::stack_is_written() const {
  return !has_unfinished_stack(system::read_memory_file(ties_.crash_file.get(), limits::crash_report_bytes_max));
}

std::string LocalProcess::stack(const std::function<void()>& on_interrupt) {
  if (!running() || !ties_.crash_file.valid()) return {};
  ask_for_stack();
  const Deadline deadline = Deadline::in_ms(limits::stack_wait_ms);
  std::size_t before = 0;
  while (!deadline.passed()) {  // until the file has content that does not grow any more
    (void)system::poll_one(process_.pidfd(), POLLIN, limits::stack_look_ms);
    if (on_interrupt) on_interrupt();
    const std::size_t bytes = system::memory_file_bytes(ties_.crash_file.get());
    if (bytes > 0 && bytes == before && stack_is_written()) break;
    before = bytes;
  }
  return take_stack();
}

const DeathCertificate& LocalProcess::ending() {
  if (ending_) return *ending_;
  const ExitStatus& status = process_.reap();
  DeathCertificate made;
  made.exit_code = status.exit_code;
  made.signal = status.signal;
  made.peak_bytes = status.peak_bytes;
  made.out_of_memory = status.signal == SIGKILL && !killed_here_ && out_of_memory_kills() > memory_kills_;
  if (ties_.crash_file.valid() && status.exit_code != 0)  // with code 0 it has not crashed, and reading would take time
    made.stack =
        readable_stacks(crash_part(system::read_memory_file(ties_.crash_file.get(), limits::crash_report_bytes_max)));
  ending_ = made;
  return *ending_;
}

void LocalProcess::drop_descriptors() {
  if (process_.status()) (void)ending();
  ties_ = {};
}

}  // namespace miniray
