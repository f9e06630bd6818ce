"""What people expect of any Python library: names that completion finds, and docstrings."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from typing import Any

import pytest

import miniray

PUBLIC = [name for name in miniray.__all__ if not name.startswith("__")]
MODULES = ["calls", "cluster", "doctor", "errors", "hardware", "joblib", "nccl", "pool", "supervision"]
MODULES += ["training_group", "worker", "worker_server"]


# --- Names ------------------------------------------------------------------------------------------------------------
def in_a_fresh_interpreter(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


def test_dir_shows_all_public_names_and_imports_none() -> None:
    code = "import sys, miniray; names = dir(miniray); assert 'miniray.pool' not in sys.modules; print(*names)"
    names = in_a_fresh_interpreter(code).split()
    assert set(miniray.__all__) <= set(names)
    assert {"__doc__", "__file__", "__version__"} <= set(names)
    assert [name for name in names if not name.startswith("__")] == sorted(PUBLIC)


@pytest.mark.parametrize("text", ["miniray.Po", "miniray.Ca", "miniray.set"])
@pytest.mark.parametrize(
    "completer",
    [
        "import rlcompleter, miniray; print(*rlcompleter.Completer({{'miniray': miniray}}).attr_matches({0!r}))",
        # IPython and notebooks ask jedi with the module; editors do without.
        "import jedi, miniray; print(*['miniray.' + match.name for match in "
        "jedi.Interpreter({0!r}, [{{'miniray': miniray}}]).complete()])",
        "import jedi; print(*['miniray.' + match.name for match in "
        "jedi.Script('import miniray\\n' + {0!r}).complete()])",
    ],
    ids=["rlcompleter", "jedi", "jedi-static"],
)
def test_completion_finds_what_is_not_imported_yet(completer: str, text: str) -> None:
    expected = {"miniray." + name for name in PUBLIC if ("miniray." + name).startswith(text)}
    assert expected
    found = in_a_fresh_interpreter(completer.format(text)).replace("(", "").replace(")", "").split()
    assert expected <= set(found)


def test_star_import_and_unknown_names() -> None:
    namespace: dict[str, Any] = {}
    exec("from miniray import *", namespace)
    assert set(miniray.__all__) <= set(namespace)
    with pytest.raises(AttributeError, match="no attribute 'Pol'"):
        miniray.Pol  # noqa: B018
    with pytest.raises(ImportError):
        exec("from miniray.calls import CallFutur")
    exec("from miniray.calls import CallFuture, as_completed")


# --- Docstrings -------------------------------------------------------------------------------------------------------
def public_things() -> dict[str, Any]:
    """Classes and functions that the package shows, and their public methods."""
    found: dict[str, Any] = {name: getattr(miniray, name) for name in PUBLIC}
    for module in MODULES:
        made = __import__("miniray." + module, fromlist=["x"])
        for name, thing in vars(made).items():
            if not name.startswith("_") and getattr(thing, "__module__", "") == made.__name__:
                found[f"{module}.{name}"] = thing
    for name, thing in list(found.items()):
        if inspect.isclass(thing):
            for method, value in vars(thing).items():
                if not method.startswith("_") and (callable(value) or isinstance(value, property | classmethod)):
                    found[f"{name}.{method}"] = getattr(thing, method)
    return found


def test_every_public_class_function_and_method_has_a_docstring() -> None:
    bare = []
    for name, thing in public_things().items():
        own = vars(thing).get("__doc__") if inspect.isclass(thing) else inspect.getdoc(thing)
        made_by_python = inspect.isclass(thing) and (own or "").startswith(f"{thing.__name__}(")
        if (callable(thing) or isinstance(thing, property)) and (not own or made_by_python):
            bare.append(name)
    assert not bare, f"without a docstring: {bare}"


def test_help_renders() -> None:
    for name in ("Pool", "Worker", "CallFuture", "PoolFuture", "Cluster"):
        text = pydoc.render_doc(getattr(miniray, name))
        assert name in text
