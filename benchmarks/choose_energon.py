"""Choosing with Megatron Energon: a savable loader, `energon checkpoint redist`, and blends of a metadataset."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import choose_webdataset
from benchmarks._choosing import APPENDED, GLOBAL_BATCH, RANKS, SHARES, SOURCES, Feed, Place

REQUIREMENTS = ("torch==2.13.0", "numpy==2.4.6", "megatron-energon==7.4.1")
VERSIONS = ("megatron-energon", "webdataset", "torch")
IMPORTS = ("megatron.energon",)
HOW = {
    "all": "get_savable_loader, and `energon checkpoint redist`",
    "mix": "a metadataset's blend by weight",
    "grow": "more tars, and `energon prepare` again",
}
EACH = GLOBAL_BATCH // RANKS  # samples in a batch of a worker; there are always RANKS workers, whatever the ranks
BLEND = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
"""


def prepare(folder: Path) -> None:
    """Write tars of 64 samples for each source, their metadata, and the blend's."""
    for name, numbers in zip((*"abc", "grown"), (*SOURCES, SOURCES[0]), strict=True):
        _write(folder / name, "part", numbers)
    blend = "".join(
        f"      - path: {name}\n        weight: {share}\n        subflavors: {{}}\n"
        for name, share in zip("abc", SHARES, strict=True)
    )
    (folder / "mix.yaml").write_text(BLEND + blend)


def grow(folder: Path) -> None:
    """Write more tars next to the others."""
    _write(folder / "grown", "part-new", APPENDED)


def _write(folder: Path, name: str, numbers: range) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    choose_webdataset.write(folder, name, numbers)
    options = ["--non-interactive", "--force-overwrite", "--num-workers", "1", "--split-ratio", "1,0,0"]
    _energon("prepare", str(folder), *options, "--sample-type", "CrudeWebdataset")


def _energon(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("energon")), *arguments], check=True, capture_output=True)


def feed(task: str, place: Place) -> Feed:
    """A loader for a task."""
    return _Feed(task, place)


class _Feed(Feed):
    """A step takes a batch of each worker of this rank."""

    def __init__(self, task: str, place: Place) -> None:
        from megatron import energon

        self._place = place
        self._workers = RANKS // place.world
        self._loader = energon.get_savable_loader(
            energon.get_train_dataset(
                str(place.folder / {"mix": "mix.yaml", "grow": "grown"}.get(task, "a")),
                worker_config=energon.WorkerConfig(rank=place.rank, world_size=place.world, num_workers=self._workers),
                batch_size=EACH,
                shuffle_buffer_size=128,
                max_samples_per_sequence=32,
                task_encoder=_encoder(),
                repeat=task == "mix",
            )
        )

    def __iter__(self) -> Iterator[list[int]]:
        batches = iter(self._loader)
        while group := list(islice(batches, self._workers)):
            yield [number for batch in group for number in batch]

    def save(self, path: Path) -> None:
        """Write this rank's state."""
        import torch

        torch.save(self._loader.save_state_rank(), path)

    def load(self, path: Path) -> None:
        """Take this rank's state, made for another number of ranks where there is one."""
        import torch

        if self._place.world != RANKS:
            stem = path.name.rpartition("-")[0]
            out = path.with_name(f"{stem}-for-{self._place.world}-{self._place.rank}")
            out.mkdir(exist_ok=True)  # it doesn't make one
            found = [str(path.with_name(f"{stem}-{rank}")) for rank in range(RANKS)]
            _energon("checkpoint", "redist", "--new-world-size", str(self._place.world), *found, str(out))
            path = out / path.name
        self._loader.restore_state_rank(torch.load(path, weights_only=False))


def _encoder() -> Any:
    from megatron import energon

    @energon.stateless  # type: ignore[untyped-decorator]  # energon isn't installed where mypy runs
    def number(sample: dict[str, Any]) -> dict[str, Any]:
        text = sample["json"]
        return dict(
            **energon.basic_sample_keys(sample), number=(text if isinstance(text, dict) else json.loads(text))["id"]
        )

    class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc]  # energon isn't installed where mypy runs
        """Batches of numbers of samples."""

        cookers = (energon.Cooker(number),)

        def batch(self, samples: list[Any]) -> list[int]:
            return [sample["number"] for sample in samples]

    return Encoder()
