"""Runs the scenarios of tests/parity.json with Python's pool, as tests/parity_program.cpp does with that of C++."""

from __future__ import annotations

import json
import sys
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from waiting import until

from miniray import Cluster, NodeConfig, Pool, RestartPolicy
from miniray.errors import MiniRayError, TaskOutOfMemory, TaskTimeout, UsageError, WorkerDied, WorkerError
from miniray.pool import PoolBroken

MODULE = "parity_functions."


def seen(step: Any) -> dict[str, Any] | None:
    """What became of a step: ``{"is": value}``, ``{"fails": kind, "with": text}``, or nothing to tell."""
    try:
        return step()  # type: ignore[no-any-return]
    except BaseException as error:
        return {"fails": kind_of(error), "with": str(error)}


def kind_of(error: BaseException) -> str:
    if isinstance(error, RuntimeError) and "after shutdown" in str(error):
        return "shut down"
    kinds: list[tuple[type[BaseException] | tuple[type[BaseException], ...], str]] = [
        (TaskOutOfMemory, "out of memory"),
        (WorkerDied, "died"),
        (TaskTimeout, "timed out"),
        (TimeoutError, "waited too long"),
        (CancelledError, "cancelled"),
        (PoolBroken, "broken"),
        (UsageError, "refused"),
        (WorkerError, "raised"),
        (MiniRayError, "?"),
    ]
    for kind, name in kinds:
        if isinstance(error, kind):
            return name
    return "raised" if "(in worker " in f"{error}{error.__cause__}" else "refused"


class Scenario:
    def __init__(self, cluster: Cluster, scenario: dict[str, Any], folder: Path) -> None:
        self._folder = folder
        self._futures: dict[str, Any] = {}
        restart = scenario.get("restart")
        self._pool = Pool(
            cluster, resources=scenario.get("resources"), restart=RestartPolicy(**restart) if restart else None
        )

    def run(self, step: dict[str, Any]) -> dict[str, Any] | None:
        return seen(lambda: self._run(step))

    def _run(self, step: dict[str, Any]) -> dict[str, Any] | None:
        if "submit" in step:
            self._futures[step["as"]] = self._begin(step["submit"], step)
        elif "submit_broken" in step:
            return {"is": self._begin(step["submit_broken"], step).result()}
        elif "result" in step:
            return {"is": self._futures[step["result"]].result(step.get("within"))}
        elif "cancel" in step or "end_running" in step:
            return {"is": self._futures[step.get("cancel") or step["end_running"]].cancel()}
        elif "map" in step:
            return {"is": self._map(step)}
        elif "shutdown" in step:
            self._pool.shutdown()
        elif "touch" in step:
            (self._folder / step["touch"]).touch()
        else:
            until((self._folder / step["await_file"]).exists, what=step["await_file"])
        return None

    def _begin(self, function: str, step: dict[str, Any]) -> Any:
        return self._pool.options(**step.get("options", {})).submit(MODULE + function, *self._here(step["arguments"]))

    def _map(self, step: dict[str, Any]) -> list[Any]:
        pool = self._pool.options(**step.get("options", {}))
        items = self._here(step["items"])
        chunksize, timeout = step.get("chunk_size"), step.get("within")
        function = MODULE + step["map"] + ("_pair" if "star" in step else "")
        return list(pool.map(function, items, chunksize=chunksize, timeout=timeout))

    def _here(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._here(element) for element in value]
        return value.replace("$FOLDER", str(self._folder)) if isinstance(value, str) else value

    def close(self) -> None:
        self._pool.__exit__(RuntimeError, None, None)  # what still runs is not waited for


def main(table: str, folder: str, program: str | None = None) -> None:
    for scenario in json.loads(Path(table).read_text()):
        own = Path(folder) / scenario["name"]
        own.mkdir()
        node = NodeConfig("localhost", scenario.get("workers", 2), base_port=0)
        with Cluster([node], program=program, progress=False) as cluster:
            running = Scenario(cluster, scenario, own)
            outcomes = [running.run(step) for step in scenario["steps"]]
            running.close()
        print(json.dumps({"name": scenario["name"], "outcomes": outcomes}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
