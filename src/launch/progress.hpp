// Shows people which nodes, or ranks, are still missing: one line that is rewritten on a terminal, a line now and then
// elsewhere.
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
  explicit Progress(bool wanted, const char* noun = "nodes");
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
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
