"""A rank that the others wait for is named, with its host and what makes it slow."""

import json
import sys
from pathlib import Path

import _ranks
import pytest
from _namespaces import INTERFACE, machines_on_a_switch, slow_down
from _ranks import start
from _tiny import config, records
from hypothesis import given
from hypothesis import strategies as st

from shardio.train.step_monitor import StepTimes, Straggler, StragglerWatch, slow_node, slowest

HOSTS = ["one", "two", "three", "four"]
EVEN = [StepTimes(0.0, 0.100, 0.020)] * 4


def late(rank: int, *, wait: float = 0.0, compute: float = 0.0) -> list[StepTimes]:
    """What four ranks spend if one of them takes longer: the others wait for it."""
    longer = wait + compute
    times = [StepTimes(0.0, 0.100, 0.020 + longer)] * 4
    times[rank] = StepTimes(wait, 0.100 + compute, 0.020)
    return times


def test_the_slowest_rank() -> None:
    """The rank that takes a fifth of the step longer than the others, and why."""
    assert slowest(EVEN, HOSTS) is None
    assert slowest(EVEN[:1], HOSTS) is None
    assert slowest(late(1, compute=0.01), HOSTS) is None
    found = slowest(late(1, compute=0.05), HOSTS)
    assert found == Straggler(1, "two", "compute", pytest.approx(0.05), pytest.approx(0.17))
    assert str(found) == (
        "rank 1 on two is slow: its compute takes 50 ms per step more than that of the others, which wait for it "
        "(a step takes 170 ms)"
    )
    assert slowest(late(3, wait=0.06, compute=0.03), HOSTS) == Straggler(
        3, "four", "input", pytest.approx(0.06), pytest.approx(0.21)
    )


@given(st.lists(st.floats(0, 1e-3), min_size=2, max_size=4))
def test_short_steps_have_no_straggler(computes: list[float]) -> None:
    """Differences below two milliseconds are not worth a line."""
    assert slowest([StepTimes(0.0, compute, 0.0) for compute in computes], HOSTS) is None


def test_only_a_persistent_one_is_named_once() -> None:
    """Three looks in a row name a rank; it is named again only after it was gone, or for another cause."""
    watch = StragglerWatch(HOSTS)
    slow, chance = late(2, wait=0.1), late(0, wait=0.1)
    assert [watch.look(times) for times in (slow, slow, chance, slow, slow)] == [None] * 5
    new = watch.look(slow)
    assert (new.rank, new.cause) == (2, "input")
    assert [watch.look(slow) for _ in range(5)] == [None] * 5
    assert watch.straggler == new
    assert [watch.look(EVEN) for _ in range(3)] == [None] * 3
    assert watch.straggler is None
    assert [watch.look(slow) is None for _ in range(3)] == [True, True, False]
    assert [watch.look(late(2, compute=0.1)) is None for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("ring", "slow"),
    [
        ([1.0, 1.0, 1.0], None),
        ([1.0, 9.0, 9.0], 2),
        ([9.0, 1.0, 8.0], 0),
        ([1.0, 9.0, 1.0, 1.0], None),  # one link, not one node
        ([1.0, 1.1, 7.0, 9.0, 0.9, 1.0], 3),
    ],
)
def test_a_slow_node_has_two_slow_links(ring: list[float], slow: int | None) -> None:
    """The node between two slow links of a ring is slow, by more than twice what is usual."""
    found = slow_node(ring)
    assert (found and found[0]) == slow
    if found is not None:
        assert found[1] == pytest.approx(7, abs=1)


@pytest.mark.cluster
def test_a_slow_network_is_named(tmp_path: Path) -> None:
    made = config(tmp_path, epochs=4, batch_size=4, model="_tiny:wide", metrics_every_steps=2)
    described = tmp_path / "run.json"
    described.write_text(json.dumps(made.to_dict()))
    with machines_on_a_switch(3) as machines:
        slow_down(machines[1], 40)
        script = [sys.executable, str(Path(_ranks.__file__)), str(described)]
        apart = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": machines[0].address}
        variables = _ranks.environment() | {"GLOO_SOCKET_IFNAME": INTERFACE}
        commands = [
            (machine.command(script), variables | _ranks.place(rank, 3, "29500") | apart)
            for rank, machine in enumerate(machines)
        ]
        with _ranks.running(commands) as ranks:
            printed = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], printed
    # Three ranks share the processors of one machine with other tests, so that the compute of a rank may be slow, too.
    (line,) = [line for line in printed[0][0].splitlines() if line.startswith("the network of ")]
    assert line.startswith("the network of rank 1 on ")
    lines = records(made, "metrics.jsonl")
    assert line in [entry.get("straggler") for entry in lines]


@pytest.mark.long
def test_a_run_names_its_stragglers(tmp_path: Path) -> None:
    """Ranks that compute slowly, and then get their input slowly, are named on real processes."""
    made = config(tmp_path, epochs=30, batch_size=6, metrics_every_steps=5)
    done = start(Path(__file__).with_name("_stragglers.py"), json.dumps(made.to_dict()), ranks=2)
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stdout.splitlines() if "is slow" in line]
    assert first.startswith("rank 1 on ")
    assert "its compute takes" in first
    assert second.startswith("rank 0 on ")
    assert "its input takes" in second
    lines = records(made, "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(5, 121, 5))
    assert "straggler" not in lines[0]
    assert lines[6]["straggler"].startswith("rank 1 on ")
    assert lines[-1]["straggler"].startswith("rank 0 on ")
