"""The site that `make docs` builds: the pages of docs/, and a reference from docstrings and headers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import miniray

ROOT = Path(__file__).resolve().parents[2]

project = "MiniRay"
copyright = "the MiniRay authors"
version = release = miniray.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "breathe"]
html_theme = "furo"
html_title = f"MiniRay {release}"
html_static_path: list[str] = []
html_copy_source = False
exclude_patterns = ["site"]
nitpicky = False  # types of the standard library have no page here
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
suppress_warnings = [
    "misc.highlighting_failure",  # snippets with dots for what is left out
    "duplicate_declaration.cpp",  # every header opens the namespace, and specializes templates
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False

breathe_projects = {"miniray": str(ROOT / "build/docs/xml")}
breathe_default_project = "miniray"
breathe_default_members = ("members",)
breathe_show_include = False


def _link_to_files(_app: object, _name: str, source: list[str]) -> None:
    """What is beside docs/ has no page: it is offered as a file."""
    source[0] = re.sub(r"\]\((\.\./[^)#]+\.md)\)", r"](path:\1)", source[0])


def _show_code(_app: object, _what: str, _name: str, _thing: object, _options: object, lines: list[str]) -> None:
    """An indented paragraph of a docstring is code."""
    shown: list[str] = []
    in_code = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not in_code and (not shown or not shown[-1].strip()):
            shown += [".. code-block:: python", ""]
            in_code = True
        elif line.strip() and not indented:
            in_code = False
        shown.append(line)
    lines[:] = shown


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _link_to_files)
    app.connect("autodoc-process-docstring", _show_code)
