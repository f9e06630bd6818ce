"""The jobs that every peer runs, and the tables that show their figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peers.cpp import ALL_REDUCE_RANKS, MAP_US, all_reduce_bytes

SYSTEM_WORKERS = 8
NODES = ("node1", "node2", "node3")
NODE_WORKERS = 2

FULL: dict[str, Any] = {
    "quick": False,
    "batch": 1000,
    "enough_s": 0.4,
    "array_bytes": 100_000_000,
    "matrix_side": 1000,
    "matrix_pairs": 100,
    "verification_tasks": 200,
    "verification_us": 10_000,
    "verification_workers": [1, 2, 4],
    "overhead_s": 0.2,
    "linger_s": 0.5,
    "point_limit_s": 15,
    "workers": [1, 10, 100, 1000],
    "message_bytes": [10**power for power in range(10)],
    "in_flight": [10**power for power in range(6)],
}
QUICK: dict[str, Any] = {
    **FULL,
    "quick": True,
    "batch": 20,
    "enough_s": 0.0,
    "array_bytes": 1_000_000,
    "matrix_side": 30,
    "matrix_pairs": 4,
    "verification_tasks": 8,
    "verification_us": 100,
    "verification_workers": [1, 2],
    "overhead_s": 0.002,
    "linger_s": 0.05,
    "workers": [1, 4],
    "message_bytes": [1, 1000, 1_000_000],
    "in_flight": [1, 10, 100],
}


@dataclass(frozen=True)
class Row:
    """One measurement. The unit is "s", "a minute", "bytes", "share" or "number"."""

    key: str
    text: str
    unit: str = "s"
    more_is_better: bool = False
    judged: bool = True  # counts for the goals; rows that only describe do not


@dataclass(frozen=True)
class Table:
    key: str
    title: str
    remark: str
    rows: tuple[Row, ...]
    axis: str = ""  # the x-axis of a line chart, at the end of each row's key; empty: a bar chart
    kinds: tuple[str, ...] = ("actors", "tasks")  # how each peer was used


@dataclass(frozen=True)
class Job:
    """The work of one turn. All of its rows come from one process."""

    work: str
    rows: tuple[str, ...]
    kind: str = "actors"
    workers: int = 1
    rounds_max: int = 99
    needs_kind: bool = True  # if False, a peer that lacks this kind of system uses another kind


def jobs(sizes: dict[str, Any]) -> list[Job]:
    cores = sizes["cores"]

    def grown(key: str, points: list[int]) -> tuple[str, ...]:
        return tuple(f"{key}_{point}" for point in points)

    footprint = ("memory", "processes", "threads", "ports", "idle_cpu", "stop")
    return [
        Job("installed", ("installed",), rounds_max=1, needs_kind=False),
        Job("first", ("first",), needs_kind=False),
        Job("task_system", footprint, "tasks", SYSTEM_WORKERS, needs_kind=False),
        Job("calls", ("call", "calls_in_flight", "array_echo")),
        Job("clients", ("clients",), "clients", cores),
        Job("tasks", ("task", "tasks_in_flight"), "tasks", cores),
        Job("matrices", ("matrices", "not_multiplication"), "tasks", cores),
        *(Job("verification", (f"verification_{n}",), "tasks", n) for n in sizes["verification_workers"]),
        Job("overhead", ("overhead",), "tasks", cores),
        Job("broadcast", ("node",), "actors", SYSTEM_WORKERS),
        Job("cpp_calls", ("cpp_call", "cpp_in_flight", "cpp_8_mib", "cpp_1_gb"), "cpp"),
        Job("cpp_tasks", grown("cpp_map", list(MAP_US)), "cpp", cores),
        *(Job("cpp_all_reduce", all_reduce_rows(n, sizes.get("quick", False)), "cpp", n) for n in ALL_REDUCE_RANKS),
        Job("message_growth", grown("message", sizes["message_bytes"]), rounds_max=1),
        Job("task_growth", grown("in_flight", sizes["in_flight"]), "tasks", cores, rounds_max=1),
        *(Job("actor_system", (f"workers_{n}",), "actors", n, 1, needs_kind=False) for n in sizes["workers"]),
        Job("nodes", ("nodes",), "nodes", len(NODES) * NODE_WORKERS),
    ]


def all_reduce_rows(ranks: int, quick: bool) -> tuple[str, ...]:
    return tuple(f"cpp_all_reduce_{ranks}_{size}" for size in all_reduce_bytes(quick))


def tables(sizes: dict[str, Any]) -> list[Table]:
    cores = sizes["cores"]
    megabytes = f"{sizes['array_bytes'] / 1e6:g} MB"
    batch = f"{sizes['batch']:,}"
    return [
        Table(
            "operations",
            "Calls and tasks",
            "The figures are the time for each operation. The operations are those of Ray's own microbenchmark. In "
            "MiniRay, an actor belongs to the process that made it, so each client has an actor of its own, and "
            "clients that share actors were not measured.",
            (
                Row("call", "an actor's method, one call after the other"),
                Row("calls_in_flight", f"an actor's method, {batch} calls in flight"),
                Row("clients", f"{cores} clients, each with an actor, {batch} calls of each in flight"),
                Row("task", "empty tasks, one after the other"),
                Row("tasks_in_flight", f"empty tasks, {batch} in flight"),
                Row("array_echo", f"an array of {megabytes} to an actor and back"),
            ),
        ),
        Table(
            "matrices",
            "Matrix pairs",
            f"{cores} workers, one for each core, multiply {sizes['matrix_pairs']} pairs of matrices of "
            f"{sizes['matrix_side']} by {sizes['matrix_side']} doubles and return the products. A thousand pairs with "
            "their products would need 24 GB of memory. The overhead is the share of the time that is not "
            "multiplication: processes that already have the matrices would not need it.",
            (
                Row("matrices", "total time"),
                Row("not_multiplication", "overhead", "share", judged=False),
            ),
            kinds=("tasks",),
        ),
        Table(
            "verification",
            "Verification tasks",
            f"The figures are tasks per minute, on {cores} cores. Each task takes {sizes['verification_us'] / 1000:g} "
            "ms of CPU. More workers than cores cannot make it faster.",
            tuple(
                Row(f"verification_{n}", f"{n} worker{'s' * (n > 1)}", "a minute", more_is_better=True)
                for n in sizes["verification_workers"]
            ),
            axis="workers",
            kinds=("tasks",),
        ),
        Table(
            "broadcast",
            "One array for all workers",
            f"Every worker is sent the same array of {megabytes}, and answers with a checksum of one number in every "
            "page. The figures are the time until all have answered; the workers had been started before. The three "
            f"machines are network namespaces, each with an sshd and {NODE_WORKERS} workers.",
            (
                Row("node", f"to {SYSTEM_WORKERS} workers on this machine"),
                Row("nodes", f"to {len(NODES) * NODE_WORKERS} workers on {len(NODES)} machines"),
            ),
            kinds=("broadcast", "nodes"),
        ),
        Table(
            "cpp",
            "In C++",
            "The figures are the time for each operation, of programs in C++ that use the APIs of MiniRay, Open MPI "
            "and ZeroMQ. MiniRay's large arrays are made in place; the receiver of an echo reads a byte of each page. "
            f"A task of a map uses the processor for the given time, on {cores} workers. MPI has no pool: its items "
            "are scattered evenly. The figures are the time of the map, divided by the number of items.",
            (
                Row("cpp_call", "a small message and its answer"),
                Row("cpp_in_flight", f"small messages, {batch} in flight"),
                Row("cpp_8_mib", "8 MiB to a process and back"),
                Row("cpp_1_gb", "1 GB to a process and back"),
                *(Row(f"cpp_map_{us}", f"map of tasks of {us:,} us") for us in MAP_US),
            ),
            kinds=("cpp",),
        ),
        Table(
            "cpp_all_reduce",
            "In C++: all_reduce",
            "Every process has an array of floats, and gets the maximum of each element over all processes. The "
            f"figures are the median time. There are {cores} cores.",
            tuple(
                Row(f"cpp_all_reduce_{ranks}_{size}", f"{ranks} processes, {kib_text(size)}")
                for ranks in ALL_REDUCE_RANKS
                for size in all_reduce_bytes(sizes.get("quick", False))
            ),
            kinds=("cpp",),
        ),
        Table(
            "footprint",
            "Start, stop and size",
            "The time to the first result begins with the start of the interpreter, and includes `import`, the start "
            f"of the workers and one call. The other rows describe a system with {SYSTEM_WORKERS} workers that have "
            "all run something and are now idle. Its memory is the sum of the proportional set sizes (PSS) of all "
            "its processes, including the program that started them. The time to stop ends when the last process has "
            "ended. The size on disk is that of the package with all of its requirements, without Python itself.",
            (
                Row("first", "time to the first result"),
                Row("stop", "time to stop"),
                Row("memory", "memory", "bytes"),
                Row("installed", "size on disk", "bytes"),
                Row("processes", "processes", "number", judged=False),
                Row("threads", "threads", "number", judged=False),
                Row("ports", "listening TCP ports", "number", judged=False),
                Row("idle_cpu", "CPU used while idle, in cores", "number", judged=False),
            ),
        ),
        Table(
            "overhead",
            "How long a task must be",
            f"If tasks are at least this long, a pool of {cores} workers spends less than 10% of its time on anything "
            "but the tasks. Each task is submitted by itself.",
            (Row("overhead", "shortest task with less than 10% overhead"),),
            kinds=("tasks",),
        ),
        Table(
            "growth_workers",
            "Growth: workers",
            "The figures are the time from the start of the interpreter until each worker has answered once, divided "
            "by the number of workers.",
            tuple(Row(f"workers_{n}", f"{n:,} worker{'s' * (n > 1)}, time for each") for n in sizes["workers"]),
            axis="workers",
        ),
        Table(
            "growth_messages",
            "Growth: size of a message",
            "The figures are the time for an array of bytes to an actor and back.",
            tuple(Row(f"message_{n}", size_text(n)) for n in sizes["message_bytes"]),
            axis="bytes",
            kinds=("actors",),
        ),
        Table(
            "growth_tasks",
            "Growth: tasks in flight",
            "The figures are the time for each empty task, if this many tasks are submitted at once.",
            tuple(Row(f"in_flight_{n}", f"{n:,} in flight, time for each") for n in sizes["in_flight"]),
            axis="tasks in flight",
            kinds=("tasks",),
        ),
    ]


def kib_text(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


def size_text(size_bytes: int) -> str:
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:g} {unit}"
    return f"{size_bytes} B"
