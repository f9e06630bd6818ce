#include "miniray/value.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <unordered_set>

#include "miniray/convert.hpp"
#include "miniray/error.hpp"
#include "miniray/limits.hpp"
#include "miniray/message.hpp"

namespace miniray {
namespace {

Value message_with_numbers() {
  return {{"a", Array::of(std::vector<double>{1, 2, 3})},
          {"name", std::string(100, 'x')},
          {"list", Value::list({1, "two", 3.0})}};
}

template <class Function>
std::string thrown_text(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("the text of a value that no message can hold is abridged, and so are the errors that show it") {
  Value deep = 1;
  for (int i = 0; i < 300; ++i) deep = List{std::move(deep)};
  const std::string open(limits::depth_max, '['), closed(limits::depth_max, ']');
  CHECK(deep.text() == open + "\"...\"" + closed);
  CHECK_THROWS_WITH_AS((void)deep.integer(), doctest::Contains("the value is a list: [["), ValueError);
  CHECK_THROWS_WITH_AS((void)deep.get<int>(), doctest::Contains("the value is a list: [["), ValueError);
  CHECK(Value("a\xff").text() == R"("a\\xff")");
  CHECK(Value(Map{{List{1}, 2}}).text() == R"({"a list": 2})");
}

TEST_CASE("a typed read of a key that operator[] has added says so") {
  Value map{{"size", 1}};
  CHECK_THROWS_WITH_AS((void)map["sise"].get<int>(), doctest::Contains("is it spelt right?"), ValueError);
  map["sise"] = nullptr;
  CHECK_THROWS_WITH_AS((void)map["sise"].get<int>(), "expected int, but the value is null", ValueError);
}

TEST_CASE("what comes out of a value without a name stays valid") {
  auto numbers = message_with_numbers()["a"].array<double>();
  CHECK(numbers.size() == 3);
  CHECK(numbers[0] + numbers.back() == 4);
  double sum = 0;
  for (const double number : message_with_numbers()["a"].array<double>()) sum += number;
  CHECK(sum == 6);
  const std::span<const double> span = numbers;
  CHECK(span[1] == 2);
  CHECK_FALSE(std::is_convertible_v<ArrayElements<double>&&, std::span<const double>>);
  CHECK_FALSE(std::is_constructible_v<std::span<const double>, ArrayElements<double>>);

  const auto& name = message_with_numbers()["name"].string();
  CHECK(name == std::string(100, 'x'));
  std::string items;
  for (const Value& item : message_with_numbers()["list"].list()) items += item.text();
  for (const Value& item : message_with_numbers()["list"]) items += item.text();
  for (const auto& [key, value] : message_with_numbers().items()) items += key.string();
  CHECK(items == R"(1"two"3.01"two"3.0anamelist)");
  const Value& part = message_with_numbers()["list"].at(1);
  CHECK(part == "two");
  const Array array = message_with_numbers()["a"].array();
  CHECK(array.elements<double>()[2] == 3);
  CHECK(Array::of(std::vector<float>{5}).elements<float>()[0] == 5);
}

TEST_CASE("data that was given as const is never written to, and copies do not see each other's writes") {
  const std::vector<double> constant{1, 2};
  static_assert(std::is_same_v<decltype(std::declval<Value&>().array<double>()), std::span<const double>>);
  static_assert(std::is_same_v<decltype(std::declval<Array&>().elements<double>()), std::span<const double>>);
  static_assert(std::is_same_v<decltype(std::declval<const Buffer&>().bytes()), std::span<const std::byte>>);
  Value view = Array::view<double>(constant);
  CHECK(view.array<double>().data() == constant.data());
  view.mutable_array<double>()[0] = 7;
  CHECK(constant[0] == 1);
  CHECK(view.array<double>()[0] == 7);

  Value first = Array::of(std::vector<double>{1, 2});
  const double* const place = first.array<double>().data();
  Value second = first;
  CHECK(second.array<double>().data() == place);
  second.mutable_array<double>()[0] = 7;
  CHECK(first.array<double>()[0] == 1);
  first.mutable_array<double>()[1] = 8;  // it is the only owner now, so nothing is copied
  CHECK(first.array<double>().data() == place);

  std::vector<double> own{1, 2};
  Array borrowed = Array::mutable_view(std::span(own));
  borrowed.mutable_elements<double>()[1] = 9;
  CHECK(own[1] == 9);
  CHECK_THROWS_WITH_AS((void)borrowed.mutable_elements<float>(), "the array holds float64, not float32", ValueError);
}

TEST_CASE("braces, null pointers and missing keys are settled") {
  CHECK(Value{} == Value(nullptr));
  CHECK(Value{1} == Value::list({1}));
  CHECK(Value(1) == Value(1));
  CHECK(Value{{"a", 1}}.is_map());
  CHECK(Value{{1, "a"}} == Value::list({Value::list({1, "a"})}));
  CHECK((Value{{"a", {}}}["a"].is_null()));
  const char* null = nullptr;
  CHECK(thrown_text([&] { (void)Value(null); }).starts_with("a null pointer is no string"));
  CHECK(thrown_text([&] { (void)(Value("x") == null); }).starts_with("a null pointer is no string"));
  CHECK(Value("x") != nullptr);
  CHECK(Value() == nullptr);
  CHECK(Value(0) == 0);

  Value map{{"right", 1}};
  CHECK(thrown_text([&] {
          (void)map["wrogn"].integer();
        }).starts_with("expected an integer that fits into int64, but the map did not have this key"));
  CHECK(map["wrogn"].is_null());
  map["wrogn"] = nullptr;
  CHECK(thrown_text([&] { (void)map["wrogn"].integer(); }) ==
        "expected an integer that fits into int64, but the value is null");
  CHECK(map.erase("wrogn"));
  CHECK_FALSE(map.erase("wrogn"));
  CHECK(thrown_text([&] { (void)map.at("wrogn"); }) == R"(the message has no key "wrogn"; its keys: "right")");
  CHECK(thrown_text([&] { (void)Value(map)["wrogn"]; }) == R"(the message has no key "wrogn"; its keys: "right")");
  Value made;
  made["a"]["b"] = 1;
  made["list"].push_back(2);
  CHECK(made == Value{{"a", {{"b", 1}}}, {"list", {2}}});
  CHECK(made["list"][0] == 2);
  CHECK_THROWS_WITH_AS((void)made["list"][3], "the list has no element 3; its length is 1", ValueError);
}

TEST_CASE("equality of maps does not depend on the order of entries, and order and hash agree with it") {
  const Value one{{"a", 1}, {"b", {{"x", 1.5}, {"y", "z"}}}};
  const Value other{{"b", {{"y", "z"}, {"x", 1.5}}}, {"a", 1}};
  CHECK(one == other);
  CHECK(one.hash() == other.hash());
  CHECK((one <=> other) == std::strong_ordering::equal);
  CHECK(one != Value{{"a", 1}, {"b", 2}});
  CHECK(Value(Map{{"a", 1}, {"a", 2}}) != Value(Map{{"a", 1}, {"a", 1}}));

  const std::vector<Value> ascending{nullptr,
                                     false,
                                     true,
                                     -std::numeric_limits<double>::infinity(),
                                     INT64_MIN,
                                     -1,
                                     -0.5,
                                     0,
                                     -0.0,
                                     0.0,
                                     0.5,
                                     1,
                                     1.0,
                                     INT64_MAX,
                                     UINT64_MAX,
                                     1e300,
                                     std::nan(""),
                                     "",
                                     "a",
                                     "b",
                                     Bytes{"a"},
                                     Value(List()),
                                     Value::list({1}),
                                     Value::list({1, 0}),
                                     Value(Map()),
                                     Value{{"a", 1}},
                                     Array::of(std::vector<float>{1}),
                                     Array::of(std::vector<double>{1})};
  for (std::size_t i = 0; i < ascending.size(); ++i)
    for (std::size_t j = 0; j < ascending.size(); ++j) {
      CAPTURE(ascending[i].text() + " and " + ascending[j].text());
      CHECK((ascending[i] < ascending[j]) == (i < j));
      CHECK((ascending[i] == ascending[j]) == (i == j));
    }
  const std::unordered_set<Value> set(ascending.begin(), ascending.end());
  CHECK(set.size() == ascending.size());
}

TEST_CASE("a value is used as people know it") {
  const Value message{{"n", 3}, {"name", "x"}, {"items", {1, 2, 3}}, {"v", std::vector<double>{1, 2}}};
  CHECK(message["n"].get<int>() == 3);
  CHECK(message["v"].get<std::vector<double>>() == std::vector<double>{1, 2});
  CHECK(message["v"].kind() == Value::Kind::array);
  CHECK(message.value("n", 5) == 3);
  CHECK(message.value("none", 5) == 5);
  CHECK(message.value("name", "fallback") == "x");
  CHECK(message.value("none", "fallback") == "fallback");
  CHECK(thrown_text([&] { (void)message.value("name", 5); }) == R"(expected int, but ["name"] is a string: "x")");
  CHECK(message.contains("n"));
  CHECK_FALSE(message.contains(std::string("m")));
  CHECK_FALSE(Value(Map()).contains("n"));
  Value list;
  for (const Value& item : message["items"]) list.push_back(item.integer() + 1);
  CHECK(list == Value{2, 3, 4});
  for (Value& item : list) item = item.integer() * 2;
  CHECK(list == Value{4, 6, 8});
  std::string text;
  for (const auto& [key, value] : message.items()) text += key.string() + "=" + value.text() + " ";
  CHECK(text == R"(n=3 name="x" items=[1, 2, 3] v="<array float64 2>" )");
  for (const Value& none : Value()) FAIL(none.text());
  const Value number(1);
  CHECK_THROWS_AS((void)number.begin(), ValueError);
  std::ostringstream stream;
  stream << message["items"];
  CHECK(stream.str() == "[1, 2, 3]");
  CHECK(Value(Map()).empty());
  CHECK_FALSE(message.empty());
  CHECK(message["n"] < 4);
  CHECK("x" == message["name"]);
}

TEST_CASE("copies are independent, and a value that was moved from is null") {
  Value one = message_with_numbers();
  Value two = one;
  two["list"].push_back(4);
  CHECK(one["list"].size() == 3);
  const Value three = std::move(two);
  CHECK(two.is_null());  // NOLINT(bugprone-use-after-move)
  CHECK(three["list"].size() == 4);
  one = one["list"];  // a part of itself
  CHECK(one.size() == 3);
  one = std::move(one.list()[1]);
  CHECK(one == "two");
  Value& same = one;
  one = same;
  CHECK(one == "two");
  one = std::move(same);
  CHECK(one == "two");
}

TEST_CASE("a value takes 16 bytes") { CHECK(sizeof(Value) == 16); }

}  // namespace miniray
