// Builds a Value from the events of a body and the buffers beside it. Throws ProtocolError if they do not match.
#pragma once

#include <vector>

#include "miniray/value.hpp"
#include "wire/sink.hpp"

namespace miniray {

class ValueBuilder {
 public:
  explicit ValueBuilder(const std::vector<Buffer>& buffers) : buffers_(buffers) {}

  void null() { add(Value()); }
  void boolean(bool value) { add(Value(value)); }
  void integer(std::int64_t value) { add(Value(value)); }
  void unsigned_integer(std::uint64_t value) { add(Value(value)); }
  void real(double value) { add(Value(value)); }
  void string(std::string_view value) { add(Value(value)); }
  void bytes(std::string_view value) { add(Value(Bytes{std::string(value)})); }
  void bytes_beside();
  void array(Array::Form form, DType dtype, Shape shape);
  void begin_list(std::size_t) { open_.push_back({Value(List()), Value(), false}); }
  void end_list() { close(); }
  void begin_map(std::size_t, bool) { open_.push_back({Value(Map()), Value(), false}); }
  void end_map() { close(); }

  /// Returns the value. Throws ProtocolError if the body has not referred to every buffer.
  [[nodiscard]] Value finish();

 private:
  struct Open {
    Value container, key;
    bool has_key;
  };
  void add(Value value);
  void close();

  BufferQueue buffers_;
  std::vector<Open> open_;
  Value result_;
};

}  // namespace miniray
