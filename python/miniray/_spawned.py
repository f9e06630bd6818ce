"""The other side of Worker(start="spawn"): a fresh interpreter that imports the work function and runs it."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

from miniray import _core

_MAIN = "__miniray_main__"  # what the coordinator's script is called here, so that its main part does not run


def command() -> list[str]:
    package_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.insert(0, {package_root!r}); from miniray._spawned import main; main()"
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def describe(work_fn: Callable[..., Any]) -> dict[str, Any]:
    """How the other interpreter finds the function."""
    module, qualname = getattr(work_fn, "__module__", None), getattr(work_fn, "__qualname__", None)
    if module is None or qualname is None or "<" in qualname:
        raise TypeError(
            f"cannot spawn a worker for {work_fn!r}: a fresh interpreter has to import it, so it must be a function "
            'at the top level of a module. Move it there, or use start="fork"'
        )
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None) if module == "__main__" else None
    if module == "__main__" and path is None:
        raise TypeError(
            f"cannot spawn a worker for {qualname}: it was typed into an interactive session, which a fresh "
            'interpreter cannot import. Put it into a file, or use start="fork"'
        )
    return {
        "module": module,
        "qualname": qualname,
        "main": os.path.abspath(path) if path else None,
        "sys_path": [entry or os.getcwd() for entry in sys.path],
    }


def main() -> None:
    sys.exit(_core._run_spawned(_work))


def _work(handle: _core.Handle) -> None:
    specification = handle.recv()
    sys.path[:] = specification["sys_path"]
    _find(specification)(handle)


def _find(specification: dict[str, Any]) -> Any:
    if specification["main"] is None:
        found: Any = importlib.import_module(specification["module"])
    else:
        found = types.ModuleType(_MAIN)
        sys.modules["__main__"] = sys.modules[_MAIN] = found
        found.__dict__.update(runpy.run_path(specification["main"], run_name=_MAIN))
    for part in specification["qualname"].split("."):
        found = getattr(found, part)
    return found
