#include "wire/text_writer.hpp"

#include <cmath>

#include "miniray/limits.hpp"
#include "wire/json_text.hpp"

namespace miniray {

// Counts the element and writes the separator in front of it. After the last shown element comes one "...".
bool TextWriter::begin_element() {
  if (hidden_ > 0) return false;
  if (levels_.empty()) return true;
  Level& level = levels_.back();
  const std::size_t event = level.events++;
  const bool is_value = level.is_map && event % 2 == 1;
  const std::size_t element = level.is_map ? event / 2 : event;
  if (element > limits::text_elements_max) return false;
  if (element == limits::text_elements_max) {
    if (!is_value) text_ += level.is_map ? R"(, "...": "...")" : R"(, "...")";
    return false;
  }
  if (is_value)
    text_ += ": ";
  else if (element > 0)
    text_ += ", ";
  return true;
}

bool TextWriter::at_key() const { return !levels_.empty() && levels_.back().is_map && levels_.back().events % 2 == 1; }

void TextWriter::atom(std::string_view text) {
  if (!begin_element()) return;
  const bool quote = at_key() && !text.starts_with('"');  // JSON's keys are strings
  if (quote) text_ += '"';
  text_ += text;
  if (quote) text_ += '"';
}

void TextWriter::real(double value) {
  if (std::isfinite(value)) return atom(json_number(value));
  atom(std::isnan(value) ? R"("NaN")" : value > 0 ? R"("Infinity")" : R"("-Infinity")");
}

void TextWriter::string(std::string_view value) {
  if (!begin_element()) return;
  std::size_t end = value.size();
  if (end > limits::text_string_chars_max) {
    end = limits::text_string_chars_max;
    while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0U) == 0x80U) --end;  // not inside a character
  }
  append_json_string(text_, value.substr(0, end));
  if (end == value.size()) return;
  text_.pop_back();
  text_ += "... (" + std::to_string(value.size()) + " bytes)\"";
}

void TextWriter::bytes_summary(std::size_t size) { atom("\"<" + std::to_string(size) + " bytes>\""); }

void TextWriter::array(Array::Form form, DType dtype, const Shape& shape) {
  if (form == Array::Form::descriptor) return atom("\"<channel>\"");
  std::string summary = "\"<";
  summary += form == Array::Form::list ? "list of " : form == Array::Form::tensor ? "tensor " : "array ";
  summary += name_of(dtype);
  for (std::size_t i = 0; i < shape.size(); ++i) summary += (i == 0 ? " " : "x") + std::to_string(shape[i]);
  atom(summary + ">\"");
}

void TextWriter::open(char opening, bool is_map) {
  if (hidden_ > 0 || !begin_element()) {
    ++hidden_;
    return;
  }
  text_ += opening;
  levels_.push_back({is_map ? '}' : ']', is_map});
}

void TextWriter::close(char closing) {
  if (hidden_ > 0) {
    --hidden_;
    return;
  }
  text_ += closing;
  levels_.pop_back();
}

std::string TextWriter::text() && {
  bool cut_here = true;  // only the innermost open container lacks elements
  for (; !levels_.empty(); levels_.pop_back(), cut_here = false) {
    const Level& level = levels_.back();
    if (cut_here && level.is_map && level.events % 2 == 1)
      text_ += R"(: "...")";
    else if (cut_here && level.events / (level.is_map ? 2 : 1) < limits::text_elements_max)
      text_ += std::string(level.events > 0 ? ", " : "") + (level.is_map ? R"("...": "...")" : R"("...")");
    text_ += level.closing;
  }
  return text_.empty() ? R"("...")" : std::move(text_);
}

}  // namespace miniray
