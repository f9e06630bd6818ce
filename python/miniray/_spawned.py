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
    output = sys.modules.get("miniray._output")
    relay = output.relay() if output is not None else None
    join = "" if relay is None else f"from miniray import _output; _output.join({relay}); "
    code = f"import sys; sys.path.insert(0, {package_root!r}); {join}from miniray._spawned import main; main()"
    import subprocess

    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def describe(work_fn: Callable[..., Any]) -> dict[str, Any]:
    """How the other interpreter finds the function: it imports it, or gets it by value."""
    from miniray import _sent_work

    refuse_while_importing()
    importable = _sent_work.is_importable(work_fn)
    module, qualname = name_in_module(work_fn) if importable else (None, None)
    return {
        "module": None if module is not None and is_main(module) else module,
        "qualname": qualname,
        "by_value": None if importable else _sent_work.packed(work_fn),
        "sys_path": [os.fspath(entry) or os.getcwd() for entry in sys.path],
        "script": script(),
        "argv": [os.fsencode(word) for word in sys.argv if isinstance(word, str)],
    }


def name_in_module(function: Any) -> tuple[str | None, str | None]:
    """The module in which the function is found under its own name, and that name; None and None if in no module."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None or _look_up(sys.modules.get(module), qualname) is not function:
        return None, None
    return module, qualname


def is_main(module: str) -> bool:
    return module in ("__main__", MAIN)


def script() -> dict[str, Any] | None:
    """How another interpreter imports the coordinator's script; None for a session, which has no file."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return {"main_module": main.__spec__.name, "main_path": None}  # type: ignore[union-attr]
    path = file_of(main)
    return {"main_module": None, "main_path": os.path.abspath(path)} if path else None


def file_of(main: Any) -> str | None:
    """The script's file; None for what was typed, or came through a pipe."""
    path = getattr(main, "__file__", None)
    return path if path is not None and os.path.isfile(path) else None


def _look_up(found: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def main() -> None:
    from miniray import _script

    _script.main_is_foreign = True
    sys.exit(_core._run_spawned(_work))


def _work(handle: _core.Handle) -> Any:
    specification = handle.recv()
    sys.path[:] = specification["sys_path"]
    sys.argv[:] = [os.fsdecode(word) for word in specification["argv"]]  # the script may look at them
    if specification["script"] is not None:
        from miniray import _functions

        _functions.set_main(specification["script"])
    return _find(specification)(handle)


def _find(specification: dict[str, Any]) -> Any:
    qualname = specification["qualname"]
    if specification["by_value"] is not None:
        from miniray import _sent_work

        return _sent_work.unpacked(specification["by_value"])
    if specification["module"] is not None:
        found: Any = importlib.import_module(specification["module"])
    else:
        found = import_main(specification["script"])
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
    from miniray import _script

    _script.note_import(main)
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
