#include "launch/node_line.hpp"

#include <algorithm>
#include <charconv>

#include "launch/launch_protocol.hpp"

namespace miniray {

NodeLine parse_node_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  const bool to_errors = line.starts_with(launch::errors);
  if ((!line.starts_with(launch::output) && !to_errors) || space == std::string_view::npos)
    return {NodeLine::From::server, {}, line};
  return {to_errors ? NodeLine::From::errors : NodeLine::From::output, line.substr(1, space - 1),
          line.substr(space + 1)};
}

bool is_label_of(std::string_view label, std::string_view node_name, int workers) {
  if (!label.starts_with(node_name)) return false;
  label.remove_prefix(node_name.size());
  if (!label.starts_with('/')) return false;
  label.remove_prefix(1);
  if (label == "probe") return true;
  int number = -1;
  const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), number);
  return error == std::errc() && number >= 0 && number < workers && label == std::to_string(number);
}

std::string output_file_name(std::string_view label) {
  std::string name(label);
  std::ranges::replace(name, '/', '.');
  return name + ".log";
}

}  // namespace miniray
