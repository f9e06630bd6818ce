#include "miniray/error.hpp"

#include <string.h>

#include <cstdio>
#include <system_error>

#include "base/shown_text.hpp"

namespace miniray {
namespace {

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  const char* description = sigdescr_np(signal);
  if (name == nullptr) return "signal " + std::to_string(signal);
  return "SIG" + std::string(name) + (description != nullptr ? " (" + std::string(description) + ")" : "");
}

std::string memory_text(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
  return text;
}

}  // namespace

// std::runtime_error cannot change its text, but can be assigned to.
void Error::add_note(const std::string& note) {
  static_cast<std::runtime_error&>(*this) = std::runtime_error(what() + ("\n\n" + note));
}

SystemError::SystemError(const std::string& operation, int error_number)
    : Error("cannot " + operation + ": " + std::generic_category().message(error_number)),
      error_number_(error_number) {}

WorkerError::WorkerError(std::string worker, std::string type, std::string message, std::string traceback)
    : Error("the work function of " + worker + " raised " + shown(type, Colours::escape) + ": " +
            shown(message, Colours::escape) +
            (traceback.empty() ? std::string() : "\n\nIn the worker:\n" + shown(traceback, Colours::escape))),
      worker_(std::move(worker)),
      type_(std::move(type)),
      message_(std::move(message)),
      traceback_(std::move(traceback)) {}

std::string DeathCertificate::cause() const {
  if (!lost.empty()) return shown(lost, Colours::escape);
  if (out_of_memory) return "was killed: out of memory (by the kernel's out-of-memory killer)";
  if (signal != 0) return "was killed by " + signal_text(signal);
  if (exit_code >= 0) return "exited with code " + std::to_string(exit_code) + " before its work function returned";
  return "has ended, and its exit status is not known: other code in this process took it (SIGCHLD is ignored, or "
         "os.wait() was called)";
}

std::string DeathCertificate::text() const {
  std::string text = worker + " " + cause() + ".";
  if (peak_bytes > 0) text += " Its memory peaked at " + memory_text(peak_bytes) + ".";
  if (out_of_memory) text += " Give it less data at a time, start fewer workers, or raise the memory limit.";
  if (!stack.empty()) text += "\n\nWhere it crashed:\n" + shown(stack, Colours::escape);
  if (!last_output.empty()) text += "\n\nIts last output:\n" + shown(last_output, Colours::escape);
  if (!last_messages.empty()) text += "\n\nIts last messages:\n" + last_messages;
  return text;
}

void throw_moved_from(const char* class_name) {
  throw UsageError(std::string("this ") + class_name + " was moved from: use the one that it was moved to");
}

WorkerDied::WorkerDied(DeathCertificate certificate)
    : Error(certificate.text()), certificate_(std::move(certificate)) {}

WorkerDied::WorkerDied(DeathCertificate certificate, const std::string& note) : WorkerDied(std::move(certificate)) {
  add_note(note);
}

}  // namespace miniray
