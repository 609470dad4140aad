"""Measure what each augmentation leaves of the rate of a plain crop and flip.

    python benchmarks/photos.py /tmp/photos
    python -m benchmarks.augment /tmp/photos --json augment.json

Every row decodes the same photos, and delivers uint8 images of 224 x 224 pixels; in turns.
"""

import tempfile
from functools import partial
from pathlib import Path

import shardio
from benchmarks._results import finish, in_turns, options, rate
from benchmarks.pixels import THREADS, loader, pack
from shardio.transforms import Transform

PLAIN = "crop, flip"
CROP: list[Transform] = [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()]
ADDED: dict[str, list[Transform]] = {
    PLAIN: [],
    "Normalize(0.5, 0.25)": [shardio.Normalize(0.5, 0.25)],
    "RandomGrayscale(1)": [shardio.RandomGrayscale(1.0)],
    "ColorJitter(0.4, 0.4, 0.4)": [shardio.ColorJitter(0.4, 0.4, 0.4)],
    "ColorJitter(0.4, 0.4, 0.4, 0.1)": [shardio.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "RandomRotation(30)": [shardio.RandomRotation(30)],
    "RandomRotation(30, 'bilinear')": [shardio.RandomRotation(30, "bilinear")],
    "GaussianBlur(23)": [shardio.GaussianBlur(23)],
    "TrivialAugmentWide()": [shardio.TrivialAugmentWide()],
    "RandAugment()": [shardio.RandAugment()],
    "SimCLR: jitter, grey, blur": [
        shardio.RandomApply([shardio.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        shardio.RandomGrayscale(0.2),
        shardio.RandomApply([shardio.GaussianBlur(23)], p=0.5),
    ],
}
BATCH_SIZE = 256


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("photos", type=Path, help="a folder of JPEG photos")
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        dataset = Path(work) / "photos"
        pack(args.photos, dataset)
        loaders = {name: loader(dataset, [*CROP, *added], "exact", BATCH_SIZE) for name, added in ADDED.items()}
        rates = in_turns({name: partial(rate, one, args.seconds) for name, one in loaders.items()}, args.rounds)
    shares = {name: round(value / rates[PLAIN], 3) for name, value in rates.items()}
    result = {"images per second": {name: round(value) for name, value in rates.items()}, "of the plain rate": shares}
    finish({"threads": THREADS, "rounds": args.rounds, **result}, args.json)


if __name__ == "__main__":
    main()
