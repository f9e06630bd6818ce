// Sends any bytes to the attendant's side of a node's stream, in pieces. Lines come out as they went in, a label is
// accepted only if the cluster has given it, and what a terminal gets has no control characters.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/shown_text.hpp"
#include "base/system.hpp"
#include "launch/launch_protocol.hpp"
#include "launch/node_line.hpp"
#include "wire/utf8.hpp"

namespace {

constexpr std::string_view fuzzed_node = "node2";

// Sequences that set colours stay, and begin with an escape.
bool fits_terminal(std::string_view text) {
  return miniray::is_utf8(text) && std::ranges::none_of(text, [](unsigned char c) {
           return (c < 0x20 && c != '\n' && c != '\t' && c != 0x1B) || c == 0x7F;
         });
}

void check_line(const std::string& line, int workers) {
  using miniray::NodeLine;
  const NodeLine parts = miniray::parse_node_line(line);
  if (!fits_terminal(miniray::shown(line + "\n", miniray::Colours::keep))) __builtin_trap();
  if (miniray::shown(line, miniray::Colours::escape).find('\x1B') != std::string::npos) __builtin_trap();
  if (!fits_terminal(miniray::in_quotes(line)) || miniray::in_quotes(line).find('\n') != std::string::npos)
    __builtin_trap();
  if (parts.from == NodeLine::From::server) {
    if (parts.text != line || !parts.label.empty()) __builtin_trap();
    return;
  }
  const std::string sign(1, parts.from == NodeLine::From::errors ? '!' : '>');
  if (sign + std::string(parts.label) + " " + std::string(parts.text) != line) __builtin_trap();
  if (!miniray::is_label_of(parts.label, fuzzed_node, workers)) return;
  std::set<std::string> files{"node2.probe.log"};
  for (int i = 0; i < workers; ++i) files.insert("node2." + std::to_string(i) + ".log");
  if (!files.contains(miniray::output_file_name(parts.label))) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t size_max = 32768;  // so that a socket's buffer holds them all
  if (size < 3 || size > size_max) return 0;
  const int workers = data[0] % 13;
  const std::size_t piece = 1 + std::size_t{data[1]} * 8, put_back_at = data[2];
  const std::string_view bytes(reinterpret_cast<const char*>(data + 3), size - 3);
  auto [here, there] = miniray::system::socket_pair();
  miniray::LineStream node(std::move(here)), attendant(std::move(there));
  std::string lines;  // that have come
  const auto take_lines = [&] {
    while (const std::optional<std::string> line = attendant.take_line()) {
      if (line->find('\n') != std::string::npos) __builtin_trap();
      lines += *line + "\n";
      check_line(*line, workers);
    }
  };
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    node.write(bytes.substr(at, piece));
    if (!node.flush() || node.unwritten_bytes() > 0) __builtin_trap();
    if (!attendant.fill()) __builtin_trap();
    // The cluster reads the start of the stream, and hands what it has not used over to the attendant.
    if (at / piece == put_back_at) attendant.put_back(attendant.take_rest());
    take_lines();
  }
  node.close_output();
  while (attendant.fill()) {
  }
  take_lines();
  const std::string rest = attendant.take_rest();
  check_line(rest, workers);
  if (lines + rest != bytes || attendant.unread_bytes() != 0) __builtin_trap();
  return 0;
}
