"""Calls to workers on real ssh hosts, which have none of the code but what was sent."""

from __future__ import annotations

import signal
from pathlib import Path

from coordinator import coordinating
from hosts import Hosts
from testbed import Testbed
from waiting import until

UNREACHABLE_S = 4
LIMIT_S = 60.0

BESIDE = {
    "beside.py": """
        import socket
        FACTOR = 3
        def scale(x):
            return FACTOR * x
        def where():
            return socket.gethostname()
        class Box:
            def __init__(self, content):
                self.content = content
            def swap(self, content):
                old, self.content = self.content, content
                return old
    """,
}


def test_functions_of_the_script_of_modules_beside_it_and_lambdas(hosts: Hosts) -> None:
    found = hosts.value(
        """
        import json
        from miniray import Cluster, NodeConfig, as_completed
        import beside

        def cube(x):
            return x ** 3

        class Point:
            def __init__(self, x):
                self.x = x

        def moved(point):
            return Point(point.x + 1)

        if __name__ == "__main__":
            with Cluster([NodeConfig(host, 2, base_port=0) for host in ("mr-a", "mr-b")], progress=False) as cluster:
                workers = cluster.start("miniray.serve_calls")
                offset = 100
                for worker in workers:
                    worker.register(cube)
                    worker.register(beside.scale)
                    worker.register("shift", lambda x: x + offset)
                    worker.register(moved)
                box = workers[1].create("box", beside.Box, ("a", "tuple"))
                back = workers[2].call_remote("moved", Point(4))
                futures = [worker.call_async("shift", number) for number in range(50) for worker in workers]
                print(json.dumps({
                    "cubes": [worker.call_remote("cube", 3) for worker in workers],
                    "scaled": [worker.call_remote("scale", 5) for worker in workers],
                    "shifted": sorted(future.result(30) for future in as_completed(futures)) == sorted(
                        number + 100 for number in range(50) for _ in workers),
                    "where": [worker.call_remote("beside.where") for worker in workers],
                    "box": [box.swap(1) == ("a", "tuple"), box.swap(2)],
                    "moved": [type(back) is Point, back.x],
                }))
        """,
        files=BESIDE,
    )
    assert found == {
        "cubes": [27] * 4,
        "scaled": [15] * 4,
        "shifted": True,
        "where": ["mr-a", "mr-a", "mr-b", "mr-b"],
        "box": [True, 1],
        "moved": [True, 5],
    }


def test_errors_and_deaths_there(hosts: Hosts) -> None:
    found = hosts.value(
        """
        import json, os
        from miniray import Cluster, NodeConfig, WorkerDied, WorkerError, RemoteTraceback

        class Own(Exception):
            pass

        def fail():
            raise Own("with a text")

        if __name__ == "__main__":
            found = {}
            with Cluster([NodeConfig("mr-a", 1, base_port=0)], progress=False) as cluster:
                [worker] = cluster.start("miniray.serve_calls")
                worker.register(fail)
                try:
                    worker.call_remote("fail")
                except Own as error:
                    found["own"] = [str(error), "in fail" in str(error.__cause__),
                                    isinstance(error.__cause__, RemoteTraceback)]
                futures = [worker.call_async("os._exit", 7)] + [worker.call_async("os.getpid") for _ in range(20)]
                errors = [future.exception(30) for future in futures]
                found["died"] = [isinstance(error, WorkerDied) and "mr-a" in str(error) for error in errors]
                found["code"] = errors[0].exit_code
            print(json.dumps(found))
        """,
    )
    assert found == {"own": ["with a text", True, True], "died": [True] * 21, "code": 7}


def test_a_host_that_is_cut_off_ends_its_futures(testbed: Testbed, tmp_path: Path) -> None:
    with coordinating(testbed, tmp_path / "run") as coordinator:
        try:
            nodes = "[node('mr-a'), node('mr-b')]"
            coordinator.do(f"cluster = Cluster({nodes}, unreachable_s={UNREACHABLE_S}, progress=False)")
            coordinator.do("workers = cluster.start('miniray.serve_calls')")
            coordinator.do("futures = [workers[0].call_async('time.sleep', 1000)]")
            coordinator.do("futures += [workers[0].call_async('os.getpid') for _ in range(50)]")
            testbed.cut("mr-a")
            outcome = coordinator.attempt("futures[-1].result()", LIMIT_S)
            assert (outcome.error, "unreachable" in outcome.text) == ("WorkerDied", True), outcome
            assert coordinator.do("all(future.done() for future in futures)").value is True
            assert coordinator.do("workers[1].call_remote('os.getpid') == workers[1].pid").value is True
            coordinator.do("cluster.stop()", LIMIT_S)
        finally:
            testbed.heal("mr-a")


def test_kill_9_of_the_coordinator_ends_calls_that_run(testbed: Testbed, tmp_path: Path) -> None:
    with coordinating(testbed, tmp_path / "run") as coordinator:
        coordinator.do("cluster = Cluster([node('mr-a', 2), node('mr-b', 2)], progress=False)")
        coordinator.do("workers = cluster.start('miniray.serve_calls')")
        coordinator.do("futures = [worker.call_async('time.sleep', 1000) for worker in workers for _ in range(5)]")
        coordinator.do("os.getpid()")
        coordinator.process.send_signal(signal.SIGKILL)
        coordinator.process.wait()
        assert until(lambda: not testbed.survivors()), testbed.survivors()
