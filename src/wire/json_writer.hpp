// Writes events as a JSON body. A value that JSON does not have becomes an escape, an object with one key that begins
// with "$":
//   {"$array": ["array", "float64", 2, 3]}   the next buffer, as an array (or "tensor", or "list") of that shape
//   {"$bytes": null}                         the next buffer, as bytes
//   {"$float": "7ff8000000000000"}           the bits of a float that is not finite
//   {"$map": [[key, value], ...]}            a map with keys that are not strings, or that begin with "$"
#pragma once

#include <bit>
#include <cmath>
#include <cstdio>

#include "miniray/message.hpp"
#include "wire/json_text.hpp"

namespace miniray {

class JsonWriter {
 public:
  explicit JsonWriter(Message& message) : message_(message), out_(message.body) {}

  void null() { atom("null"); }
  void boolean(bool value) { atom(value ? "true" : "false"); }
  void integer(std::int64_t value) { atom(std::to_string(value)); }
  void unsigned_integer(std::uint64_t value) { atom(std::to_string(value)); }
  void real(double value) {
    if (std::isfinite(value)) return atom(json_number(value));
    char escape[32];
    std::snprintf(escape, sizeof(escape), "{\"$float\":\"%016llx\"}",
                  static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(value)));
    atom(escape);
  }
  void string(std::string_view value) {
    before();
    append_json_string(out_, value);
    after();
  }
  void bytes(std::string_view value) {
    Buffer copy = Buffer::allocate(value.size());
    value.copy(reinterpret_cast<char*>(copy.data), value.size());
    bytes_beside(std::move(copy));
  }
  void bytes_beside(Buffer buffer) {
    atom(R"({"$bytes":null})");
    message_.buffers.push_back(std::move(buffer));
  }
  void array(Array::Form form, DType dtype, const Shape& shape, Buffer buffer) {
    static constexpr const char* forms[] = {"array", "tensor", "list", "descriptor"};
    std::string escape = R"({"$array":[")" + std::string(forms[static_cast<int>(form)]) + R"(",")" + name_of(dtype);
    escape += '"';
    for (const std::uint64_t extent : shape) escape += ',' + std::to_string(extent);
    atom(escape + "]}");
    message_.buffers.push_back(std::move(buffer));
  }
  void begin_list(std::size_t) { open(Level::list, "["); }
  void end_list() { close("]"); }
  void begin_map(std::size_t, bool plain) { plain ? open(Level::object, "{") : open(Level::pairs, R"({"$map":[)"); }
  void end_map() { close(levels_.back().kind == Level::object ? "}" : "]}"); }

 private:
  struct Level {
    enum Kind : std::uint8_t { list, object, pairs } kind;
    std::size_t events = 0;
  };

  // Writes the separator in front of an element. The events of a map are its keys and values in turn.
  void before() {
    if (levels_.empty()) return;
    const Level& level = levels_.back();
    const bool is_value = level.kind != Level::list && level.events % 2 == 1;
    if (is_value)
      out_ += level.kind == Level::object ? ':' : ',';
    else if (level.events > 0)
      out_ += ',';
    if (level.kind == Level::pairs && !is_value) out_ += '[';
  }
  void after() {
    if (levels_.empty()) return;
    Level& level = levels_.back();
    if (level.kind == Level::pairs && level.events % 2 == 1) out_ += ']';
    ++level.events;
  }
  void atom(std::string_view text) {
    before();
    out_ += text;
    after();
  }
  void open(Level::Kind kind, std::string_view text) {
    before();
    out_ += text;
    levels_.push_back({kind});
  }
  void close(std::string_view text) {
    out_ += text;
    levels_.pop_back();
    after();
  }

  Message& message_;
  std::string& out_;
  std::vector<Level> levels_;
};

}  // namespace miniray
