"""What the compiler says of a typed call or message that cannot work: the cause, in words, and the cure."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).resolve().parent.parent / "include"
COMPILERS = [name for name in ("g++", "clang++", "clang++-19") if shutil.which(name)]

PROGRAM = """
#include <miniray/pool.hpp>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>
double square(double x) {{ return x * x; }}
struct Grid {{ double scale; int cells[4]; }};
struct Board {{ int squares[8][8]; std::string name; }};
struct Named {{ int id; char name[32]; double x; }};
struct Single {{ int id; int only[1]; }};
struct Listed {{
  static constexpr auto fields() {{ return miniray::fields("cells", &Listed::cells); }}
  int cells[4];
}};
struct Pair {{ int a, b; }};
class Given {{
 public:
  Given(int a, int b) : sum(a + b) {{}}
  int sum;
}};
struct Plain {{ Given given; Pair pair; std::array<Pair, 2> pairs; std::vector<int> numbers; std::string text; }};
static_assert(!miniray::detail::has_c_array<Plain>());
void run(miniray::Pool& pool, miniray::Caller& caller, miniray::Channel& channel, int captured) {{
  (void)captured, (void)pool, (void)caller, (void)channel;
  {line}
}}
"""


def compiled(compiler: str, line: str) -> subprocess.CompletedProcess[str]:
    """Compile a program that has this line."""
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{INCLUDE}", "-x", "c++", "-"]
    return subprocess.run(
        command, input=PROGRAM.format(line=line), capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("(void)pool.submit(square);", "takes another number of arguments than it is given"),
        ("(void)caller.call(square, 1, 2);", "takes another number of arguments than it is given"),
        ('(void)pool.submit(square, "three");', "this argument does not convert to the parameter"),
        ("(void)caller.call_async([](int x) { return x; }, 2.5);", "this argument does not convert to the parameter"),
        ("(void)pool.submit([captured](int x) { return x + captured; }, 1);", "pass what it holds as arguments"),
        ("(void)pool.submit([=](int x) { return x; }, 1);", "no default capture: write [] in place of [=]"),
        ("(void)pool.map([](int x, int y) { return x + y; }, std::vector{1});", "a function of one parameter"),
        ("(void)pool.submit([](int& x) { ++x; }, 1);", "takes its arguments by value or by const reference"),
        ("std::future<double> f = pool.submit(square, 1);", "#include <miniray/std_future.hpp>"),
        ('(void)caller.call<std::span<const double>>("f");', "a result owns its content"),
        ("(void)caller.call([] { return std::vector<std::string_view>(); });", "a result owns its content"),
        ('(void)pool.map<std::string_view>("f", std::vector{1});', "a result owns its content"),
        ('(void)pool.submit<std::array<std::string_view, 2>>("f").get();', "a result owns its content"),
        ("(void)channel.recv<std::array<std::string_view, 2>>();", "a received object owns its content"),
        (
            "channel.send(Grid{});",
            "a member that is a C array, which miniray cannot send or receive: make it a std::array",
        ),
        ("(void)channel.recv<Grid>();", "a member that is a C array"),
        ("(void)channel.recv<std::vector<Board>>();", "a member that is a C array"),
        ("channel.send(Named{});", "a member that is a C array"),
        ("channel.send(Single{});", "a C array of one element"),
        ("channel.send(Listed{});", "a member in the description of this class is a C array"),
    ],
)
def test_a_mistake_is_named(compiler: str, line: str, says: str) -> None:
    """A static_assert names it, beside what else the compiler says."""
    if "std::future" in line:
        line = f"}}\n#include <future>\nvoid more(miniray::Pool& pool) {{ {line}"
    result = compiled(compiler, line)
    assert result.returncode != 0, line
    assert says in result.stderr, result.stderr[-3000:]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_calls_that_are_right_compile(compiler: str) -> None:
    """The same program with no mistake has no error, so the tests above fail for the reason that they name."""
    right = '(void)pool.submit(square, 3); (void)pool.submit([](std::string y) { return y.size(); }, "a");'
    right += " channel.send(Pair{1, 2}); (void)channel.recv<std::array<Pair, 2>>();"
    result = compiled(compiler, right + " (void)pool.map(square, std::vector{1, 2}); caller.call([] {});")
    assert result.returncode == 0, result.stderr[-3000:]
