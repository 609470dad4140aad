"""Create HDF5 files of synthetic volumes whose parameters are known, in the manner of CosmoFlow's simulations.

    python examples/make_volumes.py OUT [--train 2048] [--val 256] [--side 32] [--seed 0]

It writes OUT/train.h5 and OUT/val.h5, each with `volumes`, float16 [N, 2, side, side, side], and `parameters`, float32
[N, 3]. A volume is a density at two times: a random field with the power spectrum k^slope, whose exponential is taken.
The parameters are the field's amplitude, 0.5 to 1.5; its slope, -3 to -1; and its growth, 0.3 to 1, by which the
amplitude is smaller at the first time.
"""

import argparse
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

RANGES = np.array([(0.5, 1.5), (-3.0, -1.0), (0.3, 1.0)])


def volume(parameters: NDArray[np.float64], side: int, random: np.random.Generator) -> NDArray[np.float16]:
    """Return the density at both times, [2, side, side, side], with a mean of about 1."""
    amplitude, slope, growth = parameters
    frequencies = np.fft.fftfreq(side), np.fft.fftfreq(side), np.fft.rfftfreq(side)
    squared = sum(np.square(axis) for axis in np.meshgrid(*frequencies, indexing="ij"))
    squared[0, 0, 0] = np.inf  # no power in the mean
    noise = np.fft.rfftn(random.standard_normal((side, side, side)))
    field = np.fft.irfftn(noise * squared ** (slope / 4), s=(side,) * 3, axes=(0, 1, 2))
    field *= amplitude / field.std()
    times = np.stack((growth * field, field))
    return np.exp(times - times.var(axis=(1, 2, 3), keepdims=True) / 2).astype(np.float16)


def write(path: Path, count: int, side: int, random: np.random.Generator) -> None:
    """Write a file of so many volumes."""
    parameters = random.uniform(*RANGES.T, (count, len(RANGES)))
    with h5py.File(path, "w") as file:
        volumes = file.create_dataset("volumes", (count, 2, side, side, side), np.float16)
        for number, values in enumerate(parameters):
            volumes[number] = volume(values, side, random)
        file["parameters"] = parameters.astype(np.float32)


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, value in (("train", 2048), ("val", 256), ("side", 32), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(given.seed)
    for name, count in (("train", given.train), ("val", given.val)):
        write(given.out / f"{name}.h5", count, given.side, random)
        print(f"{given.out / name}.h5: {count} volumes of {given.side}^3 voxels")


if __name__ == "__main__":
    main()
