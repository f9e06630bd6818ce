"""The repository keeps its own rules."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import miniray

LAYERS = [
    "base",
    "hardware",
    "wire",
    "channel",
    "worker",
    "group",
    "launch",
    "cluster",
    "collective",
    "calls",
    "store",
    "supervise",
    "tasks",
    "inspect",
    "cli",
]

# The layer of each public header. miniray.hpp includes them all.
PUBLIC_HEADERS = {
    "base": ["error", "export", "limits", "log", "owned", "seconds", "version"],
    "hardware": ["hardware"],
    "wire": ["array", "value", "fields", "convert_core", "convert_types", "convert_containers", "convert", "message"],
    "channel": ["channel"],
    "group": ["group"],
    "worker": ["handle", "worker", "remote_worker", "worker_server"],
    "launch": ["launch"],
    "cluster": ["cluster"],
    "collective": ["nccl", "training_group", "doctor"],
    "calls": ["registry", "typed_function", "future", "continuation", "coroutine", "std_future", "calls"],
    "supervise": ["event_log", "restart_policy", "supervised_worker", "group_run"],
    "tasks": ["task_options", "pool"],
    "cli": ["miniray"],
}
LAYER_OF_HEADER = {f"miniray/{name}.hpp": layer for layer, names in PUBLIC_HEADERS.items() for name in names}


def tracked(root: Path, *patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in listed.stdout.split()]


def layer_of(included: str) -> str:
    """The layer of a header, as an #include names it."""
    return LAYER_OF_HEADER[included] if included.startswith("miniray/") else included.partition("/")[0]


def assert_includes_downwards(file: Path, layer: str) -> None:
    for included in re.findall(r'#include "([^"]+/[^"]+)"', file.read_text()):
        # A unit test may use what a user has.
        if included.startswith("tests/") or (file.name.endswith("_test.cpp") and included.startswith("miniray/")):
            continue
        below = LAYERS.index(layer_of(included)) <= LAYERS.index(layer)
        assert below, f"{file} is of the layer {layer}, and includes {included} of {layer_of(included)}"


def test_a_layer_includes_itself_and_those_below(root: Path) -> None:
    for file in tracked(root, "src"):
        if file.suffix in (".cpp", ".hpp"):
            assert_includes_downwards(file, file.relative_to(root).parts[1])


def test_every_public_header_has_a_layer_and_includes_downwards(root: Path) -> None:
    names = {f"miniray/{file.name.removesuffix('.in')}" for file in tracked(root, "include")}
    assert names == set(LAYER_OF_HEADER)
    for file in tracked(root, "include/*.hpp"):
        assert_includes_downwards(file, LAYER_OF_HEADER[f"miniray/{file.name}"])


def test_public_headers_include_no_private_ones(root: Path) -> None:
    for file in tracked(root, "include"):
        for included in re.findall(r'#include "([^"]+)"', file.read_text()):
            assert included.startswith("miniray/"), f"{file} includes {included}"


def test_public_headers_mark_what_a_shared_library_exports(root: Path) -> None:
    for file in tracked(root, "include/*.hpp"):
        assert "\nnamespace miniray {" not in file.read_text(), f'{file}: write "namespace MINIRAY_API miniray {{"'


def test_fork_and_system_calls_stay_where_they_belong(root: Path) -> None:
    for file in tracked(root, "src"):
        if file.suffix != ".cpp" or file.name.endswith(("_test.cpp", "_fuzz.cpp")):
            continue
        text = re.sub(r"//.*|\"[^\"]*\"", "", file.read_text())
        if file.name != "process.cpp":
            assert not re.search(r"(?<![\w:.>])fork\(\)", text), file
        if file.relative_to(root).parts[1] != "base":
            found = re.search(
                r"(?<![\w.>:])(?:::)?(recvmsg|sendmsg|epoll_\w+|mmap|memfd_create|poll|waitid|wait4)\(", text
            )
            assert not found, f"{file} calls {found and found.group(0)}"


def test_limits_are_in_one_header_and_python_reads_them_all(root: Path) -> None:
    header = (root / "include/miniray/limits.hpp").read_text()
    names = set(re.findall(r"^inline constexpr [\w:]+ (\w+) =", header, re.MULTILINE)) - {"kib", "mib", "gib"}
    assert names == set(vars(miniray.limits))
    for file in tracked(root, "src/*.[ch]pp", "python/*.[ch]pp"):
        if not file.name.endswith(("_test.cpp", "_fuzz.cpp", "_scene.hpp")):
            strays = stray_limits(r"constexpr [\w:]+ ([^;]*);", file.read_text())
            assert not strays, f"{file}: {strays} belong into limits.hpp"
    for file in tracked(root, "python/miniray/*.py"):
        text = file.read_text()
        strays = stray_limits(r"^ *(\w+(?:: \w+)? = .*)", text) + re.findall(r"\[:\d{2,}\]", text)
        assert not strays, f"{file}: {strays} belong into limits.hpp"


# Numbers with a unit that are no limits: of the clock and the kernel, and the sizes of what formats are made of.
NOT_LIMITS = """
    century_s step_s_max entries_max ns_per_ms stack_top_bytes record_bytes text_bytes token_bytes nonce_bytes
    proof_bytes sealing_bytes client_hello_bytes server_head_bytes open_bytes tag_bytes record_head_bytes
    ring_head_bytes slot_head_bytes in_place_head_bytes
"""


def stray_limits(definition: str, text: str) -> list[str]:
    """The names in the definitions of a source that end with a unit and are set to a number."""
    named = r"\b(\w+_(?:ms|us|ns|s|days|max|min|bytes|chars)|max_\w+)(?:: \w+)? = (?:0?\.\d|[1-9])[\d'._]*(?![\w.])"
    defined = re.findall(definition, text, re.MULTILINE)
    names = [name for line in defined for name in re.findall(named, line, re.IGNORECASE)]
    return [name for name in names if name not in NOT_LIMITS.split()]


def test_files_are_short_and_say_what_they_are(root: Path) -> None:
    for file in tracked(root, "*.hpp", "*.cpp", "*.py"):
        lines = file.read_text().splitlines()
        assert len(lines) < 600, f"{file} has {len(lines)} lines"
        has_header = file.with_suffix(".hpp").exists() or (root / "include/miniray" / f"{file.stem}.hpp").exists()
        if file.suffix == ".hpp" or (file.suffix == ".py" and lines) or (file.suffix == ".cpp" and not has_header):
            opens = (
                lines[0].startswith(("//", '"""', "#!"))
                or file.name in ("main.cpp",)
                or file.name.endswith("_test.cpp")
            )
            assert opens, f"{file} does not open by saying what it is"


def test_the_command_prints_its_limits(root: Path) -> None:
    command = root / "build/release/miniray"
    printed = subprocess.run([command, "limits", "--json"], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["depth_max"] == 256
    table = subprocess.run([command, "limits"], capture_output=True, text=True, check=True).stdout
    assert "message_bytes_max" in table
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("miniray ")
    wrong = subprocess.run([command, "limit"], capture_output=True, text=True, check=False)
    assert wrong.returncode != 0
    assert "--help" in wrong.stderr
