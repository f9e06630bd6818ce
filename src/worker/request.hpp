// Encodes and decodes requests to a worker server: JSON texts with their length in front, after the handshake. Input is
// untrusted. docs/wire_format.md is the grammar.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "miniray/limits.hpp"
#include "miniray/message.hpp"
#include "miniray/value.hpp"

namespace miniray {

struct Request {
  enum class Kind : std::uint8_t {
    worker,   ///< asks for a worker, which uses this connection
    control,  ///< carries signals to the worker with the same token, and the report of its end
    link,     ///< carries buffers for several workers of the server
    group,    ///< connects two ranks of a group (group/meeting.hpp); servers refuse it
  };
  Kind kind = Kind::worker;
  std::string token;    ///< pairs the two connections of a worker; empty if there is no control connection
  std::string work_fn;  ///< the name of the work function; empty: the server's default
  std::string label;    ///< marks the worker's output
  Codec codec = Codec::msgpack;
  bool shared_memory = true;
  std::optional<int> spin_us;
  std::uint64_t inbox_bytes_max = limits::inbox_bytes_max;
  std::uint64_t message_bytes_max = limits::message_bytes_max;
  int unreachable_ms = limits::unreachable_ms;
  std::map<std::string, std::string> environment;
  std::vector<int> cpus;  ///< the CPUs to run on; empty: all
};

/// Returns the request as JSON with its length in front.
[[nodiscard]] std::string write_request(const Request& request);
/// Parses a request without its length. Throws ProtocolError or ValueError if the text is not a request.
[[nodiscard]] Request read_request(std::string_view text);

/// Returns the text with its length in front.
[[nodiscard]] std::string with_length(std::string_view text);

}  // namespace miniray
