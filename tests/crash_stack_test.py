"""The stacks of C++ workers that crash or throw: names, files and lines, as far as the program has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = "crash_program.cpp"
TASKS = "task_stack_program.cpp"


def compile_program(program: Path, *options: str, source: str = SOURCE) -> Path:
    includes = [f"-I{ROOT}/include", f"-I{ROOT}/build/release/include"]
    library = ROOT / "build/release/src/libminiray.a"
    command = ["c++", "-std=c++20", "-O1", "-g", *options, *includes, ROOT / "tests" / source, library, "-o", program]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="module")
def with_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, with debug information."""
    return compile_program(tmp_path_factory.mktemp("programs") / "with_lines")


def stripped(program: Path, name: str, option: str) -> Path:
    made = program.with_name(name)
    if not made.exists():
        shutil.copy(program, made)
        subprocess.run(["strip", option, made], check=True)
    return made


@pytest.fixture
def with_names(with_lines: Path) -> Path:
    """The program without debug information, as without -g."""
    return stripped(with_lines, "with_names", "--strip-debug")


@pytest.fixture
def without_names(with_lines: Path) -> Path:
    return stripped(with_lines, "without_names", "--strip-all")


def printed(program: Path, how: str, **environment: str) -> str:
    """What the coordinator says of its worker's end."""
    ended = subprocess.run(
        [program, how], capture_output=True, text=True, timeout=60, check=True, env={**os.environ, **environment}
    )
    return ended.stdout


def stack(program: Path, how: str, **environment: str) -> list[str]:
    """The lines of the stack, without its title."""
    said = printed(program, how, **environment)
    found = re.search(r"C\+\+ stack at [\w ]+:\n((?:.+\n)+)", said)
    assert found, said
    return found[1].splitlines()


def line_of(text: str, source: str = SOURCE) -> int:
    """The number of the only line of the program with this text."""
    [number] = [i for i, line in enumerate((ROOT / "tests" / source).read_text().splitlines(), 1) if text in line]
    return number


def test_a_static_function_has_its_name_file_and_line(with_lines: Path) -> None:
    crash, work = stack(with_lines, "static")
    file = re.escape(str(ROOT / "tests" / SOURCE))
    assert re.fullmatch(rf"  \(anonymous namespace\)::hidden_crash\(int\) at {file}:(\d+)", crash)
    assert crash.endswith(f":{line_of('*nothing = value')}")
    assert re.fullmatch(rf"  work\(miniray::Handle&\) at {file}:(\d+)", work)
    assert work.endswith(f":{line_of('hidden_crash(1)')}")


def test_without_debug_information_names_are_left(with_names: Path) -> None:
    assert stack(with_names, "static") == ["  (anonymous namespace)::hidden_crash(int)", "  work(miniray::Handle&)"]


def test_a_lambda_has_a_name(with_lines: Path, with_names: Path) -> None:
    """The compiler has inlined it into std::function's code, or has not."""
    name = r"  work\(miniray::Handle&\)::\{lambda\(int\)#1\}(::operator\(\)\(int\) const)?"
    crash, in_lambda, work = stack(with_lines, "lambda")
    assert re.fullmatch(rf"{name} at .*:{line_of('hidden_crash(value);')}", in_lambda)
    crash, in_lambda, work = stack(with_names, "lambda")
    assert "hidden_crash" in crash
    assert re.fullmatch(name, in_lambda)
    assert work == "  work(miniray::Handle&)"


def test_a_stripped_program_has_places(without_names: Path) -> None:
    assert all(
        re.fullmatch(r"  (without_names|lib[\w.+-]+)\+0x[0-9a-f]+", line) for line in stack(without_names, "static")[:2]
    )


def test_a_recursion_is_folded(with_names: Path) -> None:
    assert stack(with_names, "recursion") == [
        "  (anonymous namespace)::hidden_crash(int)",
        "  (anonymous namespace)::recurse(int) ... 61 times",
        "  work(miniray::Handle&)",
    ]
    overflow, work = stack(with_names, "overflow")
    found = re.fullmatch(r"  \(anonymous namespace\)::overflow\(int\) ... (\d+) times", overflow)
    assert found
    assert int(found[1]) > 1000
    assert work == "  work(miniray::Handle&)"


def test_an_uncaught_exception_has_the_stack_of_its_throw(with_lines: Path) -> None:
    said = printed(with_lines, "throw")
    assert "raised std::out_of_range: no such row\n" in said
    thrown, work = stack(with_lines, "throw")
    assert "throw_here() at " in thrown
    assert thrown.endswith(f":{line_of('throw std::out_of_range')}")
    assert "work(miniray::Handle&) at " in work


def test_stacks_can_be_turned_off(with_lines: Path) -> None:
    assert "stack at the throw" not in printed(with_lines, "throw", MINIRAY_STACKS="0")
    assert all("hidden_crash" not in line for line in stack(with_lines, "static", MINIRAY_STACKS="0"))


def test_abort_is_where_it_was_called(with_names: Path) -> None:
    lines = stack(with_names, "abort")
    assert "abort" in lines[0]
    assert lines[1:] == ["  work(miniray::Handle&)"]


def test_asan_reports_as_ever(tmp_path: Path) -> None:
    program = compile_program(tmp_path / "with_asan", "-fsanitize=address")
    for how, error in (("used after delete", "heap-use-after-free"), ("static", "SEGV on unknown address")):
        ended = subprocess.run([program, how], capture_output=True, text=True, timeout=60, check=True)
        assert f"ERROR: AddressSanitizer: {error}" in ended.stderr
        assert f"ERROR: AddressSanitizer: {error}" in ended.stdout  # the coordinator has it too
        assert "Where it crashed:\nThe report of AddressSanitizer:\n" in ended.stdout


# --- Calls and tasks --------------------------------------------------------------------------------------------------
LAMBDA = r"\{lambda\(.*\)#\d+\}(::operator\(\)\(.*\) const)?"
IN_POOL = r"\(anonymous namespace\)::in_pool\(\)::" + LAMBDA.replace(r"\(.*\)#", r"\(\)#", 1) + "::" + LAMBDA
IN_MAIN = "main::" + LAMBDA
IN_WORKERS = IN_POOL.replace("in_pool", "in_workers")
CRASH, THROW = r"\(anonymous namespace\)::deep\(int\)", r"\(anonymous namespace\)::throws\(int\)"
# What is called, and the functions that its stack has, with texts of their lines.
STACKS = {
    "typed crash": {CRASH: "*nothing = value", IN_POOL: "// typed crash"},
    "registered crash": {CRASH: "*nothing = value", IN_MAIN: "// registered crash"},
    "typed throw": {THROW: "throw std::out_of_range", IN_POOL: "// typed throw"},
    "registered throw": {THROW: "throw std::out_of_range", IN_MAIN: "// registered throw"},
    "map": {THROW: "throw std::out_of_range", IN_MAIN: "// registered throw"},
    "timeout": {IN_POOL: "// timeout"},
    "method": {THROW: "throw std::out_of_range", IN_MAIN: "// method"},
    "work function": {CRASH: "*nothing = value", IN_WORKERS: "// work function"},
}
BUILDS = {"O0": ["-O0"], "O2": ["-O2"], "static": ["-O2", "-static-pie"]}


@pytest.fixture(scope="module", params=BUILDS)
def errors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What the program says of each call, if it has debug information and if it has none."""
    program = compile_program(tmp_path_factory.mktemp("programs") / "with_lines", *BUILDS[request.param], source=TASKS)
    said = {}
    for each in (program, stripped(program, "with_names", "--strip-debug")):
        parts = re.split(r"^== (.*)\n", printed(each, ""), flags=re.MULTILINE)
        said[each.name] = dict(zip(parts[1::2], parts[2::2], strict=True))
    return said


def stack_in(error: str) -> list[str]:
    found = re.search(r"C\+\+ stack[\w ]*:\n((?:  .+\n)+)", error)
    assert found, error
    return found[1].splitlines()


@pytest.mark.parametrize("called", STACKS)
def test_a_call_has_the_users_functions_in_its_stack_and_no_others(
    errors: dict[str, dict[str, str]], called: str
) -> None:
    for line, (name, text) in zip(stack_in(errors["with_lines"][called]), STACKS[called].items(), strict=True):
        assert re.fullmatch(rf"  {name} at .*/{TASKS}:{line_of(text, TASKS)}", line)
    for line, name in zip(stack_in(errors["with_names"][called]), STACKS[called], strict=True):
        assert re.fullmatch(f"  {name}", line)


def test_an_error_that_the_users_functions_have_not_thrown_has_no_stack(errors: dict[str, dict[str, str]]) -> None:
    for said in errors.values():
        assert said["wrong argument"].endswith('throw takes (int), and argument 1 is a string: "one"\n')
