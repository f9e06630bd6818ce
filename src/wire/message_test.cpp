#include "miniray/message.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "miniray/error.hpp"

namespace miniray {
namespace {

std::string json(const Value& value) { return encode(value, Codec::json).body; }
Value from_json(const std::string& body, std::vector<Buffer> buffers = {}) {
  return decode({.codec = Codec::json, .body = body, .buffers = std::move(buffers)});
}
Value from_msgpack(const std::string& body, std::vector<Buffer> buffers = {}) {
  return decode({.codec = Codec::msgpack, .body = body, .buffers = std::move(buffers)});
}

}  // namespace

TEST_CASE("JSON bodies are those of docs/wire_format.md") {
  CHECK(json({{"a", 1}, {"b", Value::list({1.0, -0.0, true, nullptr, "x\n"})}}) ==
        R"({"a":1,"b":[1.0,-0.0,true,null,"x\n"]})");
  CHECK(json(Array::zeros<float>({2, 3})) == R"({"$array":["array","float32",2,3]})");
  CHECK(json(Bytes{"xy"}) == R"({"$bytes":null})");
  CHECK(json(std::bit_cast<double>(0x7ff8000000000001ULL)) == R"({"$float":"7ff8000000000001"})");
  CHECK(json(Map{{Value(1), Value("x")}, {Value("k"), Value(2)}}) == R"({"$map":[[1,"x"],["k",2]]})");
  CHECK(json({{"$x", 1}}) == R"({"$map":[["$x",1]]})");
}

TEST_CASE("MessagePack bodies are those of docs/wire_format.md") {
  CHECK(encode({{"a", 1.0}}).body == std::string("\x81\xa1"
                                                 "a\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00",
                                                 12));
  CHECK(encode(Array::zeros<float>({2})).body ==
        std::string("\xc7\x0a\x01\x00\x0b\x02\x00\x00\x00\x00\x00\x00\x00", 13));
  CHECK(encode(Bytes{std::string(5000, 'x')}).body == std::string("\xc7\x00\x02", 3));
}

TEST_CASE("a MessagePack body that is one scalar is read as the same scalar in a list is") {
  const auto same = [](const std::string& body) {
    const auto read = [](const std::string& bytes) -> std::optional<Value> {
      try {
        return from_msgpack(bytes);
      } catch (const ProtocolError&) {
        return {};
      }
    };
    const std::optional<Value> alone = read(body), listed = read("\x91" + body);
    REQUIRE(alone.has_value() == listed.has_value());
    if (alone) CHECK((alone->kind() == listed->at(0).kind() && *alone == listed->at(0)));
  };
  for (const std::size_t size : {1, 2, 3, 4, 5, 6, 8, 9, 10})
    for (int first = 0; first < 256; ++first)
      for (const char rest : {'\0', '\1', '\x7f', '\x80', '\xfe'}) {
        std::string body(size, rest);
        body[0] = static_cast<char>(first);
        same(body);
      }
  CHECK(from_msgpack("\xcd\x01\x02") == 258);
  for (const Value& value : {Value(-1), Value(127), Value(128), Value(1 << 20), Value(INT64_MIN), Value(UINT64_MAX),
                             Value(0.5), Value(true), Value()})
    CHECK((decode(encode(value)).kind() == value.kind() && decode(encode(value)) == value));
}

TEST_CASE("malformed bodies are refused with the reason") {
  const Buffer eight = Buffer::allocate(8);
  for (const char* body : {"",
                           "{",
                           "[1,]",
                           "nul",
                           "1 2",
                           "{\"$nonsense\":1}",
                           "{\"$bytes\":1}",
                           "{\"$float\":\"xyz\"}",
                           "{\"$array\":[]}",
                           "{\"$array\":[\"array\"]}",
                           "{\"$array\":[\"array\",\"object\",1]}",
                           "{\"$array\":[\"array\",\"float64\",2]}",
                           "{\"$array\":[\"list\",\"float32\",2]}",
                           "{\"$map\":[[1]]}",
                           "{\"$map\":[[1,2,3]]}",
                           "{\"$map\":[[[1],2]]}",
                           "{\"$map\":[1]}",
                           "{\"$float\":\"7ff8000000000000\",\"x\":1}",
                           "99999999999999999999",
                           "\"\xff\"",
                           "{\"$array\":[\"array\",\"float64\",1,1,-1]}",
                           "{\"$bytes\":null}{\"$bytes\":null}"}) {
    CAPTURE(std::string(body));
    CHECK_THROWS_AS((void)from_json(body, {eight}), ProtocolError);
  }
  CHECK_THROWS_AS((void)from_json("1", {eight}), ProtocolError);             // no reference to the buffer
  CHECK_THROWS_AS((void)from_json("{\"$bytes\":null}", {}), ProtocolError);  // no buffer for the reference
  for (const std::string& body :
       {std::string(""), std::string("\xc1"), std::string("\x92\x01"), std::string("\xa2\xff\xff"),
        std::string("\xdd\xff\xff\xff\xff"), std::string("\x01\x01"), std::string("\xd4\x07\x00", 3),
        std::string("\xc7\x02\x01\x00\x63", 5), std::string("\x81\x91\x01\x01"),
        std::string("\xc7\x0a\x01\x00\x0c\xff\xff\xff\xff\xff\xff\xff\xff", 13)}) {
    CAPTURE(body);
    CHECK_THROWS_AS((void)from_msgpack(body, {eight}), ProtocolError);
  }
  CHECK_THROWS_WITH_AS((void)from_msgpack(std::string(300, '\x91') + '\x01'),
                       "a message is nested deeper than 256 levels", ProtocolError);
  CHECK_THROWS_AS((void)from_json(std::string(100'000, '[')), ProtocolError);
}

TEST_CASE("the text of a message is abridged JSON") {
  const std::string abridged = Value{{"a", Array::zeros<double>({2, 3})}, {"b", std::string(200, 'x')}}.text();
  CHECK(abridged == "{\"a\": \"<array float64 2x3>\", \"b\": \"" + std::string(120, 'x') + "... (200 bytes)\"}");
  CHECK(Value(List(20, Value(true))).text().ends_with(R"(true, "..."])"));
  CHECK(Value(std::nan("")).text() == R"("NaN")");
  CHECK(Value(Map{{Value(1), Value(Bytes{"abc"})}}).text() == R"({"1": "<3 bytes>"})");
  const std::string body = encode({{"cmd", "train"}, {"x", Value::list({1, 2, 3})}}).body;
  CHECK(text_of(Codec::msgpack, body.substr(0, 6)) == R"({"cmd": "..."})");
  CHECK(text_of(Codec::msgpack, body.substr(0, 15)) == R"({"cmd": "train", "x": [1, "..."]})");
  CHECK(text_of(Codec::json, "garbage") == R"("...")");
}

TEST_CASE("a message is read like JSON, and errors name what it has") {
  Value message{{"cmd", "train"}, {"lr", 0.1}, {"steps", 3}, {"a", Array::of(std::vector<double>{1, 2})}};
  CHECK(message["cmd"] == "train");
  CHECK(message["steps"].integer() == 3);
  CHECK(message["steps"].real() == 3.0);
  CHECK(message["a"].array<double>()[1] == 2);
  message["new"] = true;
  CHECK(message["new"].boolean());
  const Value& constant = message;
  CHECK_THROWS_WITH_AS((void)constant["missing"],
                       R"(the message has no key "missing"; its keys: "cmd", "lr", "steps", "a", "new")", ValueError);
  CHECK_THROWS_WITH_AS((void)message["cmd"].integer(),
                       R"(expected an integer that fits into int64, but the value is a string: "train")", ValueError);
  CHECK_THROWS_WITH_AS((void)message["a"].array<float>(), "the array holds float64, not float32", ValueError);
  CHECK_THROWS_AS(Array(DType::float64, {3}, Buffer::allocate(8)), UsageError);
}

}  // namespace miniray
