#include "wire/value_builder.hpp"

#include "base/check.hpp"

namespace miniray {
namespace {

// A long list of numbers travels as an array of Form::list, and becomes a list again here.
template <class T>
List unpacked(const Array& array) {
  const std::span<const T> elements = array.elements<T>();
  return {elements.begin(), elements.end()};
}

}  // namespace

void ValueBuilder::bytes_beside() {
  const Buffer buffer = buffers_.take();
  add(Value(Bytes{std::string(reinterpret_cast<const char*>(buffer.data), buffer.size)}));
}

void ValueBuilder::array(Array::Form form, DType dtype, Shape shape) {
  Array array = buffers_.take_array(form, dtype, std::move(shape));
  if (form != Array::Form::list) return add(Value(std::move(array)));
  if (array.shape().size() != 1) throw ProtocolError("a packed list in a message is not one-dimensional");
  if (dtype == DType::float64) return add(Value(unpacked<double>(array)));
  if (dtype == DType::int64) return add(Value(unpacked<std::int64_t>(array)));
  throw ProtocolError(std::string("a packed list in a message holds ") + name_of(dtype));
}

void ValueBuilder::add(Value value) {
  if (open_.empty()) {
    result_ = std::move(value);
    return;
  }
  Open& open = open_.back();
  if (open.container.kind() == Value::Kind::list) {
    open.container.list().push_back(std::move(value));
  } else if (!open.has_key) {
    open.key = std::move(value);
    open.has_key = true;
  } else {
    open.container.map().emplace_back(std::move(open.key), std::move(value));
    open.has_key = false;
  }
}

void ValueBuilder::close() {
  MINIRAY_CHECK(!open_.empty() && !open_.back().has_key);
  Value container = std::move(open_.back().container);
  open_.pop_back();
  add(std::move(container));
}

Value ValueBuilder::finish() {
  buffers_.require_all_taken();
  return std::move(result_);
}

}  // namespace miniray
