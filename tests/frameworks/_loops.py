"""One training loop per framework, each run by real ranks that stop within an epoch and by others that go on.

`main` imports the framework once and forks the ranks: two begin and save, then others resume from a copy of what was
saved. Every rank writes the samples that it got to `FOLDER/seen-RANKS-RANK.json`.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from _jobs import Around
from torch import nn

import shardio

N, BATCH, STEPS = 101, 4, 5
DATASET = shardio.from_samples([{"x": np.float32(number)} for number in range(N)])

Loop = Callable[[Path, int | None], list[int]]
"""Takes a folder, and how many steps to take before the state is saved there, None to resume and end the epoch; returns
the samples that this rank got."""


def loader(**options: Any) -> shardio.Loader:
    return shardio.Loader(DATASET, BATCH, **{"seed": 3, "tail": "pad", "threads": 1} | options)


def numbers(batch: dict[str, Any]) -> list[int]:
    return batch["index"][batch["valid"]].tolist()  # type: ignore[no-any-return] # a tensor's list


def until(steps: int | None, batches: Iterable[Any], save: Callable[[], object]) -> Iterator[Any]:
    """Yield batches of an epoch, and save after some steps; None is to its end."""
    for step, batch in enumerate(batches, 1):
        yield batch
        if step == steps:
            save()
            return


class Line(nn.Module):
    """A model that takes a batch's fields as arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, index: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += index[valid].tolist()
        return {"loss": (self.weight * x).mean() * 1e-6}


def torch_checkpoint(folder: Path, steps: int | None) -> list[int]:
    """torch.distributed.checkpoint, on a group of Gloo."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    batches, seen = loader(), []
    saved = {"model": model.module.state_dict(), "loader": batches}
    if steps is None:
        dcp.load(saved, checkpoint_id=folder / "checkpoint")
    for step, batch in enumerate(batches, 1):
        model(batch["x"][:, None]).mean().backward()
        seen += numbers(batch)
        if step == steps:
            dcp.save(saved, checkpoint_id=folder / "checkpoint")
            break
    del model, saved
    dist.destroy_process_group()
    return seen


def torchdata(folder: Path, steps: int | None) -> list[int]:
    """torchdata's StatefulDataLoader around a Loader; each rank may take the state of any."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    batches = StatefulDataLoader(Around(loader()), batch_size=None, num_workers=0)
    return _stateful(batches, folder, steps, numbers)


def torchdata_torch_dataset(folder: Path, steps: int | None) -> list[int]:
    """torchdata's StatefulDataLoader around a TorchDataset, with a worker and a sampler that divides the samples."""
    from torch.utils.data.distributed import DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader

    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dataset = shardio.TorchDataset(DATASET)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, ranks, rank, seed=3)  # type: ignore[arg-type] # Sized
    batches = StatefulDataLoader(dataset, BATCH, sampler=sampler, num_workers=1)
    return _stateful(batches, folder, steps, lambda batch: batch["index"].tolist())


def _stateful(
    batches: Any, folder: Path, steps: int | None, numbers: Callable[[dict[str, Any]], list[int]]
) -> list[int]:
    """Loop over a StatefulDataLoader; of a job of other ranks, the state of its first rank is taken."""
    rank, seen = int(os.environ["RANK"]), []
    if steps is None:
        path = folder / f"rank-{rank}.pt"
        batches.load_state_dict(torch.load(path if path.exists() else folder / "rank-0.pt", weights_only=False))
    for batch in until(steps, batches, lambda: torch.save(batches.state_dict(), folder / f"rank-{rank}.pt")):
        seen += numbers(batch)
    return seen


def lightning(folder: Path, steps: int | None) -> list[int]:
    """Lightning's Trainer and its checkpoints."""
    import lightning as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from shardio.lightning import ResumeElastically

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined] # imported by its name
        def __init__(self) -> None:
            super().__init__()
            self.line = Line()

        def training_step(self, batch: dict[str, Any], step: int) -> torch.Tensor:
            return self.line(**batch)["loss"]  # type: ignore[no-any-return] # a module's

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

        def train_dataloader(self) -> shardio.Loader:
            return loader()

    ranks = int(os.environ["WORLD_SIZE"])
    model = Model()
    pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp",
        max_epochs=1,
        max_steps=steps or -1,
        callbacks=[ModelCheckpoint(folder, "saved", every_n_train_steps=STEPS), ResumeElastically()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, ckpt_path=None if steps else folder / "saved.ckpt")
    return model.line.seen


def accelerate(folder: Path, steps: int | None) -> list[int]:
    """Accelerate, which keeps the Loader's state with its own."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    line = Line()
    model, optimizer = accelerator.prepare(line, torch.optim.SGD(line.parameters(), 0.1))
    batches = loader()
    assert accelerator.prepare(batches) is batches
    accelerator.register_for_checkpointing(batches)
    if steps is None:
        accelerator.load_state(folder / "state")
    for batch in until(steps, batches, lambda: accelerator.save_state(folder / "state")):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
    accelerator.free_memory(model, optimizer)
    del model, optimizer
    accelerator.end_training()
    return line.seen


def accelerate_updates(resumed: bool) -> list[list[float]]:
    """Return the weight after each update of two epochs of ten batches, four of which make an update: by Accelerate's
    own DataLoader, and by a Loader as docs/frameworks.md shows, which goes on after its first update if `resumed`."""
    from contextlib import nullcontext

    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    found: list[list[float]] = [[], []]

    def prepared() -> tuple[Any, Any, nn.Parameter]:
        line = nn.Linear(1, 1, bias=False)
        nn.init.ones_(line.weight)
        return *accelerator.prepare(line, torch.optim.SGD(line.parameters(), 1e-5)), line.weight

    def train(model: Any, optimizer: Any, x: torch.Tensor, weight: nn.Parameter, weights: list[float]) -> None:
        accelerator.backward(model(x[:, None]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.sync_gradients:
            weights.append(weight.item())

    model, optimizer, weight = prepared()
    reference = accelerator.prepare(torch.utils.data.DataLoader(torch.arange(100.0), 10))
    for _ in range(2):
        for x in reference:
            with accelerator.accumulate(model):
                train(model, optimizer, x, weight, found[0])

    model, optimizer, weight = prepared()
    made = {"shuffle": None, "threads": 1, "world": shardio.World()}
    batches = shardio.Loader(DATASET, 10, **made)  # type: ignore[arg-type] # keywords of several types
    while batches.epoch < 2:
        epoch = iter(batches)
        steps = batches.steps_left
        for step, batch in enumerate(epoch, 1):
            accelerator.sync_gradients = step % accelerator.gradient_accumulation_steps == 0 or step == steps
            with nullcontext() if accelerator.sync_gradients else accelerator.no_sync(model):
                train(model, optimizer, batch["x"], weight, found[1])
            if resumed and accelerator.sync_gradients and len(found[1]) == 1:
                state = batches.state_dict()
                batches = shardio.Loader(DATASET, 10, **made)  # type: ignore[arg-type] # as above
                batches.load_state_dict(state)
                break
    return found


def transformers(folder: Path, steps: int | None) -> list[int]:
    """transformers' Trainer, as examples/train_transformers.py uses it."""
    from train_transformers import LoaderTrainer, resume
    from transformers import TrainingArguments

    options = TrainingArguments(
        str(folder),
        num_train_epochs=1,
        save_steps=STEPS,
        max_steps=steps or -1,
        ignore_data_skip=True,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    line, batches = Line(), loader()
    trainer = LoaderTrainer(batches, None, model=line, args=options)
    trainer.train(resume_from_checkpoint=None if steps else resume(trainer, folder / f"checkpoint-{STEPS}"))
    return line.seen


def transformers_updates(folder: Path, accumulate: int) -> dict[str, list[Any]]:
    """Return how many batches each update of the weights took, and their value after it: of a whole run of
    transformers' Trainer, and of what is left after each of its checkpoints."""
    from train_transformers import LoaderTrainer, resume
    from transformers import TrainerCallback, TrainingArguments

    class Updates(TrainerCallback):  # type: ignore[misc] # it has no types
        def __init__(self, line: Line) -> None:
            self.line, self.found, self.before = line, [], 0

        def on_step_end(self, *given: Any, **others: Any) -> None:
            batches = len(self.line.seen)
            self.found.append([batches - self.before, self.line.weight.item()])
            self.before = batches

    class Batched(Line):
        def forward(self, x: torch.Tensor, index: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
            self.seen.append(len(self.seen))
            return {"loss": (self.weight * x).mean()}

    def run(output: Path, checkpoint: Path | None = None) -> list[Any]:
        options = TrainingArguments(
            str(output),
            num_train_epochs=2,
            gradient_accumulation_steps=accumulate,
            optim="sgd",
            learning_rate=0.01,
            save_steps=1,
            ignore_data_skip=True,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        )
        line = Batched()
        trainer = LoaderTrainer(
            shardio.Loader(DATASET, 10, seed=3, threads=1, world=shardio.World()), None, model=line, args=options
        )
        updates = Updates(line)
        trainer.add_callback(updates)
        trainer.train(resume_from_checkpoint=checkpoint and resume(trainer, checkpoint))
        assert len(line.seen) == sum(batches for batches, _ in updates.found)
        return updates.found

    whole = run(folder / "whole")
    checkpoints = [folder / "whole" / f"checkpoint-{number}" for number in range(1, len(whole))]
    return {"whole": whole} | {path.name: run(folder / path.name, path) for path in checkpoints}


def torchtitan(folder: Path, steps: int | None) -> list[int]:
    """torchtitan's dataloader protocol, whose states torchtitan saves by torch.distributed.checkpoint."""
    from dataclasses import dataclass

    from torchtitan.components.dataloader import BaseDataLoader

    class Shards(BaseDataLoader):  # type: ignore[misc] # it has no types
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):  # type: ignore[misc, name-defined] # it has no types
            seed: int = 3

        def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, **_: Any) -> None:
            self.loader = loader(seed=config.seed, world=shardio.World(dp_rank, dp_world_size))
            self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            for batch in self.loader:
                yield {"input": batch["x"], "index": batch["index"]}, batch["valid"]

    dist.init_process_group("gloo")
    built = Shards.Config().build(dp_rank=dist.get_rank(), dp_world_size=dist.get_world_size(), local_batch_size=BATCH)
    seen: list[int] = []
    if steps is None:
        dcp.load({"dataloader": built}, checkpoint_id=folder / "step-5")
    for fields, valid in until(steps, built, lambda: dcp.save({"dataloader": built}, checkpoint_id=folder / "step-5")):
        seen += fields["index"][valid].tolist()
    dist.destroy_process_group()
    return seen


def jax(folder: Path, steps: int | None) -> list[int]:
    """JAX, whose processes make one array of their batches; it keeps all arrays, which may be the Loader's memory."""
    import jax as j
    from jax.sharding import NamedSharding, PartitionSpec

    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    j.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", ranks, rank)
    along_batch = NamedSharding(j.make_mesh((j.device_count(),), ("batch",)), PartitionSpec("batch"))
    batches, path, seen, kept = loader(to="numpy", world=shardio.World(rank, ranks)), folder / "state.json", [], []
    if steps is None:
        batches.load_state_dict(json.loads(path.read_text()))
    for step, batch in enumerate(batches, 1):
        array = j.make_array_from_process_local_data(along_batch, batch["x"])
        assert array.shape == (BATCH * ranks,)
        kept.append((array.sum(), j.device_put(batch["x"]), batch["index"].tolist()))
        seen += numbers(batch)
        if step == steps:
            if rank == 0:
                path.write_text(json.dumps(batches.state_dict()))
            break
    del array, batch
    order = batches.dataset.plan(3, "global", 64, 16).lookup(np.arange(N))[0]
    start = 0 if steps else 2 * BATCH * STEPS
    for step, (total, own, index) in enumerate(kept):
        assert own.tolist() == index
        if start + (step + 1) * BATCH * ranks <= N:  # the samples of all ranks
            assert float(total) == order[start + step * BATCH * ranks :][: BATCH * ranks].sum()
    j.distributed.shutdown()
    return seen


IMPORTS = {
    "torch_checkpoint": "torch.distributed.checkpoint",
    "torchdata": "torchdata.stateful_dataloader",
    "torchdata_torch_dataset": "torchdata.stateful_dataloader",
    "lightning": "lightning",
    "accelerate": "accelerate",
    "transformers": "transformers.trainer",
    "jax": "jax",
    "torchtitan": "torchtitan.components.dataloader",
}
"""The module that each loop needs."""


def _rank(name: str, folder: Path, rank: int, ranks: int, port: int, steps: int | None) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    # As torchrun does; the last one is how Lightning knows it.
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"})
    loop: Loop = globals()[name]
    seen = loop(folder, steps)
    Path(folder, f"seen-{ranks}-{rank}.json").write_text(json.dumps(seen))
    if dist.is_initialized():
        dist.destroy_process_group()


def _run(name: str, folder: Path, ranks: int, steps: int | None) -> None:
    """Run a loop on ranks of their own; SystemExit if one fails."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_rank, args=(name, folder, rank, ranks, port, steps)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(f"{name} on {ranks} ranks ended with {[process.exitcode for process in processes]}")


def main(name: str, path: str, resumed: list[int]) -> None:
    """Run a framework's loop on two ranks, and go on with each of some other numbers of ranks."""
    folder = Path(path)
    importlib.import_module(IMPORTS[name])
    _run(name, folder, 2, STEPS)
    for ranks in resumed:
        copy = folder / f"on-{ranks}"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("on-*", "seen-*"))
        _run(name, copy, ranks, None)
