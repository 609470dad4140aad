"""Loops of Loaders on real ranks of one Gloo group, in lockstep: `run` returns what each rank saw of each case."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

import shardio
from shardio import World

Seen = list[Any]
"""The record of a rank's loop: the numbers of its batches' samples, then the text of an error or a warning."""

N, BATCH, MOST = 96, 4, 5


def numbers(count: int = N) -> shardio.Dataset:
    return shardio.from_samples([{"x": n, "length": n % 7 + 1} for n in range(count)])


def take(loader: Any, steps: int = MOST) -> Seen:
    """Take batches, all ranks at once, until the loop ends by itself or by an error."""
    seen: Seen = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", shardio.StateWarning)
        loop = iter(loader)
        for _ in range(steps):
            dist.barrier()
            if seen and isinstance(seen[-1], str):
                continue
            try:
                seen.append(next(loop)["x"].tolist())
            except StopIteration:
                pass
            except shardio.ConfigError as error:
                seen.append(str(error))
    return [*seen, *(str(one.message) for one in told)]


def make(data: Any = None, batch_size: int | None = BATCH, **options: Any) -> shardio.Loader:
    return shardio.Loader(numbers() if data is None else data, batch_size, **{"threads": 1, "fields": ["x"]} | options)


def mix(weight: int, name: str = "a") -> Any:
    return shardio.mix({name: numbers(50), "b": numbers(46)}, weights={name: weight, "b": 1})


def differs(rank: int, ranks: int) -> dict[str, Seen]:
    """The last rank differs from the others in one thing, case by case."""
    odd, found = rank == ranks - 1, {}
    for name, options in {
        "seed": {"seed": int(odd)},
        "global_batch": {"batch_size": 5 if odd else 4},
        "order": {"shuffle": "block" if odd else "global"},
        "samples": {"data": numbers(N + odd)},
        "digest": {"data": numbers().select(np.arange(N)[::-1]) if odd else None},
        "tail": {"tail": "pad" if odd else "drop"},
        "assign": {"assign": "node" if odd else "rank"},
        "buckets": {"batch_size": None, "bucket_by": "length", "max_tokens": 40 if odd else 30},
        "turns": {"data": mix(3), "resumed": odd},
        "sources": {"data": mix(3) if odd else mix(3, "c")},
        "epoch": {"epoch": int(odd)},
        "position": {"resumed": odd},
    }.items():
        resumed, epoch = options.pop("resumed", False), options.pop("epoch", 0)
        loader = make(**options)  # type: ignore[arg-type] # of several types
        if resumed:
            loader.load_state_dict(after_a_step(**options))
        if epoch:
            loader.set_epoch(epoch)
        found[name] = take(loader)
    fields = {"x": shardio.Field("array", "int64", (None,))}
    arrays = shardio.from_samples([{"x": np.arange(5)} for _ in range(N)], fields)
    found["transforms"] = take(make(arrays, transforms={"x": [shardio.RandomWindow(2 if odd else 3)]}))
    return found


def after_a_step(**options: Any) -> dict[str, Any]:
    loader = make(**options, world=World())
    loop = iter(loader)
    next(loop)
    return loader.state_dict()


def of_one_mesh(rank: int, ranks: int) -> dict[str, Seen]:
    """Worlds along each dimension of a mesh, made by one line, and then one of two worlds with two seeds."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    found = {str(dims): take(make(world=World.from_mesh(mesh, dims))) for dims in ("dp", "tp", ("dp", "tp"))}
    return found | {"seed": take(make(world=World.from_mesh(mesh, "dp"), seed=int(rank == 0)))}


def agrees(rank: int, ranks: int) -> dict[str, Seen]:
    """Uses that no error may come of, although the ranks' Loaders differ, or some have more of them."""
    found: dict[str, Seen] = {"world of one": take(make(world=World(), seed=rank))}
    found["part of the job"] = take(make(world=World(rank, ranks + 1), seed=rank))
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("model", "dp"))
    found["two models"] = take(make(world=World.from_mesh(mesh, "dp"), seed=rank // 2))
    found["same data"] = take(make(world=World.from_mesh(mesh, "model"), seed=5))

    if rank == 0:  # more Loaders on one rank
        for batch, _ in zip(make(batch_size=7), range(3), strict=False):
            assert len(batch["x"]) == 7
    found["another Loader first"] = take(loader := make())
    if rank == 0:
        assert len([*make(batch_size=9)]) == N // (9 * ranks)
    found["another Loader between"] = take(loader)

    loader = make()
    if rank == 0:  # a peek, before a state is loaded
        next(iter(loader))
    loader.load_state_dict(after_a_step())
    found["peeks"] = take(loader)
    if rank == 0:
        next(iter(make()))
    rolled = make()
    state = rolled.state_dict()
    found["rollback"] = [*take(rolled, 2), "-"]
    rolled.load_state_dict(state)
    found["rollback"] = [*found["rollback"], *take(rolled), "-"]
    found["epochs"] = [seen for epoch in (0, 1, 1, 4) for seen in (rolled.set_epoch(epoch), take(rolled))[1]]
    found["map"] = take(make(map=(lambda batch: batch | {"y": 1}) if rank else None))
    elastic = make(batch_size=6)
    elastic.load_state_dict(after_a_step())
    found["other steps"] = take(elastic)
    found["one step"] = take(make(batch_size=N // ranks))

    if not (child := os.fork()):
        with suppress(BaseException):
            os._exit(int(len([*make(seed=1)]) != N // (BATCH * ranks)))
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    found["after a fork"] = take(make())
    return found


def makes_only(rank: int, ranks: int) -> dict[str, Seen]:
    """Ranks that make a Loader and never iterate ask nothing."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    loaders = [make(seed=rank) for _ in range(10)]
    dist.barrier()
    return {"keys": [store.num_keys() - before, len(loaders)]}


def runs_again(rank: int, ranks: int) -> dict[str, Seen]:
    """Runs in one process, each with a group and a seed of its own."""
    found: dict[str, Seen] = {}
    for seed in range(3):
        found[f"run {seed}"] = take(make(seed=seed))
        _end_group()
        _group(rank, ranks, f"group {seed}")
    return found


def lost_store(rank: int, ranks: int) -> dict[str, Seen]:
    """The process with the store is killed, and nothing is compared any more."""
    dist.barrier()
    if rank == 0:
        os.kill(int(os.environ["STORE_PROCESS"]), signal.SIGKILL)
    return {"lost": take(make(seed=rank))}


def _group(rank: int, ranks: int, name: str) -> None:
    store = dist.TCPStore("127.0.0.1", int(os.environ["STORE_PORT"]), is_master=False, timeout=timedelta(seconds=60))
    # Gloo cannot connect by what an earlier group left under the same keys.
    dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=ranks)


def _end_group() -> None:
    dist.barrier()
    dist.destroy_process_group()


def _serve(pipe: Any) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    signal.pause()


def _rank(cases: str, rank: int, ranks: int, folder: str) -> None:
    function: Callable[[int, int], dict[str, Seen]] = globals()[cases]
    _group(rank, ranks, "group")
    found = function(rank, ranks)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    with suppress(RuntimeError):  # of a lost store
        _end_group()


def main(cases: str, ranks: int, folder: str) -> None:
    """Run cases on ranks of their own, with a store in another process; each writes what it saw into the folder."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    server = fork.Process(target=_serve, args=(there,))
    server.start()
    os.environ |= {"STORE_PORT": str(here.recv()), "STORE_PROCESS": str(server.pid)}
    processes = [fork.Process(target=_rank, args=(cases, rank, ranks, folder)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    codes = [process.exitcode for process in processes]
    server.kill()
    if any(codes):
        for process in processes:
            process.kill()
        sys.exit(f"exit codes {codes}")
