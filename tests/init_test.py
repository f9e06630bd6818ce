"""C++ programs whose copies on the nodes do not reach miniray::init are told exactly that."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = """
#include <miniray/miniray.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int argc, char** argv) {
  const char* const how = std::getenv("HOW");
  const auto is = [how](const char* text) { return std::strcmp(how, text) == 0; };
  int workers = 1;
  if (is("exits") && argc > 1) return 0;
  if (is("throws") && argc > 1) workers = std::stoi(argv[1]);
  if (is("crashes") && argc > 1) *static_cast<volatile int*>(nullptr) = 1;
  if (is("refuses") && argc > 1) {
    std::fprintf(stderr, "usage: program\\n");
    return 2;
  }
  if (is("refuses the server") && argc > 1 && std::strstr(argv[1], "server") != nullptr) {
    std::fprintf(stderr, "usage: program\\n");
    return 2;
  }
  miniray::init(argc, argv, {{"miniray.serve_calls", miniray::serve_calls}});
  try {
    miniray::Cluster cluster({{.host = "localhost", .num_workers = workers, .base_port = 0}});
    miniray::Pool pool(cluster);
    std::printf("it works\\n");
  } catch (const std::exception& error) {
    std::printf("%s\\n", error.what());
  }
}
"""
STARTED = "this program was started a second time on this machine, to look after the connections to the nodes, and it "
CURE = " before it called miniray::init. On a node the program has to reach miniray::init: call miniray::init("


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.cpp").write_text(PROGRAM)
    includes = [f"-I{ROOT}/include", f"-I{ROOT}/build/release/include"]
    library = ROOT / "build/release/src/libminiray.a"
    command = ["c++", "-std=c++20", *includes, folder / "program.cpp", library, "-lbearssl", "-o", folder / "program"]
    subprocess.run(command, check=True)
    return folder / "program"


def printed(program: Path, how: str) -> str:
    """What the program prints whose copies end in this way."""
    environment = {**os.environ, "HOW": how}
    ended = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True, env=environment)
    return ended.stdout


@pytest.mark.parametrize(
    ("how", "ended"),
    [
        ("exits", STARTED + "ended with exit code 0"),
        ("throws", STARTED + "was ended by signal 6 (Aborted)"),
        ("crashes", STARTED + "was ended by signal 11 (Segmentation fault)"),
        ("refuses", STARTED + "ended with exit code 2"),
        ("refuses the server", "its program ended with exit code 2"),
    ],
)
def test_a_copy_that_does_not_reach_init_is_told_so(program: Path, how: str, ended: str) -> None:
    said = printed(program, how)
    assert ended + CURE in said
    assert "memory" not in said
    assert "killed" not in said


def test_a_copy_that_reaches_init_works(program: Path) -> None:
    assert printed(program, "reaches init") == "it works\n"
