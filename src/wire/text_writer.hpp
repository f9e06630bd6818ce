// Writes events as JSON for people to read: long strings, long lists and all arrays are abridged. Any JSON parser
// accepts the text, but it does not read back as the same message: bytes, NaN and keys that are not strings become
// strings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "miniray/array.hpp"

namespace miniray {

class TextWriter {
 public:
  static constexpr bool for_people = true;  // see value_walk.hpp

  void null() { atom("null"); }
  void boolean(bool value) { atom(value ? "true" : "false"); }
  void integer(std::int64_t value) { atom(std::to_string(value)); }
  void unsigned_integer(std::uint64_t value) { atom(std::to_string(value)); }
  void real(double value);
  void string(std::string_view value);
  void bytes(std::string_view value) { bytes_summary(value.size()); }
  void bytes_beside(const Buffer& buffer) { bytes_summary(buffer.size); }
  void bytes_beside() { atom("\"<bytes>\""); }
  void array(Array::Form form, DType dtype, const Shape& shape, const Buffer&) { array(form, dtype, shape); }
  void array(Array::Form form, DType dtype, const Shape& shape);
  void begin_list(std::size_t) { open('[', false); }
  void end_list() { close(']'); }
  void begin_map(std::size_t, bool) { open('{', true); }
  void end_map() { close('}'); }

  /// Returns the text so far, and closes the containers that are still open.
  [[nodiscard]] std::string text() &&;

 private:
  struct Level {
    char closing;
    bool is_map;
    std::size_t events = 0;
  };
  bool begin_element();               // returns false if this element is left out
  [[nodiscard]] bool at_key() const;  // whether the current element is a key
  void atom(std::string_view text);
  void bytes_summary(std::size_t size);
  void open(char opening, bool is_map);
  void close(char closing);

  std::string text_;
  std::vector<Level> levels_;
  std::size_t hidden_ = 0;  // how many open containers are left out
};

}  // namespace miniray
