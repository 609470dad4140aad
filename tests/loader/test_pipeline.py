"""Jobs run on threads and their results come in order; errors and stalls are raised at their place."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from _cli import python

from shardio.errors import PipelineClosed
from shardio.loader.workers.pipeline import Pipeline


@dataclass
class Counting:
    """A job that records which of its tasks ran."""

    number: int
    work: Callable[[int], None] = lambda number: None
    ran: list[int] = field(default_factory=list)

    @property
    def tasks(self) -> Sequence[Callable[[], None]]:
        return [lambda task=task: self._run(task) for task in range(3)]  # type: ignore[misc]

    def _run(self, task: int) -> None:
        self.work(self.number)
        self.ran.append(task)

    def result(self) -> int:
        assert sorted(self.ran) == [0, 1, 2]
        return self.number


def jobs(count: int, work: Callable[[int], None] = lambda number: None) -> Iterator[Counting]:
    return (Counting(number, work) for number in range(count))


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("depth", [1, 3])
def test_results_come_in_order(threads: int, depth: int) -> None:
    """Results come in the order of the jobs, each once, and the threads end."""
    uneven = Pipeline(jobs(20, lambda n: time.sleep(0.003 * (n % 3))), threads=threads, depth=depth, name="order")
    assert list(uneven) == list(range(20))
    assert threads_of("order") == []


def test_no_more_than_depth_jobs_are_open() -> None:
    """At most `depth` jobs begin while the consumer waits, so that memory is bounded."""
    begun: set[int] = set()
    with_depth = Pipeline(jobs(50, begun.add), threads=4, depth=3, name="depth")
    time.sleep(0.2)
    assert begun == {0, 1, 2}
    next(with_depth)
    time.sleep(0.2)
    assert begun == {0, 1, 2, 3}
    with_depth.close()


def test_a_failure_comes_out_at_its_place() -> None:
    """An error of a job is raised in the consumer after the results before it, and the threads end."""

    def fail(number: int) -> None:
        if number == 3:
            raise KeyError("job three")

    failing = Pipeline(jobs(10, fail), threads=4, depth=4, name="failing")
    assert [next(failing) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="job three"):
        next(failing)
    assert threads_of("failing") == []
    with pytest.raises(PipelineClosed):
        next(failing)


def test_a_failure_to_make_a_job_comes_out_too() -> None:
    """An error of the iterator of jobs is raised in the consumer after the results before it."""

    def broken() -> Iterator[Counting]:
        yield Counting(0)
        raise OSError("no more")

    pipeline = Pipeline(broken(), threads=2, depth=3, name="broken")
    assert next(pipeline) == 0
    with pytest.raises(OSError, match="no more"):
        next(pipeline)


def test_waiting_is_measured() -> None:
    """`waited` counts the consumer's waiting and not its own work."""
    slow = Pipeline(jobs(2, lambda n: time.sleep(0.05)), threads=1, depth=2, name="slow")
    next(slow)
    assert slow.waited >= 0.14
    time.sleep(1.0)
    before = slow.waited
    next(slow)
    assert slow.waited - before < 0.1
    slow.close()


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),  # the end of the script
        ("raise RuntimeError('mine')", 1),
    ],
)
def test_a_script_may_end_in_the_middle_of_an_epoch(ending: str, code: int) -> None:
    """A process that exits mid-epoch keeps its exit code and prints nothing to stderr."""
    script = f"""
import numpy, shardio, cv2
image = cv2.imencode(".jpg", numpy.zeros((500, 500, 3), numpy.uint8))[1].tobytes()
ds = shardio.from_samples([{{"image": image}}] * 600)
loader = shardio.Loader(ds, 8, transforms=[shardio.RandomResizedCrop(224)], threads=3, world=shardio.World())
batches = iter(loader)
next(batches)
{ending}
"""
    done = python("-c", script, code=code)
    assert done.stderr == "" or "RuntimeError: mine" in done.stderr


@pytest.mark.parametrize("order", [(4, 1, 3), (1, 4), (2, 1, 1, 4)])
def test_workers_can_be_fewer_and_more_again(order: tuple[int, ...]) -> None:
    """`resize` limits the tasks that run at once, in order and without a stall."""
    busy, most = 0, 0
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.001)
        with lock:
            busy -= 1

    pipeline = Pipeline(jobs(len(order) * 20, work), threads=4, depth=3, timeout=20, name="resized")
    delivered = []
    for threads in order:
        pipeline.resize(threads, 3)
        delivered += [next(pipeline) for _ in range(6)]  # tasks that have begun may still run
        with lock:
            most = 0
        delivered += [next(pipeline) for _ in range(14)]
        assert most <= threads
    assert delivered == list(range(len(order) * 20))
    with pytest.raises(StopIteration):
        next(pipeline)
    assert threads_of("resized") == []


def test_idle_workers_are_measured() -> None:
    """Workers that wait for room are idle, and those with tasks are not."""
    fed = Pipeline(jobs(6), threads=2, depth=2, name="idle")
    for _ in range(3):
        next(fed)
        time.sleep(0.05)
    assert fed.idle > 0.1
    fed.close()
    starved = Pipeline(jobs(10, lambda number: time.sleep(0.003)), threads=1, depth=3, name="busy")
    list(starved)
    assert starved.idle < 0.05


def test_closed_by_its_own_worker() -> None:
    """Closing on a worker's own thread, as garbage collection may, does not deadlock; the consumer gets an error."""
    made: list[Pipeline[int]] = []
    ready = threading.Event()

    def work(number: int) -> None:
        ready.wait(10)
        made[0].close()

    made.append(Pipeline(jobs(5, work), threads=2, depth=2, timeout=10.0, name="own"))
    ready.set()
    with pytest.raises(PipelineClosed):
        next(made[0])
    made[0].close()
    assert not threads_of("own")
