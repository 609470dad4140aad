"""Ranks that disagree are told: real ranks of one group, in lockstep, and a job that is started again."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import _agreeing
import _forked
import pytest
import torch.distributed as dist

DIFFERENCES = {  # of the last rank, from the others: what it says of both
    "seed": ("1", "0"),
    "global_batch": ("(10|20)", "(8|16)"),
    "order": ("'block of 64, window of 16'", "'global'"),
    "samples": ("97", "96"),  # as after an append
    "digest": ("'view:[0-9a-f]+'", "'xxh3:[0-9a-f]+'"),
    "tail": ("'pad'", "'drop'"),
    "assign": ("'node'", "'rank'"),
    "buckets": ("'up to 40 tokens by length'", "'up to 30 tokens by length'"),
    "turns": (r"\[3, 1\]", r"\[0, 0\]"),
    "sources": ("'mix:[0-9a-f]+'", "'mix:[0-9a-f]+'"),
    "epoch": ("1", "0"),
    "position": ("4", "0"),  # a state that one rank alone has loaded
}


def run(cases: str, ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Return what each rank saw of some cases of `_agreeing`."""
    paths = [str(Path(__file__).parent)]
    code = f"import sys; sys.path[:0] = {paths}; import _agreeing; _agreeing.main({cases!r}, {ranks}, {str(folder)!r})"
    done = _forked.run(code, environ=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_disagreement_is_told(ranks: int, tmp_path: Path) -> None:
    """Whatever the last rank has differently, all ranks raise before their fifth batch, with both values."""
    found = run("differs", ranks, tmp_path)
    for name, (odd, other) in DIFFERENCES.items():
        last, first = rf"{odd} on rank {ranks - 1}", rf"{other} on rank [0-{ranks - 2}]"
        told = re.compile(f"the ranks of a job must load the same: .*{name} is ({last} and {first}|{first} and {last})")
        for each in found:
            assert told.match(each[name][-1]), (name, each[name])
            assert 1 < len(each[name]) <= 4
    warned = [each["transforms"] for each in found]
    assert all(len(seen) >= _agreeing.MOST for seen in warned)
    told = re.compile(r"ranks transform samples differently: transforms\['x'\]\[0\] is 'RandomWindow.*' on rank")
    assert [told.match(seen[-1]) for seen in warned if len(seen) > _agreeing.MOST]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("cases", ["agrees", "runs_again", "lost_store"])
def test_what_may_differ(cases: str, ranks: int, tmp_path: Path) -> None:
    """Worlds of one, other worlds of a job, more Loaders on one rank, peeks and later runs are no disagreement.

    Nor is a rank's `map`, and nothing is compared in a forked child, and without a store.
    """
    for each in run(cases, ranks, tmp_path):
        for name, seen in each.items():
            assert seen
            assert not [one for one in seen if isinstance(one, str) and one != "-"], name


def test_ranks_that_never_iterate_ask_nothing(tmp_path: Path) -> None:
    """Making a Loader puts nothing into the store."""
    assert run("makes_only", 2, tmp_path) == 2 * [{"keys": [0, 10]}]


def test_ranks_of_a_mesh_are_compared_within_their_world(tmp_path: Path) -> None:
    """Worlds of one mesh that share some ranks are others; within one, ranks that differ are told."""
    found = run("of_one_mesh", 4, tmp_path)
    for each in found:
        assert [len(each[dims]) for dims in ("dp", "tp", "('dp', 'tp')")] == 3 * [_agreeing.MOST]
    for told in (found[0]["seed"], found[2]["seed"]):
        assert re.search(r"seed is (1 on rank 0 and 0 on rank 2|0 on rank 2 and 1 on rank 0)", told[-1])
    assert [len(found[rank]["seed"]) for rank in (1, 3)] == 2 * [_agreeing.MOST]


RANK = """
import os, sys
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # a group whose ranks need not run at once
import shardio

store = dist.TCPStore("127.0.0.1", int(os.environ["STORE_PORT"]), is_master=False)
dist.init_process_group("fake", store=store, rank=int(os.environ["RANK"]), world_size=2)
loader = shardio.Loader(shardio.from_samples([{"x": n} for n in range(96)]), 4, threads=1)
loader.load_state_dict(loader.state_dict() | {"position": int(sys.argv[1])})
try:
    print(len([*loader]))
except shardio.ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_job_that_torchrun_starts_again() -> None:
    """Ranks that torchrun has started again go on elsewhere than those before, in whose store they find themselves."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def rank(number: int, restarts: int, position: int) -> str:
        place = {"RANK": number, "STORE_PORT": store.port, "TORCHELASTIC_RESTART_COUNT": restarts}
        environ = os.environ | {name: str(value) for name, value in place.items()}
        return _forked.run(RANK, str(position), environ=environ).stdout

    assert [rank(number, 0, 0) for number in (0, 1)] == ["12\n", "12\n"]
    assert [rank(number, 1, 32) for number in (0, 1)] == ["8\n", "8\n"]
    assert "position is 40 on rank 1 and 32 on rank 0" in rank(1, 1, 40)
