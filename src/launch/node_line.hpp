// A line that a node's server sends to the attendant. The node may be compromised: it chooses neither the name of a
// file nor the number of files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace miniray {

/// The parts of a line refer to the line's memory.
struct NodeLine {
  enum class From : std::uint8_t { server, output, errors };
  From from;               ///< the server itself, or a worker's standard output or standard error
  std::string_view label;  ///< of the worker: "node2/3"; not checked yet
  std::string_view text;
};

/// Takes a line apart. A line that is not in the form of a worker's is the server's own.
[[nodiscard]] NodeLine parse_node_line(std::string_view line);
/// Returns whether the label is one that the cluster has given: the node's name, "/", and "probe" or the decimal number
/// of a worker that the node has had.
[[nodiscard]] bool is_label_of(std::string_view label, std::string_view node_name, int workers);
/// Returns the name of the file for what has a checked label: "node2.3.log".
[[nodiscard]] std::string output_file_name(std::string_view label);

}  // namespace miniray
