#include "miniray/convert.hpp"

namespace miniray {
namespace {

std::string what_is_there(const Value& found) {
  if (found.is_null()) return "is null";
  return std::string("is ") + name_of(found.kind()) + ": " + found.text();
}

}  // namespace

Mismatch::Mismatch(std::string wanted, const Value& found)
    : Mismatch(std::move(wanted), Place{}, what_is_there(found)) {}

Mismatch::Mismatch(std::string wanted, Place place, std::string found)
    : ValueError("expected " + wanted + ", but " + (place.text.empty() ? "the value" : place.text) + " " + found),
      wanted_(std::move(wanted)),
      place_(std::move(place.text)),
      found_(std::move(found)) {}

}  // namespace miniray
