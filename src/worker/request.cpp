#include "worker/request.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "miniray/error.hpp"
#include "wire/json_text.hpp"

namespace miniray {
namespace {

constexpr std::array<const char*, 4> kind_names{"worker", "control", "link", "group"};

std::string string_or_empty(const Value& from, const char* key) {
  const Value* found = from.find(key);
  return found != nullptr ? found->string() : std::string();
}

}  // namespace

std::string with_length(std::string_view text) {
  const auto bytes = static_cast<std::uint32_t>(text.size());
  std::string out(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  return out += text;
}

std::string write_request(const Request& request) {
  Map environment;
  for (const auto& [name, value] : request.environment) environment.emplace_back(name, value);
  List cpus;
  for (const int cpu : request.cpus) cpus.emplace_back(cpu);
  const Value value{{"kind", kind_names[static_cast<std::size_t>(request.kind)]},
                    {"token", request.token},
                    {"work_fn", request.work_fn},
                    {"label", request.label},
                    {"codec", name_of(request.codec)},
                    {"shared_memory", request.shared_memory},
                    {"spin_us", request.spin_us ? Value(*request.spin_us) : Value()},
                    {"inbox_bytes_max", request.inbox_bytes_max},
                    {"message_bytes_max", request.message_bytes_max},
                    {"unreachable_ms", request.unreachable_ms},
                    {"environment", Value(std::move(environment))},
                    {"cpus", Value(std::move(cpus))}};
  return with_length(write_json(value));
}

// Every key is optional, and unknown keys are ignored, so that clients of other languages can send short requests.
Request read_request(std::string_view text) {
  const Value value = read_json_text(text);
  Request request;
  const std::string kind = string_or_empty(value, "kind");
  for (std::size_t i = 0; i < kind_names.size(); ++i)
    if (kind == kind_names[i]) request.kind = static_cast<Request::Kind>(i);
  if (!kind.empty() && kind != kind_names[static_cast<std::size_t>(request.kind)])
    throw ProtocolError("unknown kind of request \"" + kind + R"("; it is "worker", "control" or "link")");
  request.token = string_or_empty(value, "token");
  request.work_fn = string_or_empty(value, "work_fn");
  request.label = string_or_empty(value, "label");
  if (const Value* codec = value.find("codec")) request.codec = parse_codec(codec->string());
  if (const Value* shared = value.find("shared_memory")) request.shared_memory = shared->boolean();
  if (const Value* spin = value.find("spin_us"); spin != nullptr && !spin->is_null())
    request.spin_us = static_cast<int>(std::clamp<std::int64_t>(spin->integer(), 0, INT32_MAX));
  if (const Value* inbox = value.find("inbox_bytes_max")) request.inbox_bytes_max = inbox->unsigned_integer();
  if (const Value* largest = value.find("message_bytes_max")) request.message_bytes_max = largest->unsigned_integer();
  if (const Value* after = value.find("unreachable_ms")) {
    if (after->integer() < limits::unreachable_min_ms || after->integer() > INT32_MAX)
      throw ProtocolError("unreachable_ms is out of range: " + std::to_string(after->integer()));
    request.unreachable_ms = static_cast<int>(after->integer());
  }
  if (const Value* environment = value.find("environment"))
    for (const auto& [name, setting] : environment->map()) request.environment[name.string()] = setting.string();
  if (const Value* cpus = value.find("cpus"))
    for (const Value& cpu : cpus->list())
      request.cpus.push_back(static_cast<int>(std::clamp<std::int64_t>(cpu.integer(), 0, INT32_MAX)));
  return request;
}

}  // namespace miniray
