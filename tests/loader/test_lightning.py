"""Lightning's Trainer takes a Loader: its epochs are the Loader's, and a run resumes where its checkpoint stands."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _cli import python

import shardio
from shardio import ConfigError, StateMismatch, World

lightning = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402 (only where Lightning is installed)

from shardio.lightning import ResumeElastically  # noqa: E402 (it imports Lightning)

pytestmark = pytest.mark.filterwarnings(
    # Lightning's advice on the machine
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:Be aware that when using `ckpt_path`:UserWarning",  # a run may resume without its ModelCheckpoint
    # what torch says of Lightning's use of its trees
    "ignore:.*LeafSpec:FutureWarning",
)

N = 24
Epochs = dict[int, list[list[int]]]


class Model(lightning.LightningModule):  # type: ignore[misc, name-defined] # Lightning was imported by its name
    """Writes down what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: Epochs = {}
        self.validated: list[int] = []
        self.validation_batches: dict[int, list[list[float]]] = {}

    def training_step(self, batch: dict[str, Any], step: int) -> torch.Tensor:
        self.seen.setdefault(self.current_epoch, []).append(batch["index"].tolist())
        return self.weight * batch["n"].sum()

    def validation_step(self, batch: dict[str, Any], step: int) -> None:
        """Note each validation's epoch at its first batch, and its samples."""
        if not self.trainer.sanity_checking:
            self.validated += [self.current_epoch] * (step == 0)
            self.validation_batches.setdefault(self.current_epoch, []).append(batch["n"].tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


DATASET = shardio.from_samples([{"n": np.float32(number)} for number in range(N)])


def train(batch_size: int = 4, **options: Any) -> shardio.Loader:
    return shardio.Loader(DATASET, batch_size, **{"seed": 0, "world": World(), "threads": 1} | options)


def valid() -> shardio.Loader:
    return train(10, shuffle=None, tail="pad")


def trainer(**options: Any) -> Any:
    defaults = {"max_epochs": 2, "enable_checkpointing": False, "num_sanity_val_steps": 0}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", **{**defaults, **quiet, **options})


def fit(loader: Any = None, *, checkpoint: Path | None = None, **options: Any) -> Model:
    model = Model()
    trainer(**options).fit(model, loader or train(), valid(), ckpt_path=checkpoint)
    return model


def order(epoch: int, batch_size: int = 4, start: int = 0) -> list[list[int]]:
    """The batches of an epoch from a position on."""
    indices = shardio.Plan(N, 0, epoch).indices(start, N).tolist()
    return [indices[at : at + batch_size] for at in range(0, len(indices) // batch_size * batch_size, batch_size)]


def saving(folder: Path, **options: Any) -> dict[str, Any]:
    """Options of a Trainer that saves checkpoints called `step=6.ckpt`."""
    checkpoint = ModelCheckpoint(folder, "{step}", save_top_k=-1, **options)
    return {"enable_checkpointing": True, "callbacks": [checkpoint]}


def steps_of(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder, by the steps that were taken."""
    return {int(path.stem.removeprefix("step=")): path for path in folder.glob("step=*.ckpt")}


@pytest.fixture(scope="module")
def each_step(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Checkpoints after each step of two epochs of 6 steps."""
    folder = tmp_path_factory.mktemp("each_step")
    fit(**saving(folder, every_n_train_steps=1))
    return steps_of(folder)


def test_the_epochs_are_the_loaders() -> None:
    """Epoch n of a run is epoch n of the Loader, and each ends with its validation; a second run begins anew."""
    loader = train()
    for _ in range(2):
        model = fit(loader, num_sanity_val_steps=2, max_epochs=3)
        assert model.seen == {epoch: order(epoch) for epoch in range(3)}
        assert model.validated == [0, 1, 2]


@pytest.mark.parametrize("limit", [1, 2, 0.5])
def test_limited_epochs(limit: float) -> None:
    """Epochs of few batches are the beginnings of the Loader's epochs, even those of one batch."""
    steps = limit if limit >= 1 else 3
    assert fit(limit_train_batches=limit, max_epochs=3).seen == {e: order(e)[: int(steps)] for e in range(3)}


@pytest.mark.parametrize("limit", [None, 1])
def test_a_new_loader_for_each_epoch(limit: int | None) -> None:
    """Loaders that are made for each epoch deliver the epochs in turn."""

    class Data(lightning.LightningDataModule):  # type: ignore[misc, name-defined] # see Model
        def train_dataloader(self) -> shardio.Loader:
            return train()

    model = Model()
    run = trainer(reload_dataloaders_every_n_epochs=1, max_epochs=3, limit_train_batches=limit)
    run.fit(model, datamodule=Data())
    assert model.seen == {epoch: order(epoch)[:limit] for epoch in range(3)}


def test_validation_does_not_depend_on_the_run_before() -> None:
    """Random choices in validation follow the epoch, whatever the sanity check has taken."""

    def noisy(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return batch | {"n": batch["n"] + torch.from_numpy(rng.random(len(batch["n"])))}

    given = []
    for checks in (0, 2):
        model = Model()
        loader = train(8, shuffle=None, map=noisy)
        trainer(num_sanity_val_steps=checks).fit(model, train(), loader)
        given.append(model.validation_batches)
    assert given[0] == given[1]
    assert given[0][0] != given[0][1]


def test_resuming_at_an_epochs_end(tmp_path: Path) -> None:
    """Checkpoints of epochs' ends, ModelCheckpoint's default, resume with the next epoch, with any batch size."""
    options = saving(tmp_path / "of callback")
    model, run = Model(), trainer(**options)
    run.fit(model, train(), valid())
    run.save_checkpoint(tmp_path / "after.ckpt")
    ends = steps_of(tmp_path / "of callback")
    assert set(ends) == {6, 12}
    for batch_size in (4, 8):
        for checkpoint, epochs in ((ends[6], (1, 2)), (ends[12], (2,)), (tmp_path / "after.ckpt", (2,))):
            resumed = fit(train(batch_size), checkpoint=checkpoint, max_epochs=3)
            assert resumed.seen == {epoch: order(epoch, batch_size) for epoch in epochs}
            assert resumed.validated == list(epochs)


def test_resuming_in_the_middle_of_an_epoch(each_step: dict[int, Path]) -> None:
    """Any step of a run resumes with the samples that come next, with or without the callback."""
    for step, checkpoint in each_step.items():
        for callbacks in ([], [ResumeElastically()]):
            resumed = fit(checkpoint=checkpoint, callbacks=callbacks, max_epochs=3)
            rest = {step // 6: order(step // 6)[step % 6 :]} if step % 6 else {}
            assert resumed.seen == rest | {epoch: order(epoch) for epoch in range(-(-step // 6), 3)}
            assert resumed.validated == list(range(step // 6, 3))


@pytest.mark.parametrize("batch_size", [3, 8, 10])
def test_resuming_with_another_batch_size(each_step: dict[int, Path], batch_size: int) -> None:
    """With the callback, a resumed epoch is all that is left of it, ends with its validation, and others follow."""
    for step, checkpoint in each_step.items():
        resumed = fit(train(batch_size), checkpoint=checkpoint, callbacks=[ResumeElastically()], max_epochs=3)
        epoch, position = step // 6, step % 6 * 4
        rest = order(epoch, batch_size, position)
        later = range(epoch + (position > 0), 3)
        expected = ({epoch: rest} if position and rest else {}) | {later: order(later, batch_size) for later in later}
        assert resumed.seen == expected
        assert resumed.validated == list(expected)


def test_another_batch_size_without_the_callback(each_step: dict[int, Path]) -> None:
    """A warning names the callback where Lightning goes on to count the old steps, and only there."""
    middle = next(path for step, path in each_step.items() if step % 6 == 3)
    with pytest.warns(shardio.StateWarning, match=r"with 4 samples .* has 8: .* shardio\.lightning\.ResumeElastically"):
        fit(train(8), checkpoint=middle, max_epochs=3)


def test_resuming_a_limited_epoch(tmp_path: Path) -> None:
    """Runs with limit_train_batches resume as they would have gone on, also at a limited epoch's end."""
    fit(limit_train_batches=2, **saving(tmp_path, every_n_train_steps=1))
    for callbacks in ([], [ResumeElastically()]):
        for step, expected in (
            (1, {0: order(0)[1:2], 1: order(1)[:2]}),
            (2, {1: order(1)[:2]}),
            (3, {1: order(1)[1:2]}),
        ):
            resumed = fit(checkpoint=steps_of(tmp_path)[step], limit_train_batches=2, callbacks=callbacks)
            assert resumed.seen == expected


@pytest.mark.parametrize("batch_size", [4, 8])
def test_resuming_after_a_validation(tmp_path: Path, batch_size: int) -> None:
    """Checkpoints that were saved in the middle or at the end of an epoch, after validation, resume behind it."""
    fit(val_check_interval=0.5, **saving(tmp_path, save_on_train_epoch_end=False))
    for step, checkpoint in steps_of(tmp_path).items():
        resumed = fit(train(batch_size), checkpoint=checkpoint, callbacks=[ResumeElastically()], max_epochs=3)
        rest = {step // 6: order(step // 6, batch_size, 12)} if step % 6 else {}
        assert resumed.seen == rest | {epoch: order(epoch, batch_size) for epoch in range(-(-step // 6), 3)}


def test_resuming_loaders_that_are_repeated(tmp_path: Path) -> None:
    """Of two Loaders, Lightning repeats the shorter one, and a run resumes in its repetition."""

    class Pairs(Model):
        def training_step(self, batch: dict[str, Any], step: int) -> torch.Tensor:
            super().training_step(batch["short"], step)
            return super().training_step(batch["long"], step)

    runs = []
    for checkpoint in (None, "step=3.ckpt", "step=4.ckpt"):
        model = Pairs()
        options = saving(tmp_path, every_n_train_steps=1) if checkpoint is None else {}
        path = checkpoint and tmp_path / checkpoint
        trainer(**options).fit(model, {"long": train(), "short": train(8)}, ckpt_path=path)
        runs.append(model.seen)
    for resumed, step in zip(runs[1:], (3, 4), strict=True):
        assert resumed == {0: runs[0][0][2 * step :], 1: runs[0][1]}
    model = Pairs()
    with pytest.raises(ConfigError, match=r"needs one shardio\.Loader as train_dataloader, got {'long'"):
        trainer(callbacks=[ResumeElastically()]).fit(
            model, {"long": train(), "short": train(8)}, ckpt_path=tmp_path / "step=3.ckpt"
        )


def test_a_checkpoint_of_another_order(each_step: dict[int, Path]) -> None:
    """A state of another seed is refused with what to call, and the way that the documentation shows takes it."""
    with pytest.raises(StateMismatch, match=r"loader\.load_state_dict\(state, strict=False\).*docs/frameworks\.md"):
        fit(train(seed=1), checkpoint=each_step[2])

    class Forgiving(Model):
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            (self.loader_state,) = checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader")

        def train_dataloader(self) -> shardio.Loader:
            loader = train(seed=1)
            with pytest.warns(shardio.StateWarning):
                loader.load_state_dict(self.loader_state, strict=False)
            return loader

    model = Forgiving()
    trainer().fit(model, ckpt_path=each_step[2])
    plans = [shardio.Plan(N, 1, epoch).indices(0, N).reshape(-1, 4).tolist() for epoch in range(2)]
    assert model.seen == {0: plans[0][2:], 1: plans[1]}


def test_other_uses() -> None:
    """The Loader goes through `validate`, `test` and `predict` as it does through `fit`."""

    class Evaluated(Model):
        def test_step(self, batch: dict[str, Any], step: int) -> None:
            self.validation_step(batch, step)

        def predict_step(self, batch: dict[str, Any], step: int) -> list[int]:
            return batch["index"][batch["valid"]].tolist()  # type: ignore[no-any-return] # a tensor's list

    model = Evaluated()
    trainer().validate(model, valid())
    trainer().test(model, valid())
    assert model.validated == [0, 0]
    assert [index for batch in trainer().predict(model, valid()) for index in batch] == list(range(N))


@pytest.fixture
def group() -> Iterator[Callable[[], None]]:
    from torch import distributed

    yield lambda: distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    distributed.destroy_process_group()


def test_a_loader_made_before_the_group(group: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A Loader that detected another world than torch.distributed has raises that, unless `world` was given."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    detected, given = train(world=None), train(world=World(1, 2))
    next(iter(detected))
    group()
    for loader in (detected, copy.deepcopy(detected)):
        with pytest.raises(ConfigError, match=r"rank 1 of 2, but torch\.distributed now has 1 ranks.*train_dataloader"):
            iter(loader)
    for loader in (given, copy.deepcopy(given), train(world=None)):
        next(iter(loader))


FOLDERS = [str(Path(__file__).parents[number]) for number in (0, 1)]

TWO_RANKS = """
import json, sys, torch
sys.path[:0] = {tests!r}
from test_lightning import *

class Told(Model):
    def on_fit_end(self):
        seen = [None, None]
        torch.distributed.all_gather_object(seen, self.seen)
        if self.global_rank == 0:
            print(json.dumps([seen, self.validated]), flush=True)

class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return train(world=None)
    def val_dataloader(self):
        return train(shuffle=None, world=None)

def ranks(**options):
    return trainer(devices=2, strategy="ddp_fork", **options)

if __name__ == "__main__":
    try:
        ranks().fit(Model(), train(world=None))
    except Exception as error:
        print("rank 0 of 1, but torch.distributed now has 2 ranks" in str(error), flush=True)
    ranks(callbacks=[ResumeElastically()]).fit(Told(), datamodule=Data(), ckpt_path={checkpoint!r})
"""


@pytest.mark.long
def test_two_ranks(each_step: dict[int, Path], tmp_path: Path) -> None:
    """A Loader made before Lightning starts its ranks is refused there; a checkpoint of one rank resumes on two."""
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS.format(tests=FOLDERS, checkpoint=str(each_step[2])))
    result = python(script)
    refused, told = result.stdout.splitlines()
    assert refused == "True"
    seen, validated = json.loads(told)
    for epoch, start in ((0, 8), (1, 0)):
        both = [a + b for a, b in zip(*(rank[str(epoch)] for rank in seen), strict=True)]
        assert both == order(epoch, 8, start)
    assert validated == [0, 1]
