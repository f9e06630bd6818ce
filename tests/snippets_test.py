"""The code in README.md and docs/ runs as it is written, and prints what its comments say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


SNIPPETS = {
    f"{page.stem}-{number}": code for page in PAGES for number, code in enumerate(blocks(page, "python"), start=1)
}
# Snippets that are not run here, and why. Every other one is complete, and runs alone as a script.
NOT_RUN = dict.fromkeys(
    (name for name in SNIPPETS if name.startswith("notebooks-")),
    "cells of one notebook; notebook_docs_test.py runs them in order, in a kernel",
)
# What `python -i` says when something that was pasted into it fails.
COMPLAINTS = re.compile(r"Traceback|\w*Error\b|^Exception", re.MULTILINE)


def run(*command: str | Path, typed: str | None = None, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, input=typed, capture_output=True, text=True, timeout=110, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_printed(printed: str, code: str) -> None:
    """What the comments behind print() say, in that order."""
    where = 0
    for text in re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE):
        assert text in printed[where:], f"{text} is not printed, or not in its turn:\n{printed}"
        where = printed.index(text, where) + len(text)


@pytest.mark.parametrize("name", [name for name in SNIPPETS if name not in NOT_RUN])
def test_a_snippet_runs_alone(name: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(SNIPPETS[name])
    assert_printed(run(sys.executable, script, cwd=tmp_path), SNIPPETS[name])


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_snippet_that_is_not_run_compiles(name: str) -> None:
    compile(SNIPPETS[name], name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.parametrize("name", [name for name in SNIPPETS if name.startswith("README-")])
def test_a_snippet_of_the_readme_can_be_pasted_into_an_interpreter(name: str, tmp_path: Path) -> None:
    """There a compound statement ends at an empty line, and only there."""
    code = SNIPPETS[name]
    command = [sys.executable, "-q", "-i"]
    done = subprocess.run(
        command, input=code + "\n", capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path
    )
    assert COMPLAINTS.search(done.stderr) is None, done.stderr
    assert_printed(done.stdout, code)


def test_the_readme_runs_in_order() -> None:
    """One snippet after the other in one session, as somebody would try them."""
    code = "\n".join(blocks(README, "python"))
    assert_printed(run(sys.executable, "-", typed=code), code)


def test_the_readme_runs_in_order_as_one_script(tmp_path: Path) -> None:
    """What comes after the first workers is not there when another process imports the script."""
    code = "\n".join(blocks(README, "python"))
    (tmp_path / "readme.py").write_text(code)
    assert_printed(run(sys.executable, tmp_path / "readme.py"), code)


def run_cpp(text: str, folder: Path) -> str:
    source = folder / "program.cpp"
    source.write_text(text)
    program = folder / "program"
    run(
        "c++", "-std=c++20", f"-I{ROOT}/include", f"-I{ROOT}/build/release/include", source,
        ROOT / "build/release/src/libminiray.a", "-lbearssl", "-o", program,
    )  # fmt: skip
    return run(program)


def test_the_readmes_cpp_runs_as_written(tmp_path: Path) -> None:
    (text,) = blocks(README, "cpp")
    assert run_cpp(text, tmp_path) == "49\n"


GUIDE = blocks(ROOT / "docs/cpp_guide.md", "cpp")


@pytest.mark.parametrize("number", range(len(GUIDE)))
def test_the_programs_of_the_cpp_guide_print_what_their_comments_say(number: int, tmp_path: Path) -> None:
    said = re.findall(r"^ *std::printf\(.*\); +// (.+)$", GUIDE[number], re.MULTILINE)
    assert said
    assert run_cpp(GUIDE[number], tmp_path).splitlines() == said


HEAD = """
#include <miniray/miniray.hpp>
#include <miniray/std_future.hpp>
#include <chrono>
#include <cmath>
#include <ranges>
using namespace std::chrono_literals;
"""
# A function as it stands in a block: on one line, or up to a brace at the begin of a line.
FUNCTION = re.compile(r"^[\w:<>]+ \w+\(.*\) \{(?:.*\}|\n(?:.*\n)*?\})$", re.MULTILINE)


def program_of(block: str, before: str = "", after: str = "", types: str = "") -> str:
    """A program of a block that has functions and statements. Its time-outs are long, so that load does not matter."""
    block = re.sub(r"\b(500ms|2s)\b", "60s", block)
    functions = "\n".join(FUNCTION.findall(block))
    return f"{HEAD}{types}\n{functions}\nint main() {{\n{before}\n{FUNCTION.sub('', block)}\n{after}\n}}\n"


def test_the_cpp_of_calls_runs_as_written(tmp_path: Path) -> None:
    calls, objects, work, futures = blocks(ROOT / "docs/calls.md", "cpp")
    types = """
class Counter {
 public:
  explicit Counter(int start) : count_(start) {}
  int increment(int by) { return count_ += by; }
 private:
  int count_;
};
miniray::Value step(const miniray::Value& value) { return value; }
"""
    registered, created = objects.split("\n\n")
    more = """
std::vector<miniray::CallFuture<double>> futures{caller.call_async(square, 1), caller.call_async(square, 2)};
miniray::Worker own(work);
own.send(7);
std::printf("%g %g %g %d %g", nine, also_nine, squares.at(9), six, future.get());
std::printf(" %lld", static_cast<long long>(own.recv().integer()));
"""
    after = 'std::printf(" %g %zu %g %g\\n", std::get<1>(both), all.size(), standard.get(), five);'
    printed = run_cpp(program_of(calls + created + more + work + futures, registered, after, types), tmp_path)
    assert printed == "9 9 81 6 16 7 4 2 16 5\n"


def test_the_cpp_of_pools_runs_as_written(tmp_path: Path) -> None:
    on_cores, on_nodes = blocks(ROOT / "docs/pool.md", "cpp")
    before = """
const int config = 7;
miniray::registry().add("train", [](double x) { return x; });
"""
    after = 'std::printf("%g %g %zu %g\\n", nine, sixteen.get(), squares.size(), trained.get());'
    on_cores = on_cores.replace("pool(4)", "pool(4, {.num_gpus = 1})")  # as if there was one
    assert run_cpp(program_of(on_cores, before, after), tmp_path) == "9 16 10 7\n"
    square = "double square(double x) { return x * x; }\n"
    on_nodes = on_nodes.replace(
        '{{"node1", 8}, {"node2", 8}}', '{{.host = "localhost", .num_workers = 1, .base_port = 0}}'
    )
    end = 'std::printf("%g\\n", pool.submit(square, 3).get());\n}\n'
    assert run_cpp(HEAD + square + on_nodes + end, tmp_path) == "9\n"


def test_the_cpp_of_collectives_runs_as_written(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs/collectives.md", "cpp")
    before = """
const auto work = [](miniray::Handle& handle) {
  miniray::Group group = miniray::Group::join(handle);
"""
    after = """
  handle.send(gradients);
};
std::vector<miniray::Worker> workers;
for (int rank = 0; rank < 3; ++rank) workers.emplace_back(work);
miniray::create_group(workers);
for (miniray::Worker& worker : workers) std::printf("%g\\n", worker.recv<std::vector<float>>().at(999));
"""
    assert run_cpp(program_of(block, before, after), tmp_path) == "3\n3\n3\n"


def test_the_cpp_of_typed_messages_runs_as_written(tmp_path: Path) -> None:
    """The first block is a program. The others get the types that they mention."""
    program, described, outside, convert, values = blocks(ROOT / "docs/cpp_messages.md", "cpp")
    types = """
namespace vendor { struct Pose { std::vector<double> p; int hidden; }; }
enum class Color { red, blue };
class Interval {
 public:
  Interval(double from, double to) : from_(from), to_(to) {}
  double begin() const { return from_; }
  double end() const { return to_; }
 private:
  double from_, to_;
};
"""
    uses = """
void use(miniray::Worker& worker) {
  worker.send(described::Point());
  worker.send({vendor::Pose(), Color::red, Interval(1, 2)});
  (void)worker.recv<std::tuple<described::Point, vendor::Pose, Color, Interval>>();
}
"""
    wrapped = (
        f"namespace described {{\n{described}}}\nvoid values(miniray::Worker& worker, double& total) {{\n{values}}}\n"
    )
    assert run_cpp(program + types + outside + convert + wrapped + uses, tmp_path) == "2 1\n"
