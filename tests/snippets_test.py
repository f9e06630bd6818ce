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


SNIPPETS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(blocks(page, "python"), start=1)
]


def run(*command: str | Path, typed: str | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, input=typed, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def missing_names(code: str) -> list[str]:
    """Names that a snippet uses and leaves to the reader: your function, your data."""
    command = [Path(sys.executable).parent / "ruff", "check", "--isolated", "--select", "F821", "-"]
    found = subprocess.run(command, input=code, capture_output=True, text=True, check=False).stdout
    return re.findall(r"Undefined name `(\w+)`", found)


def assert_printed(printed: str, code: str) -> None:
    """What the comments behind print() say, in that order."""
    where = 0
    for text in re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE):
        assert text in printed[where:], f"{text} is not printed, or not in its turn:\n{printed}"
        where = printed.index(text, where) + len(text)


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_compiles_and_runs_alone_if_it_is_complete(code: str, tmp_path: Path) -> None:
    compile(code, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    if not missing_names(code):
        script = tmp_path / "snippet.py"
        script.write_text(code)
        assert_printed(run(sys.executable, script), code)


def test_every_snippet_of_the_readme_is_complete() -> None:
    found = blocks(README, "python")
    assert len(found) >= 8
    for code in found:
        assert missing_names(code) == [], code


def test_the_readme_runs_in_order() -> None:
    """One snippet after the other in one session, as somebody would try them."""
    code = "\n".join(blocks(README, "python"))
    assert_printed(run(sys.executable, "-", typed=code), code)


def test_the_readmes_cpp_runs_as_written(tmp_path: Path) -> None:
    source = tmp_path / "readme.cpp"
    (text,) = blocks(README, "cpp")
    source.write_text(text)
    program = tmp_path / "readme"
    run(
        "c++", "-std=c++20", f"-I{ROOT}/include", f"-I{ROOT}/build/release/include", source,
        ROOT / "build/release/src/libminiray.a", "-lbearssl", "-o", program,
    )  # fmt: skip
    assert run(program) == "49\n"
