"""How other C++ projects use the library: find_package, pkg-config, FetchContent, static or shared."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAIN = """
#include <cstdio>
#include <miniray/miniray.hpp>
#if MINIRAY_VERSION != MINIRAY_VERSION_MAJOR * 10000 + MINIRAY_VERSION_MINOR * 100 + MINIRAY_VERSION_PATCH
#error the version macros do not agree
#endif
int main() {
  miniray::Worker worker([](miniray::Handle& handle) {
    handle.send(handle.recv());
    (void)handle.recv();
    throw miniray::ValueError("as asked");
  });
  worker.send({{"cmd", "echo"}});
  const miniray::Value message = worker.recv();
  worker.send({{"cmd", "fail"}});
  try {
    (void)worker.recv();
  } catch (const miniray::WorkerError& error) {
    std::printf("%s %s %s\\n", miniray::version, message["cmd"].string().c_str(), error.type().c_str());
  }
}
"""
FIND = "find_package(miniray 0.1 REQUIRED)\n"
USE = "add_executable(user main.cpp)\ntarget_link_libraries(user PRIVATE miniray::miniray)\n"


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_project(folder: Path, cmake: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"CMakeLists.txt": f"cmake_minimum_required(VERSION 3.25)\nproject(user CXX)\n{cmake}", "main.cpp": MAIN}
    for name, text in texts.items():
        file = folder / name
        if not file.exists() or file.read_text() != text:  # what is not newer is not built again
            file.write_text(text)
    return folder


def assert_it_works(printed: str) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+ echo miniray::ValueError\n", printed)


# --- Installed --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed library, which was moved after the installation."""
    folder = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", ROOT / "build/release", "--component", "development", "--prefix", folder / "first")
    (folder / "first").rename(folder / "moved")
    return folder / "moved"


def test_cmake_finds_the_library(prefix: Path, tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", FIND + USE)
    run("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", project / "build")
    assert_it_works(run(project / "build/user"))


def test_unknown_components_are_refused(prefix: Path, tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", "find_package(miniray 0.1 REQUIRED COMPONENTS gpu)\n")
    command = ["cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert 'miniray has no component "gpu"' in " ".join(done.stderr.split())
    write_project(project, FIND.replace("REQUIRED", "REQUIRED OPTIONAL_COMPONENTS gpu") + USE)
    run(*command)


def test_pkg_config_finds_the_library(prefix: Path, tmp_path: Path) -> None:
    [folder] = prefix.glob("**/pkgconfig")
    words = run("pkg-config", "--cflags", "--libs", "miniray", PKG_CONFIG_PATH=str(folder)).split()
    (tmp_path / "main.cpp").write_text(MAIN)
    run("c++", "-std=c++20", tmp_path / "main.cpp", *words, "-o", tmp_path / "user")
    assert_it_works(run(tmp_path / "user"))
    version = run("pkg-config", "--modversion", "miniray", PKG_CONFIG_PATH=str(folder)).strip()
    assert run(tmp_path / "user").startswith(version + " ")


def test_nothing_installed_names_a_path_of_the_build_machine(prefix: Path) -> None:
    files = [file for file in prefix.rglob("*") if file.is_file()]
    assert {"libminiray.a", "miniray.pc", "miniray-config.cmake", "version.hpp", "miniray"} <= {f.name for f in files}
    for file in files:
        content = file.read_bytes()
        for path in (ROOT, prefix.parent, Path.home()):
            assert len(path.parts) < 2 or os.fsencode(path) + b"/" not in content, f"{file} names {path}"
        if file.suffix in (".cmake", ".pc"):
            assert not re.search(rb"[\";:]/[a-z]", content), f"{file} has an absolute path"


# --- As a part of another project -------------------------------------------------------------------------------------
FETCH = """
include(FetchContent)
FetchContent_Declare(miniray SOURCE_DIR {root})
FetchContent_MakeAvailable(miniray)
"""
REPORT = """
get_directory_property(options COMPILE_OPTIONS)
set(seen "")
foreach(name CMAKE_BUILD_TYPE CMAKE_UNITY_BUILD CMAKE_CXX_STANDARD CMAKE_POSITION_INDEPENDENT_CODE BUILD_TESTING
        CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CXX_VISIBILITY_PRESET CMAKE_CXX_FLAGS options)
  string(APPEND seen "${name}=${${name}}\\n")
endforeach()
file(WRITE ${CMAKE_BINARY_DIR}/seen.txt "${seen}")
"""


def test_a_parent_project_gets_the_library_alone_and_keeps_its_settings(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", FETCH.format(root=ROOT) + USE + REPORT)
    build = project / "build"
    run("cmake", "-S", project, "-B", build, "-G", "Ninja", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    seen = dict(line.split("=") for line in (build / "seen.txt").read_text().splitlines())
    assert {name: value for name, value in seen.items() if value} == {}

    listed = run("cmake", "--build", build, "--target", "help")
    targets = re.findall(r"^([\w.+-]+): phony$", listed, re.MULTILINE)
    files = {target for target in targets if "." in target}
    own = set(targets) - files - {"all", "clean", "help", "edit_cache", "rebuild_cache", "list_install_components"}
    own = {target for target in own if not target.startswith("install")}
    assert "miniray" in own
    assert not {target for target in own if not target.startswith("miniray")}
    assert not {target for target in own if re.search("test|bench|example|command|core", target)}

    for entry in json.loads((build / "compile_commands.json").read_text()):
        assert "-Werror" not in entry["command"]
        assert "ccache" not in entry["command"]
    run("cmake", "--install", build, "--prefix", tmp_path / "prefix")
    assert not [file for file in tmp_path.glob("prefix/**/*") if file.is_file()]


def build_project(name: str, *options: str) -> Path:
    """The build folder of a project that MiniRay is a part of. It stays, so that only changes are built."""
    project = write_project(ROOT / "build" / name, FETCH.format(root=ROOT) + USE)
    build = project / "build"
    run("cmake", "-S", project, "-B", build, "-G", "Ninja", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", *options)
    run("cmake", "--build", build)
    return build


@pytest.mark.timeout(900)
def test_a_static_library_works() -> None:
    build = build_project("static-project")
    assert [file.suffix for file in build.rglob("libminiray.*")] == [".a"]
    assert_it_works(run(build / "user"))


@pytest.fixture(scope="module")
def with_shared_library() -> Path:
    return build_project("shared-project", "-DBUILD_SHARED_LIBS=ON", "-DMINIRAY_INSTALL=ON")


@pytest.mark.timeout(900)
def test_a_shared_library_works_and_exports_nothing_but_miniray(with_shared_library: Path, tmp_path: Path) -> None:
    assert_it_works(run(with_shared_library / "user"))
    run("cmake", "--install", with_shared_library, "--prefix", tmp_path / "prefix")
    [library] = [file for file in tmp_path.glob("prefix/**/libminiray.so.*") if not file.is_symlink()]
    lines = run("nm", "--dynamic", "--defined-only", "--demangle", library).splitlines()
    symbols = [line.split(maxsplit=2)[2] for line in lines]
    assert any(symbol.startswith("miniray::Worker::send(") for symbol in symbols)
    of = r"(typeinfo (name )?for |vtable for |(non-)?virtual thunk to |guard variable for )?"
    # The return type of a function template stands before its name.
    foreign = [symbol for symbol in symbols if not re.match(rf"{of}(\S+ )*?(\S+ )?miniray::", symbol)]
    assert foreign == []
    # What public headers do not declare is hidden.
    assert not [symbol for symbol in symbols if re.match("miniray::(system|LocalProcess|StackTrace)::", symbol)]

    project = write_project(tmp_path / "project", FIND + USE)
    run("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    run("cmake", "--build", project / "build")
    assert_it_works(run(project / "build/user"))
