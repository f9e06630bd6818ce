// What a connection asks of a worker server, and the answer: JSON texts behind their length, after the handshake.
// docs/wire_format.md is the grammar.
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
    worker,   ///< a worker at the other end of this connection
    control,  ///< the news of such a worker, and signals to it; the same token says which
    link,     ///< buffers for several workers of the server
  };
  Kind kind = Kind::worker;
  std::string token;    ///< of a worker: empty if there will be no control connection
  std::string work_fn;  ///< empty: the server's own
  std::string label;    ///< how the worker is called where its output is shown
  Codec codec = Codec::msgpack;
  bool shared_memory = true;
  std::optional<int> spin_us;
  std::uint64_t inbox_bytes_max = limits::inbox_bytes_max;
  int unreachable_ms = limits::unreachable_ms;
  std::map<std::string, std::string> environment;
  std::vector<int> cpus;  ///< where the worker runs; empty: anywhere
};

/// With its length in front.
[[nodiscard]] std::string write_request(const Request& request);
/// Throws ProtocolError or ValueError if it is none.
[[nodiscard]] Request read_request(std::string_view text);

/// A JSON text with its length in front.
[[nodiscard]] std::string with_length(std::string_view text);

}  // namespace miniray
