"""miniray.joblib: whatever joblib's own backends do, this one does."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import task_functions
from joblib import Parallel, delayed, parallel_backend, parallel_config

import miniray.joblib
from miniray import Pool, RemoteTraceback, WorkerDied

miniray.joblib.register()


@pytest.fixture(autouse=True)
def in_the_backend() -> Iterator[None]:
    with parallel_config(backend="miniray", n_jobs=2):
        yield


def pid_and(number: int) -> tuple[int, int]:
    return os.getpid(), number


def scale(array: Any, factor: float) -> Any:
    array *= factor  # it is ours to write to
    return array


def nested(number: int) -> list[int]:
    return Parallel(n_jobs=2)(delayed(pow)(number, exponent) for exponent in range(3))


def nested_explicitly(number: int) -> list[int]:
    miniray.joblib.register()
    return Parallel(n_jobs=2, backend="miniray")(delayed(pow)(number, exponent) for exponent in range(3))


def divide(one: int, other: int) -> float:
    return one / other


def note_and_wait(path: str) -> None:
    Path(path).touch()
    time.sleep(1000)


def test_results_are_in_order_and_from_other_processes() -> None:
    results = Parallel()(delayed(pid_and)(number) for number in range(200))
    assert [number for _, number in results] == list(range(200))
    assert os.getpid() not in {pid for pid, _ in results}


def test_parallel_backend_and_parallel_take_the_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older name, which joblib may come to warn about
        with parallel_backend("miniray", n_jobs=2):
            assert Parallel()(delayed(pow)(2, n) for n in range(5)) == [1, 2, 4, 8, 16]
    with parallel_config(backend="loky"):
        assert Parallel(n_jobs=2, backend="miniray")(delayed(pow)(2, n) for n in range(5)) == [1, 2, 4, 8, 16]


def test_as_many_workers_as_jobs() -> None:
    pids = {pid for pid, _ in Parallel(n_jobs=3, batch_size=1)(delayed(pid_and)(number) for number in range(60))}
    assert 1 <= len(pids) <= 3
    assert Parallel(n_jobs=1)(delayed(pid_and)(7) for _ in range(2)) == [(os.getpid(), 7)] * 2  # joblib's own way


@pytest.mark.parametrize(("asked", "expected"), [(3, 3), (-1, "all"), (-1000, 1)])
def test_the_number_of_jobs(asked: int, expected: Any) -> None:
    assert joblib.effective_n_jobs(asked) == (len(os.sched_getaffinity(0)) if expected == "all" else expected)


def test_one_job_unless_more_are_asked_for(make_pool: Any) -> None:
    """As with joblib's own backends; of a pool that is given, all workers."""
    assert miniray.joblib.MiniRayBackend().default_n_jobs == 1
    assert miniray.joblib.MiniRayBackend(pool=make_pool(2)).default_n_jobs == -1


def test_below_threads_there_is_one_job_without_a_pool(make_pool: Any) -> None:
    """They would be forked while other threads run."""

    def pids(**options: Any) -> set[int]:
        with parallel_config(backend="miniray", n_jobs=2, **options):
            return {pid for pid, _ in Parallel()(delayed(pid_and)(7) for _ in range(2))}

    pool = make_pool(2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        [of_pool] = Parallel(backend="threading")([delayed(pids)(pool=pool)])
        assert not told
        [without] = Parallel(backend="threading")([delayed(pids)()])
    assert of_pool <= {worker.pid for worker in pool.workers}
    assert without == {os.getpid()}
    assert "cannot be nested below threads, setting n_jobs=1" in str(told[0].message)


def test_no_jobs_have_no_meaning() -> None:
    with pytest.raises(ValueError, match="n_jobs == 0"):
        Parallel(n_jobs=0)(delayed(pow)(2, n) for n in range(5))


def test_what_cannot_be_imported_goes_by_value() -> None:
    offset = 5
    assert Parallel()(delayed(lambda x: x + offset)(n) for n in range(10)) == list(range(5, 15))


def test_arrays_arrive_writable() -> None:
    arrays = [np.full(size, 3.0) for size in (1, 100, 100_000)]
    for result, array in zip(Parallel()(delayed(scale)(array, 2) for array in arrays), arrays, strict=True):
        assert np.array_equal(result, 2 * array)


def test_an_exception_arrives_as_raised() -> None:
    with pytest.raises(ZeroDivisionError, match="division by zero") as caught:
        Parallel()(delayed(divide)(1, 5 - number) for number in range(100))
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in divide" in str(caught.value.__cause__)


def test_an_exception_ends_what_still_runs(tmp_path: Path) -> None:
    begun = str(tmp_path / "begun")
    jobs = [delayed(note_and_wait)(begun), delayed(task_functions.wait_for)(begun), delayed(divide)(1, 0)]
    with pytest.raises(ZeroDivisionError):
        Parallel(batch_size=1)(jobs)  # one of them lasts longer than a test may


def interrupt(number: int) -> None:
    raise KeyboardInterrupt(number)


def test_a_keyboard_interrupt_in_a_call_arrives_as_such() -> None:
    with pytest.raises(KeyboardInterrupt):
        Parallel()(delayed(interrupt)(number) for number in range(2))
    with Parallel() as parallel:
        with pytest.raises(KeyboardInterrupt):
            parallel(delayed(interrupt)(number) for number in range(2))
        assert parallel(delayed(pow)(2, number) for number in range(5)) == [1, 2, 4, 8, 16]


def test_a_death_is_told() -> None:
    with pytest.raises(WorkerDied, match="SIGKILL"):
        Parallel()(delayed(os.kill)(*pair) for pair in [(0, 0), (0, 9)])


def test_a_time_out() -> None:
    with pytest.raises((TimeoutError, multiprocessing.TimeoutError)):  # as joblib has it
        Parallel(timeout=0.2)(delayed(time.sleep)(1000) for _ in range(2))


def test_one_pool_for_several_calls() -> None:
    with Parallel() as parallel:
        pids = [{pid for pid, _ in parallel(delayed(pid_and)(number) for number in range(50))} for _ in range(3)]
        assert len(set.union(*pids)) <= 2
        with pytest.raises(ZeroDivisionError):
            parallel(delayed(divide)(1, number) for number in range(4))
        assert parallel(delayed(divide)(1, number) for number in (1, 2)) == [1, 0.5]


@pytest.mark.parametrize("return_as", ["generator", "generator_unordered"])
def test_generators(return_as: str) -> None:
    results = Parallel(return_as=return_as)(delayed(pow)(number, 2) for number in range(50))
    assert sorted(results) == [number * number for number in range(50)]


def test_a_generator_of_jobs_that_raises() -> None:
    def jobs() -> Iterator[Any]:
        for number in range(20):
            yield delayed(pow)(number, 2)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        Parallel()(jobs())


def test_verbose_calls_back(capsys: pytest.CaptureFixture[str]) -> None:
    Parallel(verbose=5)(delayed(pow)(number, 2) for number in range(30))
    printed = capsys.readouterr().err
    assert "MiniRayBackend" in printed
    assert "Done  30 out of  30" in printed


@pytest.mark.parametrize("function", [nested, nested_explicitly])
def test_nested_calls(function: Callable[[int], list[int]]) -> None:
    assert Parallel()(delayed(function)(number) for number in range(4)) == [[1, n, n * n] for n in range(4)]


# --- A pool of the caller's -------------------------------------------------------------------------------------------
def test_a_given_pool_is_used_and_left_open(make_pool: Any) -> None:
    pool = make_pool(3)
    pids = {worker.pid for worker in pool.workers}
    with parallel_config(backend="miniray", pool=pool):
        assert joblib.effective_n_jobs() == joblib.effective_n_jobs(-1) == joblib.effective_n_jobs(100) == 3
        for _ in range(2):
            results = Parallel()(delayed(pid_and)(number) for number in range(100))
            assert {pid for pid, _ in results} <= pids
        with pytest.raises(ZeroDivisionError):
            Parallel()(delayed(divide)(1, 3 - number) for number in range(100))
        assert Parallel()(delayed(pow)(2, n) for n in range(5)) == [1, 2, 4, 8, 16]
    assert pool.submit(pow, 2, 10).result() == 1024


def test_the_options_of_a_pool_hold(make_pool: Any, tmp_path: Path) -> None:
    """A batch whose worker dies is tried again."""
    with parallel_config(backend="miniray", pool=make_pool(2).options(retries=1)):
        assert Parallel()(delayed(die_once)(str(tmp_path / str(n)), n) for n in range(3)) == [0, 1, 2]


def die_once(path: str, number: int) -> int:
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), 9)
    return number


def test_a_pool_that_is_closed_is_told(make_pool: Any) -> None:
    pool = make_pool(2)
    pool.shutdown()
    with parallel_config(backend="miniray", pool=pool), pytest.raises(RuntimeError, match="after shutdown"):
        Parallel()(delayed(pow)(2, n) for n in range(5))


def test_what_the_backend_does_not_know() -> None:
    with pytest.raises(TypeError, match="not workres"), parallel_config(backend="miniray", workres=3):
        pass


def test_the_package_does_without_joblib() -> None:
    code = "import sys; import miniray; miniray.Pool; assert 'joblib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_script_whose_functions_change(tmp_path: Path) -> None:
    """As in a notebook: the workers are older than the function."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[0, 1, 2]\n[0, -1, -2]\n", "")


def test_a_scripts_classes_are_the_same_in_a_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_WITH_CLASSES)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True True 11\n" * 3, "")


SCRIPT_WITH_CLASSES = """
import enum, joblib, miniray.joblib
from miniray import Pool

class Color(enum.Enum):
    RED = 1

class Sample:
    pass

start = 10

def use(color, sample, number):
    assert color is Color.RED and isinstance(sample, Sample)
    return color, sample, number + start

def run():
    color, sample, number = joblib.Parallel()([joblib.delayed(use)(Color.RED, Sample(), 1)])[0]
    print(color is Color.RED, type(sample) is Sample, number)

if __name__ == "__main__":
    miniray.joblib.register()
    with joblib.parallel_config(backend="miniray", n_jobs=2):
        run()
    with Pool(2) as pool, joblib.parallel_config(backend="miniray", pool=pool):
        class Sample:  # of which the workers hear now
            pass
        exec("def use(color, sample, number):  return color, sample, number + start * isinstance(sample, Sample)")
        run()
    with Pool(2, start="spawn") as pool, joblib.parallel_config(backend="miniray", pool=pool):
        run()
"""


SCRIPT = """
import joblib, miniray.joblib
from miniray import Pool

def change(x):
    return x

if __name__ == "__main__":
    miniray.joblib.register()
    with Pool(2) as pool, joblib.parallel_config(backend="miniray", pool=pool):
        print(joblib.Parallel()(joblib.delayed(change)(n) for n in range(3)))
        exec("def change(x): return -x")
        print(joblib.Parallel()(joblib.delayed(change)(n) for n in range(3)))
"""


def test_pools_are_not_copied() -> None:
    """A pool within a task's arguments is a mistake that is told."""
    with Pool(1) as pool, pytest.raises(TypeError):
        Parallel()(delayed(id)(pool) for _ in range(2))
