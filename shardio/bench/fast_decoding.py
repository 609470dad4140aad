"""How much faster `decode="fast"` makes the images of this dataset, with these transforms, on this machine."""

import time
from typing import Literal

import numpy as np

from ..engines.fused_images import Decode
from ..loader.torch_dataset import TorchDataset
from .config import BenchConfig
from .rank import open_with_transforms

SECONDS = 0.5  # of processor time, for both ways together
_SAMPLES = 4  # in one call


def fast_decoding(config: BenchConfig) -> float | None:
    """Return how many times as fast samples are read and decoded with `decode="fast"` as with `decode="exact"`.

    None if there is no image to decode. Both ways make the same samples with the same crops, in turns, on this thread.
    Their processor time is compared, which other processes hardly change.
    """
    dataset, transforms = open_with_transforms(config)
    if not any(field.kind == "image" for field in dataset.fields.values()):
        return None
    bad: Literal["raise", "replace"] = "raise" if config.on_bad_sample == "raise" else "replace"
    names: tuple[Decode, Decode] = ("exact", "fast")
    ways = [
        TorchDataset(dataset, transforms=transforms, decode=name, seed=config.seed, on_bad_sample=bad) for name in names
    ]
    seconds = np.zeros(2)
    for number in range(len(dataset)):
        samples = [(number * _SAMPLES + n) * 7919 % len(dataset) for n in range(_SAMPLES)]  # from all over the dataset
        for way, torch_dataset in enumerate(ways):
            begun = time.thread_time()
            torch_dataset.__getitems__(samples)
            if number:  # the first call loads libraries
                seconds[way] += time.thread_time() - begun
        if seconds.sum() >= SECONDS:
            break
    return float(seconds[0] / seconds[1]) if seconds[1] else None
