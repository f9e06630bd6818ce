"""Runs the scenarios of tests/parity.json in Python, as tests/parity_program.cpp does in C++."""

from __future__ import annotations

import json
import sys
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from waiting import until

from miniray import Cluster, NodeConfig, Pool, RestartPolicy
from miniray.errors import GroupError, MiniRayError, TaskOutOfMemory, TaskTimeout, UsageError, WorkerDied, WorkerError
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
        (GroupError, "group failed"),
        (UsageError, "refused"),
        (WorkerError, "raised"),
        (MiniRayError, "?"),
    ]
    for kind, name in kinds:
        if isinstance(error, kind):
            return name
    return "raised" if "(in worker " in f"{error}{error.__cause__}" else "refused"


class Scenario:
    """The steps of one scenario; `_run_here` does those that are its own."""

    def __init__(self, cluster: Cluster, scenario: dict[str, Any], folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._futures: dict[str, Any] = {}
        restart = scenario.get("restart")
        self._restart = RestartPolicy(**restart) if restart else None

    def run(self, step: dict[str, Any]) -> dict[str, Any] | None:
        return seen(lambda: self._run(step))

    def _run(self, step: dict[str, Any]) -> dict[str, Any] | None:
        if "result" in step:
            return {"is": self._futures[step["result"]].result(step.get("within"))}
        if "cancel" in step or "end_running" in step:
            return {"is": self._futures[step.get("cancel") or step["end_running"]].cancel()}
        if "map" in step:
            return {"is": self._map(step)}
        if "touch" in step:
            (self._folder / step["touch"]).touch()
        elif "await_file" in step:
            until((self._folder / step["await_file"]).exists, what=step["await_file"])
        else:
            return self._run_here(step)
        return None

    def _here(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._here(element) for element in value]
        return value.replace("$FOLDER", str(self._folder)) if isinstance(value, str) else value


class PoolScenario(Scenario):
    def __init__(self, cluster: Cluster, scenario: dict[str, Any], folder: Path) -> None:
        super().__init__(cluster, scenario, folder)
        self._pool = Pool(cluster, resources=scenario.get("resources"), restart=self._restart)

    def _run_here(self, step: dict[str, Any]) -> dict[str, Any] | None:
        if "submit_broken" in step:
            return {"is": self._begin(step["submit_broken"], step).result()}
        if "submit" in step:
            self._futures[step["as"]] = self._begin(step["submit"], step)
        else:
            assert step["shutdown"]
            self._pool.shutdown()
        return None

    def _begin(self, function: str, step: dict[str, Any]) -> Any:
        return self._pool.options(**step.get("options", {})).submit(MODULE + function, *self._here(step["arguments"]))

    def _map(self, step: dict[str, Any]) -> list[Any]:
        pool = self._pool.options(**step.get("options", {}))
        items = self._here(step["items"])
        chunksize, timeout = step.get("chunk_size"), step.get("within")
        function = MODULE + step["map"] + ("_pair" if "star" in step else "")
        return list(pool.map(function, items, chunksize=chunksize, timeout=timeout))

    def close(self) -> None:
        self._pool.__exit__(RuntimeError, None, None)  # what still runs is not waited for


class CallScenario(Scenario):
    """Calls on one worker, which is supervised if the scenario has a policy."""

    def __init__(self, cluster: Cluster, scenario: dict[str, Any], folder: Path) -> None:
        super().__init__(cluster, scenario, folder)
        on_restart = scenario.get("on_restart")
        prepare = (lambda worker: self._call(worker.call_remote, on_restart)) if on_restart else None
        [self._worker] = cluster.start("miniray.serve_calls", restart=self._restart, on_restart=prepare)

    def _run_here(self, step: dict[str, Any]) -> dict[str, Any] | None:
        if "kill" in step:
            self._worker.kill()
            self._worker.wait()
            return None
        if "as" not in step:
            return {"is": self._call(self._worker.call_remote, step)}
        self._futures[step["as"]] = self._call(self._worker.call_async, step)
        return None

    def _call(self, call: Any, step: dict[str, Any]) -> Any:
        return call(MODULE + step["call"], *self._here(step["arguments"]))

    def _map(self, step: dict[str, Any]) -> list[Any]:
        calls = [self._worker.call_async(MODULE + step["map"], item) for item in step["items"]]
        return [call.result() for call in calls]

    def close(self) -> None:
        self._worker.kill()


class GroupScenario(Scenario):
    """A training group whose ranks report that they are ready, and then die."""

    def _run_here(self, step: dict[str, Any]) -> dict[str, Any] | None:
        def drive(group: Any) -> Any:
            group.broadcast("go")
            return group.gather()

        return {"is": self._cluster.run_group(MODULE + step["run_group"], drive, restart=self._restart, progress=False)}

    def close(self) -> None:
        pass


SCENARIOS = {"pool": PoolScenario, "calls": CallScenario, "group": GroupScenario}


def main(table: str, folder: str, program: str | None = None) -> None:
    for scenario in json.loads(Path(table).read_text()):
        own = Path(folder) / scenario["name"]
        own.mkdir()
        node = NodeConfig("localhost", scenario.get("workers", 2), base_port=0)
        pickle = scenario.get("pickle", True)
        with Cluster([node], program=program, progress=False, pickle=pickle) as cluster:
            running = SCENARIOS[scenario.get("of", "pool")](cluster, scenario, own)
            outcomes = [running.run(step) for step in scenario["steps"]]
            running.close()
        print(json.dumps({"name": scenario["name"], "outcomes": outcomes}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
