// Simple loops over contiguous elements, which compilers turn into vector instructions.
#include "group/reduce.hpp"

#include <complex>
#include <string>

#include "miniray/error.hpp"

namespace miniray {
namespace {

template <class T>
constexpr bool is_complex = std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Product {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

template <class T, class Combine>
void combine_all(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count, Combine with) {
  auto* const to = reinterpret_cast<T*>(out);
  const auto* const first = reinterpret_cast<const T*>(a);
  const auto* const second = reinterpret_cast<const T*>(b);
#ifndef __clang__  // clang does not know this pragma
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) to[i] = with(first[i], second[i]);
}

template <class T>
void combine_typed(std::byte* out, const std::byte* a, const std::byte* b, std::size_t bytes, ReduceOp op) {
  const std::size_t count = bytes / sizeof(T);
  if (op == ReduceOp::sum) return combine_all<T>(out, a, b, count, Sum());
  if (op == ReduceOp::product) return combine_all<T>(out, a, b, count, Product());
  if constexpr (!is_complex<T>) {
    if (op == ReduceOp::min) return combine_all<T>(out, a, b, count, Min());
    return combine_all<T>(out, a, b, count, Max());
  }
}

}  // namespace

const char* name_of(ReduceOp op) {
  return op == ReduceOp::sum ? "sum" : op == ReduceOp::product ? "product" : op == ReduceOp::min ? "min" : "max";
}

ReduceOp parse_reduce_op(std::string_view name) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max})
    if (name == name_of(op)) return op;
  throw UsageError("there is no reduction \"" + std::string(name) + R"("; choose "sum", "product", "min" or "max")");
}

void require_reducible(DType dtype, ReduceOp op) {
  if (op > ReduceOp::max)
    throw UsageError("there is no reduction " + std::to_string(static_cast<int>(op)) +
                     "; choose sum, product, min or max of miniray::ReduceOp");
  const bool is_complex_dtype = dtype == DType::complex64 || dtype == DType::complex128;
  const bool orders = op == ReduceOp::min || op == ReduceOp::max;
  if (dtype == DType::boolean || dtype == DType::float16 || dtype == DType::bfloat16 || (is_complex_dtype && orders))
    throw UsageError(std::string("cannot reduce elements of ") + name_of(dtype) + " by " + name_of(op) +
                     "; convert them to float32 or to integers");
}

void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t bytes, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::int8:
      return combine_typed<std::int8_t>(out, a, b, bytes, op);
    case DType::int16:
      return combine_typed<std::int16_t>(out, a, b, bytes, op);
    case DType::int32:
      return combine_typed<std::int32_t>(out, a, b, bytes, op);
    case DType::int64:
      return combine_typed<std::int64_t>(out, a, b, bytes, op);
    case DType::uint8:
      return combine_typed<std::uint8_t>(out, a, b, bytes, op);
    case DType::uint16:
      return combine_typed<std::uint16_t>(out, a, b, bytes, op);
    case DType::uint32:
      return combine_typed<std::uint32_t>(out, a, b, bytes, op);
    case DType::uint64:
      return combine_typed<std::uint64_t>(out, a, b, bytes, op);
    case DType::float32:
      return combine_typed<float>(out, a, b, bytes, op);
    case DType::float64:
      return combine_typed<double>(out, a, b, bytes, op);
    case DType::complex64:
      return combine_typed<std::complex<float>>(out, a, b, bytes, op);
    case DType::complex128:
      return combine_typed<std::complex<double>>(out, a, b, bytes, op);
    case DType::boolean:
    case DType::float16:
    case DType::bfloat16:
      require_reducible(dtype, op);  // throws
  }
}

}  // namespace miniray
