// Turns a JSON body into events, and JsonWriter's escapes into the values that they stand for. Input is untrusted:
// anything malformed throws ProtocolError. The sizes of containers are not known in advance, so events give them as 0.
#pragma once

#include <bit>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "miniray/error.hpp"
#include "wire/sink.hpp"

namespace miniray {

template <class Sink>
class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonHandler(Sink& sink) : sink_(sink) {}

  bool null() override {
    if (at(Level::bytes)) return sink_.bytes_beside(), done();
    return plain(), sink_.null(), done();
  }
  bool boolean(bool value) override { return plain(), sink_.boolean(value), done(); }
  bool number_integer(number_integer_t value) override { return plain(), sink_.integer(value), done(); }
  bool number_unsigned(number_unsigned_t value) override {
    if (at(Level::array_parts)) return shape_.push_back(value), limit_shape();
    plain();
    if (value <= static_cast<std::uint64_t>(INT64_MAX))
      sink_.integer(static_cast<std::int64_t>(value));
    else
      sink_.unsigned_integer(value);
    return done();
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == std::string::npos)
      throw ProtocolError("the integer " + text + " in a message does not fit into 64 bits");
    return plain(), sink_.real(value), done();
  }
  bool string(string_t& value) override {
    if (at(Level::real)) return sink_.real(bits(value)), done();
    if (at(Level::array_parts)) return array_word(value);
    return plain(), sink_.string(value), done();
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override {
    plain();
    return enter(Level::unknown);
  }
  bool key(string_t& key) override {
    Level& level = levels_.back();
    if (level == Level::unknown && key.starts_with('$')) return escape(key);
    if (level == Level::unknown) {
      level = Level::object;
      sink_.begin_map(0, true);
    }
    if (level != Level::object) fail("an escape has more than one key");
    return sink_.string(key), true;
  }
  bool end_object() override {
    const Level level = levels_.back();
    levels_.pop_back();
    if (level == Level::unknown) sink_.begin_map(0, true);
    if (level == Level::unknown || level == Level::object || level == Level::map_done)
      sink_.end_map();
    else if (level != Level::escape_done)
      fail("an escape is not complete");
    return done();
  }
  bool start_array(std::size_t) override {
    if (at(Level::map)) return levels_.back() = Level::map_done, enter(Level::pairs);
    if (at(Level::pairs)) return enter(Level::pair_key);
    if (at(Level::array))
      return levels_.back() = Level::escape_done, words_ = 0, shape_.clear(), enter(Level::array_parts);
    plain_container();
    return sink_.begin_list(0), enter(Level::list);
  }
  bool end_array() override {
    const Level level = levels_.back();
    levels_.pop_back();
    if (level == Level::pairs) return true;
    if (level == Level::pair_done) return true;
    if (level == Level::array_parts) {
      if (words_ != 2) fail("an array has no form and dtype");
      return sink_.array(form_, dtype_, std::move(shape_)), true;
    }
    if (level != Level::list) fail("a pair is not complete");
    return sink_.end_list(), done();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string what = error.what();
    throw ProtocolError("a message's JSON body is malformed at byte " + std::to_string(position) + ": " +
                        what.substr(what.rfind(": ") == std::string::npos ? 0 : what.rfind(": ") + 2));
  }

 private:
  // What an open bracket or brace of the text stands for. An object is unknown until its first key shows whether it is
  // an escape.
  enum class Level : std::uint8_t {
    list,
    object,
    unknown,
    array,  // from here to map: the key of an escape has been read, its value has not
    array_parts,
    bytes,
    real,
    map,
    pairs,
    pair_key,
    pair_value,
    pair_done,
    escape_done,
    map_done,
  };

  [[nodiscard]] bool at(Level level) const { return !levels_.empty() && levels_.back() == level; }
  [[noreturn]] static void fail(const char* what) {
    throw ProtocolError("a message's JSON body is malformed: " + std::string(what));
  }
  /// Throws unless an ordinary value may stand here.
  void plain() const {
    if (levels_.empty() || at(Level::list) || at(Level::object) || at(Level::pair_key) || at(Level::pair_value)) return;
    fail("an escape has a value of the wrong kind");
  }
  void plain_container() const {
    if (at(Level::pair_key)) fail("a key is a list or a map");
    plain();
  }
  /// Called after each complete value: a pair continues with its other half, an escape is complete.
  bool done() {
    if (at(Level::pair_key))
      levels_.back() = Level::pair_value;
    else if (at(Level::pair_value))
      levels_.back() = Level::pair_done;
    else if (at(Level::bytes) || at(Level::real))
      levels_.back() = Level::escape_done;
    return true;
  }
  bool enter(Level level) {
    if (levels_.size() == 2 * limits::depth_max)  // an escaped map takes two levels of brackets
      throw ProtocolError("a message is nested deeper than " + std::to_string(limits::depth_max) + " levels");
    levels_.push_back(level);
    return true;
  }
  bool escape(const std::string& key) {
    Level& level = levels_.back();
    const bool is_key = levels_.size() > 1 && levels_[levels_.size() - 2] == Level::pair_key;
    if (key == "$float") return level = Level::real, true;
    if (key == "$bytes") return level = Level::bytes, true;
    if (is_key) fail("a key is an array or a map");
    if (key == "$array") return level = Level::array, true;
    if (key != "$map") throw ProtocolError("a message has an unknown escape: " + key);
    level = Level::map;
    return sink_.begin_map(0, false), true;
  }
  bool array_word(const std::string& word) {
    if (words_ == 0 && word == "array")
      form_ = Array::Form::array;
    else if (words_ == 0 && word == "tensor")
      form_ = Array::Form::tensor;
    else if (words_ == 0 && word == "list")
      form_ = Array::Form::list;
    else if (words_ == 0 && word == "descriptor")
      form_ = Array::Form::descriptor;
    else if (words_ != 1 || !parse_dtype(word, dtype_))
      throw ProtocolError("a message has an array of an unknown form or dtype: " + word);
    return ++words_, true;
  }
  bool limit_shape() const {
    if (shape_.size() > limits::dimensions_max || words_ != 2) fail("the shape of an array is malformed");
    return true;
  }
  static double bits(const std::string& hex) {
    std::uint64_t bits = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), bits, 16);
    if (error != std::errc() || end != hex.data() + hex.size() || hex.size() != 16)
      fail("a float is not 16 hex digits");
    return std::bit_cast<double>(bits);
  }

  Sink& sink_;
  std::vector<Level> levels_;
  int words_ = 0;
  Array::Form form_ = Array::Form::array;
  DType dtype_ = DType::float64;
  Shape shape_;
};

template <class Sink>
void read_json(std::string_view body, Sink& sink) {
  JsonHandler<Sink> handler(sink);
  // This does what json::sax_parse does, without its readers of four binary formats, which take a tenth of a wheel.
  auto input = nlohmann::detail::input_adapter(body.begin(), body.end());
  if (!nlohmann::detail::parser<nlohmann::json, decltype(input)>(std::move(input)).sax_parse(&handler))
    throw ProtocolError("a message's JSON body is malformed");
}

}  // namespace miniray
