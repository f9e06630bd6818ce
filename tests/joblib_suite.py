"""Makes joblib's "loky", its default backend, MiniRay's: for joblib's own tests, and for the programs that they start.

As a plugin of pytest it leaves out the tests of other backends.
"""

from __future__ import annotations

from typing import Any

import joblib._parallel_backends
import joblib.parallel

import miniray.joblib

REAL_LOKY = "real_loky"  # for loops within loops


class LokyBackend(miniray.joblib.MiniRayBackend):
    """By the name that the tests expect."""


joblib.parallel.BACKENDS[REAL_LOKY] = joblib.parallel.BACKENDS["loky"]
joblib.parallel.BACKENDS["loky"] = joblib._parallel_backends.LokyBackend = LokyBackend


def concerns_us(item: Any) -> bool:
    """Whether it uses the default backend, or one that it does not take as a parameter, or ours."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    backends = [value for name, value in parameters.items() if name.endswith("backend")]
    return not backends or any(one in (None, "loky") or isinstance(one, LokyBackend) for one in backends)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    others = [item for item in items if not concerns_us(item)]
    items[:] = [item for item in items if concerns_us(item)]
    config.hook.pytest_deselected(items=others)
