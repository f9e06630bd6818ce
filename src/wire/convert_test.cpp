#include "miniray/convert.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <complex>
#include <deque>
#include <filesystem>
#include <list>
#include <map>
#include <set>
#include <unordered_map>
#include <variant>

#include "miniray/channel.hpp"

namespace convert_test {

struct Point {
  double x = 0, y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
enum class Level : std::uint8_t { low = 1, high = 2 };
enum class Color { red, blue };
struct Inner {
  std::vector<Point> points;
  std::optional<int> maybe;
  friend bool operator==(const Inner&, const Inner&) = default;
};
struct Everything {
  std::string name;
  Inner inner;
  std::map<std::string, std::vector<int>> lists;
  std::variant<int, std::string> either;
  std::array<int, 2> two{};
  Level level{};
  Color color{};
  std::vector<double> numbers;
  std::chrono::milliseconds pause{};
  bool flag = false;
  friend bool operator==(const Everything&, const Everything&) = default;
};
class Counter {
 public:
  Counter() = default;
  explicit Counter(int count) : count_(count) {}
  static constexpr auto fields() { return miniray::fields("count", &Counter::count_, "unit", &Counter::unit_); }
  friend bool operator==(const Counter&, const Counter&) = default;

 private:
  int count_ = 0;
  std::string unit_ = "pieces";
};
struct Foreign {
  int long_name_inside;
  friend bool operator==(const Foreign&, const Foreign&) = default;
};
struct Interval {
  Interval(double a, double b) : from(a), to(b) {}
  double from, to;
  friend bool operator==(const Interval&, const Interval&) = default;
};
struct Nothing {
  friend bool operator==(const Nothing&, const Nothing&) = default;
};
class Opaque {
 public:
  explicit Opaque(int number) : number_(number) {}
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

}  // namespace convert_test

template <>
inline constexpr auto miniray::enumerators_of<convert_test::Color> =
    miniray::enumerators("red", convert_test::Color::red, "blue", convert_test::Color::blue);
template <>
inline constexpr auto miniray::fields_of<convert_test::Foreign> =
    miniray::fields("n", &convert_test::Foreign::long_name_inside);
template <>
struct miniray::Convert<convert_test::Interval> {
  static std::string name() { return "Interval"; }
  static convert_test::Interval from(const Value& value) {
    return {field<double>(value, "from"), field<double>(value, "to")};
  }
  static Value to(const convert_test::Interval& interval) { return {{"from", interval.from}, {"to", interval.to}}; }
};

namespace miniray {
namespace {

using namespace convert_test;

template <class T>
bool survives(const T& object) {
  Message message = encode(object);  // through the wire, as between two processes
  for (Buffer& buffer : message.buffers) {
    Buffer copy = Buffer::allocate(buffer.size);
    std::ranges::copy(buffer.bytes(), copy.data);
    buffer = copy;
  }
  return convert<T>(decode(message)) == object;
}

template <class T>
std::string why_not(const Value& value) {
  try {
    (void)convert<T>(value);
  } catch (const Mismatch& mismatch) {
    return mismatch.what();
  }
  return "it converts";
}

}  // namespace

TEST_CASE("structs, enums, containers, times and paths travel") {
  using namespace std::chrono;
  CHECK(survives(Point{1, 2}));
  CHECK(survives(Everything{
      "n", {{{1, 2}, {3, 4}}, 5}, {{"a", {1, 2}}}, "text", {7, 8}, Level::high, Color::blue, {1.5}, 1500ms, true}));
  CHECK(survives(Counter(3)));
  CHECK(survives(Foreign{3}));
  CHECK(survives(Interval(1, 2)));
  CHECK(survives(Nothing{}));
  CHECK(survives(std::set<int>{3, 1, 2}));
  CHECK(survives(std::deque<std::string>{"a", "b"}));
  CHECK(survives(std::list<double>{1, 2}));
  CHECK(survives(std::map<int, double>{{1, 1.5}, {-2, 2.5}}));
  CHECK(survives(std::unordered_map<std::string, Point>{{"a", {1, 2}}, {"b", {3, 4}}}));
  CHECK(survives(std::variant<int, double, std::string>(1.5)));
  CHECK(survives(std::variant<std::monostate, Point>()));
  CHECK(survives(std::array<std::string, 2>{"a", "b"}));
  CHECK(survives(std::vector<std::byte>{std::byte{1}, std::byte{255}}));
  CHECK(survives(std::vector<std::complex<double>>{{1, 2}, {3, 4}}));
  CHECK(survives(std::vector<std::uint8_t>{1, 255}));
  CHECK(survives(std::optional<Point>(Point{1, 2})));
  CHECK(survives(nanoseconds(1)));
  CHECK(survives(nanoseconds((std::int64_t{1} << 51) - 1)));
  CHECK(survives(hours(-1'000'000)));
  CHECK(survives(duration<double>(0.1)));
  for (std::int64_t i = 0; i < 1000; ++i) {
    const nanoseconds since(1'770'000'000'123'456'789 + i * 7919);
    CHECK(survives(system_clock::time_point(since)));
    CHECK(survives(steady_clock::time_point(-since)));
  }
  CHECK(survives(time_point<system_clock, microseconds>(microseconds(-1))));
  CHECK(survives(sys_days(year(2026) / 2 / 3)));
  CHECK(survives(std::filesystem::path("/tmp/a b")));
  CHECK(survives(std::filesystem::path("/tmp/\xff")));
}

TEST_CASE("what travels is what a receiver in another language expects") {
  CHECK(Value(Point{1, 2}) == Value{{"x", 1.0}, {"y", 2.0}});
  CHECK(Value(Counter(3)) == Value{{"count", 3}, {"unit", "pieces"}});
  CHECK(Value(Foreign{3}) == Value{{"n", 3}});
  CHECK(Value(Level::high) == Value(2));
  CHECK(Value(Color::blue) == Value("blue"));
  CHECK(Value(std::chrono::milliseconds(1500)) == Value(1.5));
  CHECK(Value(std::chrono::sys_seconds(std::chrono::seconds(5))) == Value(5'000'000'000));
  CHECK(Value(std::filesystem::path("/a")) == Value("/a"));
  CHECK(Value(std::map<int, std::string>{{1, "a"}}) == Value(Map{{1, "a"}}));
  CHECK(Value(std::vector<double>{1, 2}) == Value(Array::of<double>({1, 2})));
  CHECK(Value{{"v", std::vector<float>{1}}}["v"].array<float>()[0] == 1);
  CHECK(Value(Nothing{}).is_null());
  struct Local {
    int first_member;
    std::string second_member;
  };
  CHECK(Value(Local{1, "a"}) == Value{{"first_member", 1}, {"second_member", "a"}});
  std::vector<double> moved(1000, 1.0);
  const double* const place = moved.data();
  const Value taken = std::move(moved);
  CHECK(taken.array<double>().data() == place);
}

TEST_CASE("numbers convert where nothing is lost") {
  CHECK(convert<std::vector<double>>(Array::of<std::int32_t>({1, 2})) == std::vector<double>{1, 2});
  CHECK(convert<std::vector<double>>(Array::of<float>({1, 2})) == std::vector<double>{1, 2});
  CHECK(convert<std::vector<std::int64_t>>(Array::of<std::uint32_t>({1})) == std::vector<std::int64_t>{1});
  CHECK(convert<std::set<int>>(Array::of<std::int64_t>({2, 1})) == std::set<int>{1, 2});
  CHECK(convert<std::array<double, 2>>(Array::of<double>({1, 2})) == std::array<double, 2>{1, 2});
  CHECK(why_not<std::vector<float>>(Array::of<double>({1})) ==
        "expected array of float32, but the value is an array of float64");
  CHECK(why_not<std::vector<double>>(Array::of<std::int64_t>({1})) ==
        "expected array of float64, but the value is an array of int64");
  CHECK(why_not<std::vector<std::uint64_t>>(Array::of<std::int8_t>({1})) ==
        "expected array of uint64, but the value is an array of int8");
  CHECK(convert<std::chrono::seconds>(5) == std::chrono::seconds(5));
  CHECK(convert<std::chrono::milliseconds>(0.0015) == std::chrono::milliseconds(2));
  CHECK(convert<std::chrono::sys_seconds>(1.75).time_since_epoch().count() == 1);
  CHECK(why_not<std::chrono::nanoseconds>(1e30).ends_with("which it cannot hold"));
  CHECK(why_not<std::chrono::nanoseconds>(std::numeric_limits<double>::quiet_NaN()).ends_with("which it cannot hold"));
}

TEST_CASE("errors name the right place") {
  CHECK(why_not<Point>({{"x", 1}, {"y", "a"}}) == R"(expected double, but ["y"] is a string: "a")");
  CHECK(why_not<Point>({{"x", 1}}) == R"(expected double, but ["y"] is missing; the map's keys: "x")");
  CHECK(why_not<Point>(3) == "expected Point, but the value is an integer: 3");
  CHECK(why_not<Interval>({{"from", 1}, {"to", nullptr}}) == R"(expected double, but ["to"] is null)");
  CHECK(why_not<std::vector<Interval>>(List{Interval(1, 2), Value{{"from", 1}}}) ==
        R"(expected double, but [1]["to"] is missing; the map's keys: "from")");
  CHECK(why_not<Inner>({{"points", List{Point{1, 2}, Value{{"x", 1}, {"y", true}}}}}) ==
        R"(expected double, but ["points"][1]["y"] is a bool: true)");
  CHECK(convert<Inner>({{"points", List()}, {"more", 1}}) == Inner{});
  CHECK(why_not<std::map<int, Point>>(Map{{7, Value{{"x", 1}}}}) ==
        R"(expected double, but [7]["y"] is missing; the map's keys: "x")");
  CHECK(why_not<std::map<int, int>>({{"a", 1}}) == "expected int, but the value has a key that is no int: \"a\"");
  CHECK(why_not<Color>("green") == R"(expected Color (one of red, blue), but the value is a string: "green")");
  CHECK(why_not<std::variant<int, Point>>("a") == R"(expected int or Point, but the value is a string: "a")");
  CHECK(why_not<std::array<int, 2>>(List{1}) == "expected list of 2 int, but the value is a list of 1: [1]");
  const Value list = Value::list({1, "a"});
  CHECK(element<int>(list, 0) == 1);
  CHECK_THROWS_WITH_AS((void)element<int>(list, 1), R"(expected int, but [1] is a string: "a")", Mismatch);
  CHECK_THROWS_WITH_AS((void)element<int>(list, 2), "expected int, but [2] is missing; the list's length: 2", Mismatch);
  CHECK(field<std::optional<int>>(Value{{"a", 1}}, "b") == std::nullopt);
}

TEST_CASE("a span of a value is for reading, or for writing if the value may be changed") {
  Value value = Array::of<double>({1, 2});
  value.get<std::span<double>>()[0] = 5;
  CHECK(value.get<std::span<const double>>()[0] == 5);
  static_assert(!Receivable<std::span<double>>);
  static_assert(Sendable<std::span<double>>);
  CHECK(value.get<std::vector<double>>() == std::vector<double>{5, 2});
  const Value text = "abc";
  CHECK(text.get<std::string_view>() == "abc");
}

TEST_CASE("channels send and receive objects") {
  auto [here, there] = Channel::pair();
  here.send(Point{1, 2});
  CHECK(there.recv<Point>() == Point{1, 2});
  here.send({{"v", std::vector<double>{1, 2}}, {"p", Point{3, 4}}});
  const Value message = there.recv();
  CHECK(message["v"].array<double>()[1] == 2);
  CHECK(message["p"].get<Point>() == Point{3, 4});
  here.send({});
  CHECK(there.recv().is_null());
  here.send("text");
  CHECK_THROWS_WITH_AS((void)there.recv<Point>(), R"(expected Point, but the value is a string: "text")", Mismatch);
  here.send(std::tuple(1, "a"));
  CHECK(there.recv<std::tuple<int, std::string>>() == std::tuple<int, std::string>(1, "a"));
  here.send(encode(Point{5, 6}));
  CHECK(there.recv<Point>().y == 6);
  static_assert(!std::is_convertible_v<Opaque, Value>);
  static_assert(!Sendable<Opaque> && !Receivable<Opaque>);
}

}  // namespace miniray
