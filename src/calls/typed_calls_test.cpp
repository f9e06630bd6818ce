// Functions that are called by what they are: registered function pointers, lambdas, fn<>.
#include <doctest/doctest.h>
#include <unistd.h>

#include <list>
#include <ranges>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "miniray/calls.hpp"
#include "miniray/worker.hpp"

namespace miniray {
namespace {

double typed_cube(double x) { return x * x * x; }
int typed_sum(const std::vector<int>& numbers) noexcept {
  int sum = 0;
  for (const int number : numbers) sum += number;
  return sum;
}
void typed_nothing() {}
double typed_unregistered(double x) { return x; }

// src/tasks/pool_futures_test.cpp has another one of the same name.
auto lambda_of_this_file() {
  return [](int x) { return x + 1000; };
}

// Two lambdas of the same type, as it is written: the compiler names both after this function.
template <int number>
auto twin() {
  return [](int x) { return x + number; };
}

}  // namespace

TEST_CASE("a registered function is called by its pointer, and the result has its type") {
  registry().add("typed_cube", typed_cube).add("typed_nothing", &typed_nothing);
  Worker worker(serve_calls);
  Caller caller(worker);
  static_assert(std::is_same_v<decltype(caller.call(typed_cube, 3)), double>);
  static_assert(std::is_same_v<decltype(caller.call_async(typed_cube, 3)), CallFuture<double>>);
  CHECK(caller.call(typed_cube, 3) == 27);
  CHECK(caller.call(&typed_cube, 3.0F) == 27);
  CHECK(caller.call_async(typed_cube, 2).get() == 8);
  caller.call(typed_nothing);
}

TEST_CASE("a function pointer that is not registered is refused, with the cure") {
  Worker worker(serve_calls);
  Caller caller(worker);
  CHECK_THROWS_WITH_AS((void)caller.call(typed_unregistered, 1), doctest::Contains("this function is not registered"),
                       UsageError);
  CHECK_THROWS_WITH_AS((void)caller.call(typed_unregistered, 1), doctest::Contains("miniray::fn<function>"),
                       UsageError);
  CHECK(caller.call(fn<typed_unregistered>, 1) == 1);
}

TEST_CASE("a function that another one replaced in the registry is not called by the old pointer") {
  Registry functions;
  const auto address = reinterpret_cast<FunctionAddress>(typed_cube);
  functions.add("f", typed_cube);
  CHECK(functions.name_of(address) == "f");
  functions.add("f", [](double x) { return x; });
  CHECK_THROWS_AS((void)functions.name_of(address), UsageError);
}

TEST_CASE("lambdas without captures and fn<> need no registration") {
  Worker worker(serve_calls);
  Caller caller(worker);
  CHECK(caller.call([](double x, int y) { return x * y; }, 1.5, 4) == 6);
  CHECK(caller.call([] { return getpid(); }) == worker.pid());
  CHECK(caller.call(fn<typed_sum>, std::vector{1, 2, 3}) == 6);
  caller.call([] {});
  constexpr auto named = [](std::string_view text) -> std::string_view { return text.substr(1); };
  static_assert(std::is_same_v<decltype(caller.call(named, "abc")), std::string>);
  CHECK(caller.call(named, "abc") == "bc");
  CHECK(caller
            .call_async([](const std::string& a, std::string_view b) { return a + std::string(b); }, "x",
                        std::string("y"))
            .get() == "xy");
}

TEST_CASE("arguments convert as in a call, and references, spans, arrays and values work") {
  Worker worker(serve_calls);
  Caller caller(worker);
  const std::vector<double> numbers{1, 2, 3};
  const auto total = [](std::span<const double> values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  };
  CHECK(caller.call(total, numbers) == 6);
  CHECK(caller.call(total, Array::of(numbers)) == 6);
  const auto doubled = [](std::span<double> values) {
    for (double& value : values) value *= 2;
    return values;
  };
  CHECK(caller.call(doubled, numbers) == std::vector<double>{2, 4, 6});
  CHECK(caller.call(doubled, Array::of(numbers)) == std::vector<double>{2, 4, 6});
  CHECK(caller.map(doubled, std::vector{numbers, numbers})[1] == std::vector<double>{2, 4, 6});
  CHECK(caller.call([](const Value& value) { return value; }, 5) == Value(5));
  CHECK(caller.call([](bool yes) { return yes; }, true));
  CHECK(caller.call([](std::optional<int> maybe) { return maybe.value_or(-1); }, 7) == 7);
  CHECK_THROWS_WITH_AS((void)caller.call(total, Value("abc")), doctest::Contains("argument 1 is a string"), CallError);
  CHECK_THROWS_WITH_AS((void)caller.call([](std::int8_t small) { return small; }, 1000),
                       doctest::Contains("which it cannot hold"), CallError);
}

TEST_CASE("lambdas of the same written type are told apart") {
  Worker worker(serve_calls);
  Caller caller(worker);
  CHECK(caller.call(twin<1>(), 10) == 11);
  CHECK(caller.call(twin<2>(), 10) == 12);
  CHECK(caller.call([](int x) { return x + 1; }, 1) == 2);
  CHECK(caller.call([](int x) { return x + 2; }, 1) == 3);
  CHECK(caller.call(lambda_of_this_file(), 1) == 1001);
  const auto one = [](int x) { return x + 1; };
  const auto two = [](int x) { return x + 2; };
  CHECK(detail::remote_name(one) != detail::remote_name(two));
}

TEST_CASE("map takes any range, of a function with or without a name") {
  registry().add("typed_cube", typed_cube);
  Worker worker(serve_calls);
  Caller caller(worker);
  const std::vector<double> cubes{0, 1, 8, 27};
  CHECK(caller.map(typed_cube, std::views::iota(0, 4)) == cubes);
  CHECK(caller.map<double>("typed_cube", std::views::iota(0, 4)) == cubes);
  CHECK(caller.map([](double x) { return x * x * x; }, std::list<float>{0, 1, 2, 3}) == cubes);
  const std::set<int> ordered{3, 0, 2, 1};
  CHECK(caller.map(fn<typed_cube>, ordered) == cubes);
  const int plain[] = {0, 1, 2, 3};
  CHECK(caller.map(typed_cube, plain) == cubes);
  CHECK(caller.map(typed_cube, std::span<const int>(plain)) == cubes);
  CHECK(caller.map([](bool yes) { return !yes; }, std::vector<bool>{true, false}) == std::vector<bool>{false, true});
  CHECK(caller.map<double>("typed_cube", ordered | std::views::filter([](int x) { return x > 1; })) ==
        std::vector<double>{8, 27});
  CHECK(caller.map(typed_cube, std::vector<double>()).empty());
}

TEST_CASE("errors name the lambda in words, without the number that only workers need") {
  Worker worker(serve_calls);
  Caller caller(worker);
  try {
    caller.call([](int x) { throw std::out_of_range(std::to_string(x)); }, 4);
    FAIL("the call did not throw");
  } catch (const CallError& error) {
    CHECK(error.type() == "std::out_of_range");
    CHECK(std::string(error.what()).find("lambda") != std::string::npos);
    CHECK(std::string(error.what()).find("[c++ ") == std::string::npos);
  }
  const std::string& name = detail::remote_name(fn<typed_cube>);
  CHECK(std::string(detail::spoken_name(name)).ends_with("typed_cube"));
  CHECK(detail::is_typed_name(name));
  CHECK_FALSE(detail::is_typed_name("square"));
}

TEST_CASE("a worker calls only what is in the table of its own program, and says what is wrong") {
  Worker worker(serve_calls);
  Caller caller(worker);
  const std::string foreign = "main()::<lambda(double)> [c++ 0123456789abcdef]";
  CHECK_THROWS_WITH_AS(caller.call(foreign, 1), doctest::Contains("is not in the program of this worker"), CallError);
  CHECK_THROWS_WITH_AS(caller.call(foreign, 1), doctest::Contains("the same build of the same program"), CallError);
  CHECK_THROWS_WITH_AS(caller.call(foreign, 1), doctest::Contains("dlopen"), CallError);
  std::string wrong = detail::remote_name(fn<typed_cube>);
  wrong[wrong.size() - 2] = wrong[wrong.size() - 2] == '0' ? '1' : '0';
  CHECK_THROWS_AS(caller.call(wrong, 1), CallError);
}

}  // namespace miniray
