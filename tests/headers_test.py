"""The public C++ headers: warnings of compilers, what must not compile, and what an error tells its reader."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEADERS = sorted(path.name.removesuffix(".in") for path in (ROOT / "include/miniray").glob("*.hpp*"))
INCLUDE = '#include "miniray/{}"\n'
COMPILERS = ["g++", "clang++-19"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
INCLUDES = [f"-I{ROOT}/include", f"-I{ROOT}/build/release/include"]

# Uses of the templates, so that compilers see what they become.
USES = """
#include <chrono>
#include <complex>
#include <filesystem>
#include <set>
#include <unordered_map>
#include <variant>

struct Point { double x = 0, y = 0; };
enum class Color { red, blue };
class Counter {
 public:
  static constexpr auto fields() { return miniray::fields("count", &Counter::count_); }
 private:
  int count_ = 0;
};
struct All {
  Point point; Color color; Counter counter; std::string name; std::vector<float> numbers; std::optional<int> maybe;
  std::set<std::string> set; std::unordered_map<std::string, int> map; std::variant<int, Point> either;
  std::chrono::nanoseconds pause; std::chrono::system_clock::time_point time; std::filesystem::path path;
  std::array<long, 3> three; std::vector<std::complex<float>> complex;
};
template <>
inline constexpr auto miniray::enumerators_of<Color> =
    miniray::enumerators("red", Color::red, "blue", Color::blue);

static_assert(miniray::Microseconds(std::chrono::microseconds(50)) == 50);
static_assert(miniray::Microseconds(std::chrono::nanoseconds(500)) == 1);
static_assert(miniray::Microseconds(std::chrono::nanoseconds(0)) == 0);
static_assert(miniray::Microseconds(std::chrono::hours(100)) == std::numeric_limits<int>::max());

void use_chrono(miniray::EventLog& log) {
  const miniray::WorkerOptions options{.spin_us = std::chrono::microseconds(50)};
  const miniray::ChannelOptions none{.spin_us = 0}, of_channel{.spin_us = options.spin_us};
  (void)log.events({}, std::chrono::system_clock::now());
  (void)log.events("worker_died", 1.5);
}

void use_groups(miniray::Group& group) {
  std::vector<double> all(4), part(2);
  const std::vector<double> constant(4);
  std::array<double, 2> few{};
  double plain[2]{};
  group.all_reduce(part);
  group.all_reduce(plain, miniray::ReduceOp::max);
  group.all_reduce(std::span(part).first<1>());
  group.reduce(part, miniray::ReduceOp::sum, 1);
  group.broadcast(few, 1);
  group.scatter(std::span(all), std::span(part));
  group.scatter(constant, few);
  group.scatter(std::span<double>(), part, 1);
  group.gather(part, all, 1);
  group.gather(std::span(few), std::span(all));
  group.all_gather(plain, all);
  group.reduce_scatter(constant, part);
}

void use(miniray::Worker& worker, miniray::Handle& handle, miniray::Channel& channel, miniray::Pool& pool) {
  struct Local { int a; std::string b; };
  worker.send(All{});
  worker.send(Local{1, "b"});
  worker.send({});
  worker.send({{"x", 7}, {"v", std::vector<double>{1, 2}}, {"p", Point{1, 2}}});
  const All all = handle.recv<All>();
  channel.send(all);
  auto numbers = worker.recv()["a"].array<double>();
  for (const double number : numbers) channel.send(number);
  const std::span<const double> span = numbers;
  for (const double number : worker.recv()["a"].array<double>()) channel.send(number);
  for (const miniray::Value& value : worker.recv()) channel.send(value);
  for (const auto& [key, value] : worker.recv().items()) channel.send({key, value});
  auto of_list = worker.recv().list()[0].array<double>();
  auto of_map = worker.recv().map()[0].second.array<double>();
  auto of_results = pool.map("f", std::vector<double>{1})[0].array<double>();
  const miniray::List results = pool.map("f", of_list);
  channel.send(worker.recv().list());
  channel.send({{"sizes", miniray::List{of_map.size(), of_results.size(), results.size()}}});
  const miniray::Value empty;
  miniray::Value message = channel.recv();
  for (const auto& [key, value] : message.items()) channel.send({key, value});
  for (const miniray::Value& value : message) channel.send(value.size() + span.size());
  message.mutable_array<float>()[0] = message.value("x", 1.5F);
  if (message["cmd"] == "stop" && message < 5) message["new"] = std::hash<miniray::Value>{}(message);
}
"""


def compile_text(compiler: str, standard: str, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [compiler, f"-std={standard}", "-fsyntax-only", *WARNINGS, *INCLUDES, *options, "-x", "c++", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("standard", ["c++20", "c++23"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_headers_and_their_templates_compile_without_a_warning(compiler: str, standard: str) -> None:
    done = compile_text(compiler, standard, "".join(map(INCLUDE.format, HEADERS)) + USES)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_compiles_by_itself(header: str) -> None:
    done = compile_text("g++", "c++20", INCLUDE.format(header))
    assert (done.returncode, done.stderr) == (0, "")


# --- What must not compile --------------------------------------------------------------------------------------------
PROLOGUE = """
#include "miniray/group.hpp"
#include "miniray/pool.hpp"
class Opaque { public: explicit Opaque(int n) : n_(n) {} int n() const { return n_; } private: int n_; };
struct HasOpaque { int a; Opaque opaque; };
struct HasView { std::string_view view; };
const miniray::Value made();
const miniray::Array made_array();
[[maybe_unused]] static const std::vector<double> numbers{1};
[[maybe_unused]] static std::vector<float> floats{1};
void use([[maybe_unused]] miniray::Worker& worker, [[maybe_unused]] miniray::Pool& pool,
         [[maybe_unused]] miniray::Group& group,
         [[maybe_unused]] const miniray::Value& constant) {
"""

MISTAKES = """
// Results that would refer to a message that is gone.
{ std::span<const double> s = worker.recv()["a"].array<double>(); }
{ auto p = worker.recv()["a"].array<double>().data(); }
{ auto p = worker.recv().find("a"); }
{ auto s = miniray::convert<std::span<const double>>(worker.recv()); }
{ auto s = miniray::field<std::string_view>(worker.recv(), "a"); }
{ auto& v = worker.recv()["a"]; }
{ auto& v = worker.recv().list()[0]; }
{ auto& v = worker.recv().map()[0].second; }
{ auto* p = worker.recv().list().data(); }
{ auto i = worker.recv().begin(); }
{ auto i = worker.recv().list().begin(); }
{ auto i = worker.recv()["a"].array<double>().begin(); }
{ auto& v = pool.map("f", numbers)[0]; }
{ std::span<const double> s = pool.map("f", numbers)[0].array<double>(); }
{ std::span<const double> s = made().array<double>(); }
{ auto& s = made().string(); }
{ auto& v = made()["a"]; }
{ auto p = made().find("a"); }
{ auto s = miniray::convert<std::span<const double>>(made()); }
{ std::span<const double> s = made_array().elements<double>(); }
// Writes to what is const.
{ constant.array<double>()[0] = 1; }
{ miniray::Value v; v.array<double>()[0] = 1; }
{ constant.mutable_array<double>(); }
{ constant["a"] = 1; }
{ constant.array().mutable_elements<double>(); }
// Pointers, which would convert to bool.
{ miniray::Value v = &worker; }
"""

CANNOT_SEND = (
    r"miniray cannot send this type: describe the class with fields\(\) \(miniray/fields\.hpp\), or specialise "
    r"miniray::Convert for it, with to\(\)"
)
CANNOT_CONVERT = (
    r"miniray cannot convert a value to this (type|member's type): describe the class with fields\(\) "
    r"\(miniray/fields\.hpp\), or specialise miniray::Convert for it, with name\(\) and from\(\)"
)
EXPLAINED = {
    "worker.send(Opaque(1))": CANNOT_SEND,
    "worker.send(HasOpaque{1, Opaque(1)})": CANNOT_SEND,
    "(void)miniray::to_value(std::vector<Opaque>())": CANNOT_SEND,
    "(void)worker.recv<Opaque>()": CANNOT_CONVERT,
    "(void)constant.get<std::vector<Opaque>>()": CANNOT_CONVERT,
    "(void)worker.recv<std::vector<std::string_view>>()": "a received object owns its content",
    "(void)worker.recv().get<std::string_view>()": "deleted",
    "(void)made().get<std::string_view>()": "deleted",
    "group.all_reduce(numbers)": "the group writes to these elements, so they cannot be const",
    "group.all_reduce(std::vector<double>(3))": "the group writes to these elements, so their container needs a name",
    "group.gather(numbers, floats)": "what a group reads and what it writes have elements of the same type",
    "(void)worker.recv<HasView>()": "a member of a received class owns its content",
}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_mistakes_do_not_compile(compiler: str) -> None:
    """All are compiled in one run; each line must have an error of its own."""
    text = PROLOGUE + MISTAKES + "}\n"
    done = compile_text(compiler, "c++20", text, *(["-ferror-limit=0"] if compiler != "g++" else []))
    refused = {int(line) for line in re.findall(r"<stdin>:(\d+):\d+: error:", done.stderr)}
    mistakes = {number for number, line in enumerate(text.splitlines(), 1) if line.startswith("{")}
    assert len(mistakes) == 26
    assert refused == mistakes, done.stderr


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_error_says_what_to_do_about_a_type(compiler: str) -> None:
    """Each is compiled by itself, because compilers report a template once."""

    def said(mistake: str) -> str:
        done = compile_text(compiler, "c++20", PROLOGUE + mistake + ";}\n")
        return done.stderr if done.returncode != 0 else "it compiles"

    assert said("worker.send(1)") == "it compiles"
    with ThreadPoolExecutor(max_workers=2) as threads:
        texts = dict(zip(EXPLAINED, threads.map(said, EXPLAINED), strict=True))
    wrong = {mistake: text for mistake, text in texts.items() if not re.search(EXPLAINED[mistake], text)}
    assert not wrong, "\n".join(f"{mistake}\n  {text}" for mistake, text in wrong.items())


def test_clang_warns_of_references_that_outlive_a_value() -> None:
    lines = """
using Reference = const miniray::Value&;
const std::string& s = static_cast<Reference>(made()).string(); (void)s;
const std::span<const double> d = static_cast<Reference>(made()).array<double>(); (void)d;
const miniray::Value& v = static_cast<Reference>(made())["a"]; (void)v;
}
"""
    assert compile_text("clang++-19", "c++20", PROLOGUE + lines).stderr.count("[-Wdangling]") == 3
