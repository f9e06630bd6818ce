"""The documentation: every link leads somewhere, the reference has every public name, and the site builds."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from missing import NOT_HERE
from repository_test import tracked

import miniray

LINK = re.compile(r"(?<!\\)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "`x`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def anchors(page: Path) -> set[str]:
    """As GitHub and MyST name the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(
        r"^#+ +(.+?) *#*$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), re.M
    ):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        number, unique = 0, name
        while unique in found:
            number += 1
            unique = f"{name}-{number}"
        found.add(unique)
    return found


def test_every_link_within_the_repository_leads_somewhere(root: Path) -> None:
    broken = []
    for page in tracked(root, "*.md"):
        for match in LINK.finditer(without_code(page.read_text())):
            link = match.group(1) or match.group(2)
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or not target.is_relative_to(root):
                broken.append(f"{page.relative_to(root)}: {link}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                broken.append(f"{page.relative_to(root)}: {link}: no such heading")
    assert not broken, "\n".join(broken)


def test_every_page_is_in_the_table_of_contents(root: Path) -> None:
    index = (root / "docs/index.md").read_text()
    listed = re.findall(r"^[a-z_/]+$", index, re.M)
    pages = [page.relative_to(root / "docs").with_suffix("").as_posix() for page in tracked(root, "docs/*.md")]
    assert sorted([*listed, "index"]) == sorted(pages)


def test_the_reference_has_every_public_name(root: Path) -> None:
    reference = (root / "docs/api/python.md").read_text()
    errors = [name for name in miniray.__all__ if getattr(getattr(miniray, name), "__module__", "") == "miniray.errors"]
    assert "automodule:: miniray.errors" in reference
    for name in sorted({*miniray.__all__} - {*errors} - {"__version__"}):
        assert re.search(rf"\bminiray\.{name}\b", reference), f"docs/api/python.md has no {name}"


def test_the_reference_has_every_header(root: Path) -> None:
    reference = (root / "docs/api/cpp.md").read_text()
    listed = re.findall(r"^```\{doxygenfile\} (\w+\.hpp)$", reference, re.M)
    headers = {header.name for header in tracked(root, "include/miniray/*.hpp*")}
    assert sorted([*listed, "miniray.hpp", "version.hpp.in"]) == sorted(headers)
    # CMake makes version.hpp, so Doxygen does not see it.
    template = (root / "include/miniray/version.hpp.in").read_text()
    section = reference.partition("\n## version.hpp\n")[2].partition("\n## ")[0]
    for name in [*re.findall(r"^#define (\w+)", template, re.M), "miniray::version"]:
        assert f"`{name}`" in section, f"docs/api/cpp.md has no {name}"


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    shutil.which("doxygen") is None or importlib.util.find_spec("sphinx") is None,
    reason=NOT_HERE + "what the site needs, which `make docs` installs",
)
def test_the_site_builds_without_warnings(root: Path, tmp_path: Path) -> None:
    """As `make docs` does it, with its files elsewhere."""
    settings = (root / "docs/site/Doxyfile").read_text().replace("build/docs", str(tmp_path))
    subprocess.run(["doxygen", "-"], input=settings, cwd=root, text=True, check=True, timeout=100)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site"]
    command += ["-d", str(tmp_path / "doctrees")]
    command += ["-D", f"breathe_projects.miniray={tmp_path}/xml", "docs", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=280, check=False)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    page = (tmp_path / "site/api/python.html").read_text()
    for name in ("Pool.submit", "Worker.call_remote", "CallFuture.result", "WorkerDied"):
        assert f'id="miniray.{name}"' in page or f'.{name}"' in page, name
    assert "call_async" in (tmp_path / "site/api/cpp.html").read_text()
