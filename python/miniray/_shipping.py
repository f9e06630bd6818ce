"""The code that a cluster copies to its nodes: the script and the modules beside it. An interactive session has no
script; its code is the modules of the current folder.

On the coordinator, `collect` finds the files, and the core sends those that a node does not have. On the node,
`prepare` makes them importable.
"""

from __future__ import annotations

import importlib.util
import json
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from miniray import _functions, _spawned

_SUFFIXES = (".py", ".so")
_SKIPPED = ("__pycache__", "node_modules", "site-packages", "dist-packages")


def collect(work_fn: str, ship_code: bool) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Return the files, as pairs (path in the bundle, path on this machine), and the settings for `prepare`."""
    roots: list[str] = []
    main = _main_specification(roots)
    module_root = _root_of(work_fn)
    if module_root is not None and module_root not in roots:
        roots.append(module_root)
    files = (
        []
        if not ship_code
        else [
            (f"{number}/{path}", os.path.join(root, path))
            for number, root in enumerate(roots)
            for path in _modules(root)
        ]
    )
    return files, {"main": main, "roots": len(roots), "argv": sys.argv, "folders": roots}


def _main_specification(roots: list[str]) -> dict[str, Any] | None:
    """Return how the nodes import the script, or None if there is none. Its folder becomes the first root."""
    main = sys.modules["__main__"]
    path = _spawned.file_of(main)
    if path is None or _is_installed(os.path.abspath(path)):
        if any(entry in ("", os.getcwd()) for entry in sys.path):
            roots.append(os.getcwd())  # a session has no script; the modules that it imports are in this folder
        return None
    path = os.path.abspath(path)
    if main.__spec__ is None:
        roots.append(os.path.dirname(path))
        return {"main_module": None, "main_path": os.path.basename(path)}
    name = main.__spec__.name
    root = path
    for _ in range(name.count(".") + 1 + (os.path.basename(path) == "__init__.py")):
        root = os.path.dirname(root)
    roots.append(root)
    return {"main_module": name, "main_path": None}


def _root_of(work_fn: str) -> str | None:
    """Return the folder with the function's module, or None if the module is installed or not found."""
    top = work_fn.split(".", maxsplit=1)[0]
    if not top or top == "__main__":
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None  # this machine does not have the module, but the nodes may
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin) or _is_installed(spec.origin):
        return None
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.dirname(folder) if spec.submodule_search_locations else folder


def _is_installed(path: str) -> bool:
    """Whether the file belongs to Python or to a package that was installed. Such files are not copied."""
    places = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    return any(path.startswith(os.path.join(place, "")) for place in places if place)


def _modules(root: str) -> Iterator[str]:
    """The modules in the folder, and the packages with all their modules."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if entry.is_file() and entry.name.endswith(_SUFFIXES):
            yield entry.name
        elif entry.is_dir() and _is_package(entry, loaded):
            yield from _inside(root, entry.name)


def _is_package(entry: os.DirEntry[str], loaded: set[str]) -> bool:
    if not entry.name.isidentifier() or entry.name in _SKIPPED:
        return False
    return entry.name in loaded or os.path.exists(os.path.join(entry.path, "__init__.py"))


def _inside(root: str, package: str) -> Iterator[str]:
    for folder, folders, files in os.walk(os.path.join(root, package)):
        folders[:] = sorted(name for name in folders if name.isidentifier() and name not in _SKIPPED)
        for name in sorted(files):
            if name.endswith(_SUFFIXES):
                yield os.path.relpath(os.path.join(folder, name), root)


def prepare(folder: str, text: str, environment: dict[str, str]) -> None:
    """On the node: make the code importable. It is in `folder`; if that is empty, no code was copied, and it is at the
    same paths as on the coordinator."""
    # A C++ coordinator sends no settings.
    setup = json.loads(text) or {"roots": 0, "folders": [], "argv": sys.argv, "main": None}
    os.environ.update(environment)
    shipped = [os.path.join(folder, str(number)) for number in range(setup["roots"])] if folder else setup["folders"]
    sys.path[:] = [*shipped, *sys.path, os.getcwd()]
    sys.argv = setup["argv"]
    main = setup["main"]
    if main is None:
        return
    if main["main_path"] is not None:
        main["main_path"] = os.path.join(shipped[0], main["main_path"])
    _functions.set_main(main)
