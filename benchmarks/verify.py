"""Measure the cost of checksums: the loader with and without `verify=True`.

    python benchmarks/verify.py /tmp/photos --json verify.json

Photos (RandomResizedCrop(224) and flip), arrays of 2 MiB and records of 3 KB, in the page cache.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._results import finish, in_turns, options, rate
from benchmarks.settings import SETTLE, TURN, workloads


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("photos", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {}
        for name, make in workloads(Path(folder), args.photos).items():
            loaders = {f"verify={on}": make(verify=on) for on in (False, True)}
            for loader in loaders.values():
                rate(loader, SETTLE)
            rates = in_turns({key: partial(rate, loader, TURN) for key, loader in loaders.items()}, args.rounds)
            result[name] = {"samples_per_s": rates, "ratio": rates["verify=True"] / rates["verify=False"]}
        finish(result, args.json)


if __name__ == "__main__":
    main()
