"""The worker's side of Worker(start="spawn"): a new interpreter that imports the work function and runs it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from miniray import _core

MAIN = "__miniray_main__"  # the name of the coordinator's script in a worker, so that its main part does not run

_importing_main = False  # true in a spawned worker while it imports the coordinator's script
_stopped_at = ""  # the line at which that import stopped, because the script starts workers there


def command() -> list[str]:
    """The command that starts the new interpreter, with the same flags as this one."""
    package_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    output = sys.modules.get("miniray._output")
    relay = output.relay() if output is not None else None
    join = "" if relay is None else f"from miniray import _output; _output.join({relay}); "
    code = f"import sys; sys.path.insert(0, {package_root!r}); {join}from miniray._spawned import main; main()"
    import subprocess

    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def describe(work_fn: Callable[..., Any], takes_pickles: bool = True) -> dict[str, Any]:
    """Return the message that tells the new interpreter how to find the function: by import, or by value."""
    from miniray import _sent_work

    refuse_while_importing()
    importable = _sent_work.is_importable(work_fn)
    module, qualname = name_in_module(work_fn) if importable else (None, None)
    return {
        "module": None if module is not None and is_main(module) else module,
        "qualname": qualname,
        "by_value": None if importable else _sent_work.packed(work_fn, takes_pickles),
        "sys_path": [os.fspath(entry) or os.getcwd() for entry in sys.path],
        "script": script(),
        "argv": [os.fsencode(word) for word in sys.argv if isinstance(word, str)],
    }


def name_in_module(function: Any) -> tuple[str | None, str | None]:
    """Return the function's module and its name there; None and None if its module does not have it under its name."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None or _look_up(sys.modules.get(module), qualname) is not function:
        return None, None
    return module, qualname


def is_main(module: str) -> bool:
    return module in ("__main__", MAIN)


def script() -> dict[str, Any] | None:
    """Return how another interpreter imports this script; None for an interactive session, which has no file."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return {"main_module": main.__spec__.name, "main_path": None}  # type: ignore[union-attr]
    path = file_of(main)
    return {"main_module": None, "main_path": os.path.abspath(path)} if path else None


def file_of(main: Any) -> str | None:
    """The script's file; None for a program that was typed, or came through a pipe."""
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
    sys.argv[:] = [os.fsdecode(word) for word in specification["argv"]]  # the script may read them
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
        where = f"cannot find {qualname} in {found} after importing it"
        raise AttributeError(where + (stopped_at() or '. Is it under if __name__ == "__main__":?'))
    return work_fn


class ImportStops(BaseException):
    """Ends the import of the coordinator's script where the script starts workers, which a worker must not do."""


def import_main(specification: dict[str, Any]) -> types.ModuleType:
    """Import the coordinator's script under another name, so that its main part does not run."""
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
        sys.modules["__main__"] = before  # the next attempt must not find a script that is half imported
        del sys.modules[MAIN]
        raise
    finally:
        _importing_main = False
    from miniray import _script

    _script.note_import(main)
    return main


def refuse_while_importing() -> None:
    """Stop the import of the coordinator's script, if one is under way. Everything that starts workers calls this."""
    if _importing_main:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") != MAIN:
            frame = frame.f_back
        raise ImportStops(f"line {frame.f_lineno}" if frame is not None else "the point")


def stopped_at() -> str:
    """Return the end of an error text, if the script was not imported to its end; else ""."""
    if not _stopped_at:
        return ""
    return (
        f"; the script was imported only up to {_stopped_at}, where it starts workers. Define the function above that "
        'line, or put the code that starts workers under if __name__ == "__main__":'
    )
