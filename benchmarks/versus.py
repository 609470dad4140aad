"""How often `shardio bench --versus` is right: the same thing is called the same, and a planted slow-down is found.

The planted one is a `map` that computes for a ninth of the processor seconds that a batch takes, so that the workers
make a tenth fewer of them, however busy the machine is. Run it on the machine as it is: neighbours are what the turns
are for.

    python benchmarks/versus.py DATASET --same 20 --slower 10 --json versus.json
"""

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks._results import finish, options
from shardio.bench.config import BenchConfig
from shardio.bench.measurement import measure
from shardio.bench.versus import ROUNDS, versus

HERE = Path(__file__).parent
THREADS, BATCH_SIZE = 2, 32
SLOW_DOWN = 0.10


def main() -> None:
    """Compare, and count."""
    parser = options(__doc__, ROUNDS)
    parser.add_argument("dataset", help="of photos, as made from benchmarks/photos.py")
    parser.add_argument("--same", type=int, default=20)
    parser.add_argument("--slower", type=int, default=10)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    sys.path.insert(0, str(HERE))
    config = BenchConfig(args.dataset, batch_size=BATCH_SIZE, image_size=224, threads=THREADS, map="planted:unchanged")
    seconds = measure(replace(config, seconds=5.0)).ranks[0].cpu_seconds_per_1000 * BATCH_SIZE / 1000
    os.environ["PLANTED_CPU_SECONDS"] = str(seconds * SLOW_DOWN / (1 - SLOW_DOWN))
    others = {"same": config, "slower": replace(config, map="planted:hash_a_while")}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in others}
    for number in range(max(args.same, args.slower)):
        for name, other in others.items():
            if number >= getattr(args, name):
                continue
            result = versus(config, other, rounds=args.rounds)
            single = [second / first for first, second in zip(result.a_rates, result.b_rates, strict=True)]
            found[name].append(asdict(result.comparison) | {"single_pairs": [min(single), max(single)]})
            print(f"{name:8} {result.comparison}", file=sys.stderr, flush=True)
    right = {name: sum(one["finding"] == name for one in found[name]) for name in found}
    counts = {"right": right, "of": {name: len(results) for name, results in found.items()}}
    finish({"benchmark": "versus", "rounds": args.rounds} | counts | found, args.json)


if __name__ == "__main__":
    main()
