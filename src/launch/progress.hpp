// Prints to standard error which nodes or ranks are not ready yet: one line that is rewritten on a terminal, and
// elsewhere a new line now and then.
#pragma once

#include <string>
#include <vector>

#include "base/clock.hpp"

namespace miniray {

class Progress {
 public:
  struct Entry {
    std::string node, stage;
    bool done;
  };
  /// Prints nothing unless `wanted`. `noun` says what the entries are.
  explicit Progress(bool wanted, const char* noun = "nodes");
  /// Clears the line on a terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Prints if enough time has passed since it printed last. It may be called at any rate.
  void show(const std::vector<Entry>& nodes);

 private:
  bool wanted_;
  const char* noun_;
  bool terminal_;
  bool shown_ = false;
  std::int64_t begun_ns_ = now_ns();
  Deadline next_;
};

}  // namespace miniray
