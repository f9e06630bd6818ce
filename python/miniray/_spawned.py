"""The other side of Worker(start="spawn"): a fresh interpreter that imports the work function and runs it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from miniray import _core

MAIN = "__miniray_main__"  # what the coordinator's script is called here, so that its main part does not run

_importing_main = False  # in a spawned worker, while the coordinator's script is imported
_stopped_at = ""  # where that ended, because the script started workers


def command() -> list[str]:
    package_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.insert(0, {package_root!r}); from miniray._spawned import main; main()"
    import subprocess

    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def describe(work_fn: Callable[..., Any], *, here: bool = True) -> dict[str, Any]:
    """How the other interpreter, on this machine or on another, finds the function."""
    refuse_while_importing()
    module, qualname = getattr(work_fn, "__module__", None), getattr(work_fn, "__qualname__", None)
    if module is None or qualname is None or _look_up(sys.modules.get(module), qualname) is not work_fn:
        raise TypeError(
            f"cannot {_start(work_fn, here)}: a fresh interpreter has to import it, so it must be a function at the "
            f"top level of a module. Move it there{_or_fork(here)}"
        )
    is_main = module in ("__main__", MAIN)
    main = sys.modules["__main__"]
    name = main.__spec__.name if is_main and main.__spec__ is not None else None
    path = getattr(main, "__file__", None) if is_main and name is None else None
    if is_main and name is None and path is None:
        raise TypeError(
            f"cannot {_start(qualname, here)}: it was typed into an interactive session, which a fresh interpreter "
            f"cannot import. Put it into a file{_or_fork(here)}"
        )
    return {
        "module": None if is_main else module,
        "qualname": qualname,
        "main_module": name,
        "main_path": os.path.abspath(path) if path else None,
        "sys_path": [os.fspath(entry) or os.getcwd() for entry in sys.path],
        "script": _script(main),
    }


def _script(main: Any) -> dict[str, Any] | None:
    """The coordinator's, for calls of its functions; it is imported when one is asked for."""
    path = getattr(main, "__file__", None)
    if main.__spec__ is not None:
        return {"main_module": main.__spec__.name, "main_path": None}
    return {"main_module": None, "main_path": os.path.abspath(path)} if path else None


def _start(what: object, here: bool) -> str:
    return f"spawn a worker for {what}" if here else f"start {what} on other machines"


def _or_fork(here: bool) -> str:
    return ', or use start="fork"' if here else ""


def _look_up(found: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def main() -> None:
    sys.exit(_core._run_spawned(_work))


def _work(handle: _core.Handle) -> None:
    specification = handle.recv()
    sys.path[:] = specification["sys_path"]
    if specification["script"] is not None:
        from miniray import _functions

        _functions.set_main(specification["script"])
    _find(specification)(handle)


def _find(specification: dict[str, Any]) -> Any:
    qualname = specification["qualname"]
    if specification["module"] is not None:
        found: Any = importlib.import_module(specification["module"])
    else:
        found = import_main(specification)
    work_fn = _look_up(found, qualname)
    if work_fn is None:
        where = f"{qualname} is not there when {found} is imported"
        raise AttributeError(where + (stopped_at() or '; is it under if __name__ == "__main__":?'))
    return work_fn


class ImportStops(BaseException):
    """The coordinator's script has come to where it starts workers: the rest is not for us."""


def import_main(specification: dict[str, Any]) -> types.ModuleType:
    """The coordinator's script, under another name, so that its main part does not run."""
    global _importing_main, _stopped_at
    main = types.ModuleType(MAIN)
    name, path = specification["main_module"], specification["main_path"]
    if name is not None:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"there is no module {name}", name=name)
        main.__spec__, main.__file__, main.__package__ = spec, spec.origin, spec.parent
        code = spec.loader.get_code(name)  # type: ignore[attr-defined]
    else:
        main.__file__ = path
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    before = sys.modules["__main__"]
    sys.modules["__main__"] = sys.modules[MAIN] = main
    _importing_main = True
    try:
        exec(code, main.__dict__)
    except ImportStops as stop:
        _stopped_at = str(stop)
    except BaseException:
        sys.modules["__main__"] = before  # so that it is tried anew, and not found half there
        del sys.modules[MAIN]
        raise
    finally:
        _importing_main = False
    return main


def refuse_while_importing() -> None:
    """For whatever starts workers: where the coordinator's script is only imported, it has come far enough."""
    if _importing_main:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") != MAIN:
            frame = frame.f_back
        raise ImportStops(f"line {frame.f_lineno}" if frame is not None else "the point")


def stopped_at() -> str:
    """For an error: the script was not imported to its end."""
    if not _stopped_at:
        return ""
    return (
        f"; the script was imported up to {_stopped_at}, where it starts workers. Define the function above that, or "
        'put what starts them under if __name__ == "__main__":'
    )
