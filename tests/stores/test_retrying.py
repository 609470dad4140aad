"""Requests that are tried again."""

import pytest

from shardio.errors import AccessDenied, ObjectChanged, ObjectNotFound, StoreUnavailable
from shardio.stores.retrying import LONGEST_WAIT, RetryingStore
from shardio.testing.stores import Faults, FaultyStore, MemoryStore

DATA = bytes(range(256)) * 100


def patient(faults: Faults, seed: int = 0, seconds: float = 60.0) -> tuple[RetryingStore, FaultyStore, list[float]]:
    """A retrying store over one that fails, and the waits that it makes instead of sleeping."""
    waits: list[float] = []
    faulty = FaultyStore(MemoryStore({"a": DATA}), faults, seed)
    return RetryingStore(faulty, seconds=seconds, sleep=waits.append, draw=lambda: 1.0), faulty, waits


@pytest.mark.parametrize("seed", range(5))
def test_failures_that_pass_are_not_seen(seed: int) -> None:
    """Refused requests, answers cut short and expired credentials cost tries, and the reader gets what there is."""
    store, faulty, _ = patient(Faults(refused=0.4, short=0.3, expired=0.05), seed)
    for start in range(0, 2000, 100):
        assert store.read("a", start, start + 100).data == DATA[start : start + 100]
    assert faulty.count > 5
    assert store.retries == faulty.count


def test_waits_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait before a try is twice the one before, up to a limit; the error names the object and the tries."""
    store, _, waits = patient(Faults(refused=1.0), seconds=-1)
    with pytest.raises(StoreUnavailable, match="503"):
        store.read("a")
    assert waits == []  # the time was over at once
    monkeypatch.setattr("shardio.stores.retrying.time.monotonic", lambda: sum(waits))
    store, _, waits = patient(Faults(refused=1.0), seconds=600.0)
    with pytest.raises(StoreUnavailable, match=r"memory:///a: .*503.*tried \d+ times in 6\d\d s"):
        store.read("a")
    assert waits[1] == 2 * waits[0]
    assert max(waits) == waits[-1] == LONGEST_WAIT


def test_what_will_not_change_is_not_tried_again() -> None:
    """A missing object, a failed condition: one try."""
    store, faulty, waits = patient(Faults())
    with pytest.raises(ObjectNotFound):
        store.read("b")
    with pytest.raises(ObjectChanged):
        store.write("a", b"new", condition="new")
    assert (faulty.count, waits) == (0, [])


def test_credentials_are_renewed_once() -> None:
    """Credentials that the server refuses are read anew; if those are refused, too, that is the error."""
    store, _, _ = patient(Faults(expired=1.0))
    with pytest.raises(AccessDenied, match="tried 2 times"):
        store.read("a")


@pytest.mark.parametrize("seed", range(8))
def test_a_write_whose_answer_was_lost_is_a_write(seed: int) -> None:
    """A conditional write that is tried again does not stumble over itself, and does over another writer."""
    store, _, _ = patient(Faults(refused=0.5), seed)
    assert store.write("new", b"mine", condition="new").size == 4
    with pytest.raises(ObjectChanged):
        store.write("new", b"others", condition="new")
    assert store.read("new").data == b"mine"
