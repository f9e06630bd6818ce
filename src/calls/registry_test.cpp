#include "miniray/registry.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "miniray/error.hpp"

struct Point {
  double x, y;
};
template <>
struct miniray::Convert<Point> {
  static std::string name() { return "Point"; }
  static Point from(const Value& value) { return {convert<double>(value["x"]), convert<double>(value["y"])}; }
  static Value to(const Point& point) { return {{"x", point.x}, {"y", point.y}}; }
};

namespace miniray {
namespace {

double twice(double x) { return 2 * x; }
int answer() noexcept { return 42; }

class Tally {
 public:
  explicit Tally(int start) : count_(start) {}
  int increment(int by) { return count_ += by; }
  [[nodiscard]] int value() const noexcept { return count_; }

 private:
  int count_;
};
class LoudTally : public Tally {
 public:
  LoudTally() : Tally(100) {}
};

Value call(const Registry& functions, std::string_view name, const List& arguments) {
  return functions.function(name)(name, arguments);
}
template <class T>
bool comes_back(const T& object) {
  return convert<T>(to_value(object)) == object;
}
template <class T>
std::string mismatch(const Value& value) {
  try {
    (void)convert<T>(value);
  } catch (const Mismatch& error) {
    return error.what();
  }
  return "it is one";
}

}  // namespace

TEST_CASE("every type comes back as it was") {
  CHECK(comes_back(true));
  CHECK(comes_back(std::numeric_limits<std::int8_t>::min()));
  CHECK(comes_back(std::numeric_limits<std::uint64_t>::max()));
  CHECK(comes_back(1.5F));
  CHECK(comes_back(1e300));
  CHECK(comes_back(std::string("text")));
  CHECK(comes_back(Bytes{std::string("\xff\0", 2)}));
  CHECK(comes_back(Value{{"a", 1}}));
  CHECK(comes_back(List{1, "two"}));
  CHECK(comes_back(Map{{1, "one"}}));
  CHECK(comes_back(Array::of<double>({1, 2, 3, 4}, {2, 2})));
  CHECK(comes_back(std::vector<std::string>{"a", "b"}));
  CHECK(comes_back(std::vector<bool>{true, false}));
  CHECK(comes_back(std::vector<std::vector<int>>{{1}, {}, {2, 3}}));
  CHECK(comes_back(std::map<std::string, double>{{"a", 1}, {"b", 2.5}}));
  CHECK(comes_back(std::optional<int>()));
  CHECK(comes_back(std::optional<int>(3)));
  CHECK(comes_back(std::tuple<int, std::string, double>(1, "a", 2)));
  CHECK(comes_back(std::pair<std::string, std::vector<int>>("a", {1})));
  CHECK(convert<double>(Value(3)) == 3.0);
  CHECK(convert<std::vector<float>>(Array::of<float>({1, 2})) == std::vector<float>{1, 2});
  CHECK(to_value("text") == Value("text"));
  const std::array<double, 2> numbers{1, 2};
  CHECK(to_value(std::span<const double>(numbers)) == Value(Array::of<double>({1, 2})));
}

TEST_CASE("what does not fit is said, with its place") {
  CHECK(mismatch<double>("abc") == "expected double, but the value is a string: \"abc\"");
  CHECK(mismatch<int>(1.5) == "expected int, but the value is a real: 1.5");
  CHECK(mismatch<int>(true) == "expected int, but the value is a bool: true");
  CHECK(mismatch<bool>(1) == "expected bool, but the value is an integer: 1");
  CHECK(mismatch<std::int8_t>(300) == "expected int8, but the value is 300, which it cannot hold");
  CHECK(mismatch<std::uint32_t>(-1) == "expected uint32, but the value is -1, which it cannot hold");
  CHECK(mismatch<std::int64_t>(UINT64_MAX) ==
        "expected int64, but the value is 18446744073709551615, which it cannot hold");
  CHECK(mismatch<float>(1e300) == "expected float, but the value is 1e+300, which it cannot hold");
  CHECK(mismatch<std::string>(Bytes{"ab"}).starts_with("expected string, but the value is bytes: "));
  CHECK(mismatch<std::string>({}) == "expected string, but the value is null");
  CHECK(mismatch<std::vector<double>>(List{1, 2, "x"}) == "expected double, but [2] is a string: \"x\"");
  CHECK(mismatch<std::map<std::string, std::vector<int>>>({{"a", Value::list({1, nullptr})}}) ==
        "expected int, but [\"a\"][1] is null");
  CHECK(mismatch<std::map<std::string, int>>(Map{{1, 2}}) ==
        "expected string, but the value has a key that is no string: 1");
  CHECK(mismatch<std::optional<int>>("x") == "expected int, but the value is a string: \"x\"");
  CHECK(mismatch<std::pair<int, int>>(List{1}) == "expected (int, int), but the value is a list of 1: [1]");
  CHECK(mismatch<std::tuple<int, bool>>(List{1, 2}) == "expected bool, but [1] is an integer: 2");
  CHECK(mismatch<std::span<const float>>(Array::of<double>({1})) ==
        "expected array of float32, but the value is an array of float64");
  CHECK(mismatch<std::vector<float>>(Array::of<double>({1})) ==
        "expected array of float32, but the value is an array of float64");
  CHECK(
      mismatch<std::vector<float>>(Array::zeros<float>({2, 2})).starts_with("expected list of float, but the value "));
}

TEST_CASE("functions of all sorts are called with what they take") {
  Registry functions;
  int calls = 0;
  functions.add("twice", twice)
      .add("answer", &answer)
      .add("count", [calls]() mutable { return ++calls; })
      .add("nothing", [&calls](int by) { calls += by; })
      .add("join", [](const std::string& a, std::string_view b, std::string c) { return a + std::string(b) + c; })
      .add("sum",
           [](std::span<const double> numbers) {
             double sum = 0;
             for (const double number : numbers) sum += number;
             return sum;
           })
      .add("length", [](const List& list, const Value& any) { return list.size() + any.size(); })
      .add("same", [](const std::vector<int>& list) -> const std::vector<int>& { return list; })
      .add("mirror", [](const Point& point) { return Point{point.y, point.x}; })
      .add("name", [] { return "a literal"; })
      .add("stored", std::function<int(std::optional<int>)>([](std::optional<int> x) { return x.value_or(-1); }));
  CHECK(call(functions, "twice", {4}) == Value(8.0));
  CHECK(call(functions, "answer", {}) == Value(42));
  CHECK(call(functions, "count", {}) == Value(1));
  CHECK(call(functions, "count", {}) == Value(2));
  CHECK(call(functions, "nothing", {5}).is_null());
  CHECK(calls == 5);
  CHECK(call(functions, "join", {"a", "b", "c"}) == Value("abc"));
  CHECK(call(functions, "sum", {Array::of<double>({1, 2, 3})}) == Value(6.0));
  CHECK(call(functions, "length", {List{1, 2}, "abc"}) == Value(5));
  CHECK(call(functions, "same", List(1, List{1, 2})) == Value(Array::of<int>({1, 2})));
  CHECK(call(functions, "mirror", {{{"x", 1}, {"y", 2}}}) == Value{{"x", 2.0}, {"y", 1.0}});
  CHECK(call(functions, "name", {}) == Value("a literal"));
  CHECK(call(functions, "stored", {nullptr}) == Value(-1));
  CHECK(functions.names().size() == 11);
}

TEST_CASE("a function may write to its span, and the caller's array stays as it was") {
  Registry functions;
  functions.add("double", [](std::span<double> numbers) {
    for (double& number : numbers) number *= 2;
    return std::vector<double>(numbers.begin(), numbers.end());
  });
  functions.add_class<Tally, int>("Tally").method("clear", [](Tally& tally, std::span<int> numbers) {
    for (int& number : numbers) number = tally.increment(number);
    return numbers.back();
  });
  const Array numbers = Array::of<double>({1, 2});
  CHECK(call(functions, "double", {numbers}) == Value(Array::of<double>({2, 4})));
  CHECK(numbers == Array::of<double>({1, 2}));
  const CallableClass& tallies = functions.object_class("Tally");
  const auto tally = tallies.construct("Tally", {1});
  CHECK(tallies.methods.at("clear")(tally.get(), "clear", {Array::of<int>({1, 2})}) == Value(4));
  CHECK_THROWS_WITH_AS((void)call(functions, "double", {"abc"}),
                       doctest::Contains("double takes (array of float64), and argument 1 is a string"), UsageError);
}

TEST_CASE("arguments that do not fit are named") {
  Registry functions;
  functions.add("square", [](double x) { return x * x; })
      .add("now", [] { return 0; })
      .add("mean", [](const std::vector<double>& numbers, int) { return numbers.at(0); })
      .add("mirror", [](const Point& point) { return point; });
  CHECK_THROWS_WITH_AS((void)call(functions, "square", {"abc"}),
                       "square takes (double), and argument 1 is a string: \"abc\"", UsageError);
  CHECK_THROWS_WITH((void)call(functions, "square", {1, 2}), "square takes 1 argument, and 2 were given");
  CHECK_THROWS_WITH((void)call(functions, "mean", {1}), "mean takes 2 arguments, and 1 was given");
  CHECK_THROWS_WITH((void)call(functions, "now", {1}), "now takes no arguments, and 1 was given");
  CHECK_THROWS_WITH((void)call(functions, "mean", {List{1, "x"}, 1}),
                    "mean takes (list of double, int), and [1] of argument 1 is a string: \"x\"");
  CHECK_THROWS_WITH(
      (void)call(functions, "mirror", {{{"x", 1}}}),
      "mirror takes (Point), and argument 1 cannot be converted: the message has no key \"y\"; its keys: \"x\"");
  CHECK_THROWS_WITH_AS((void)functions.function("sqare"),
                       "there is no function \"sqare\" here; those that are registered: mean, mirror, now, square",
                       UsageError);
  CHECK_THROWS_WITH((void)functions.object_class("Tally"),
                    "there is no class \"Tally\" here; those that are registered: none");
  CHECK_THROWS_AS(functions.add("", twice), UsageError);
}

TEST_CASE("classes have methods, their bases' ones, and functions for methods") {
  Registry functions;
  functions.add_class<Tally, int>("Tally")
      .method("increment", &Tally::increment)
      .method("value", &Tally::value)
      .method("reset", [](Tally& counter, int to) { counter = Tally(to); })
      .method("peek", [](const Tally& counter) { return counter.value(); });
  functions.add_class<LoudTally>("LoudTally").method("value", &LoudTally::value);
  const CallableClass& counters = functions.object_class("Tally");
  const std::shared_ptr<void> counter = counters.construct("Tally", {1});
  const auto method = [&](const char* name, const List& arguments) {
    return counters.methods.find(name)->second(counter.get(), std::string("counter.") + name, arguments);
  };
  CHECK(method("increment", {2}) == Value(3));
  CHECK(method("value", {}) == Value(3));
  CHECK(method("reset", {7}).is_null());
  CHECK(method("peek", {}) == Value(7));
  CHECK_THROWS_WITH((void)method("increment", {"x"}),
                    "counter.increment takes (int), and argument 1 is a string: \"x\"");
  CHECK_THROWS_WITH((void)counters.construct("Tally", {}), "Tally takes 1 argument, and 0 were given");
  const CallableClass& loud = functions.object_class("LoudTally");
  CHECK(loud.methods.at("value")(loud.construct("LoudTally", {}).get(), "x.value", {}) == Value(100));
}

}  // namespace miniray
