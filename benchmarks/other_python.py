"""Compare this shardio with the one that is installed for another interpreter, on one dataset, in turns within one run.

The other one may be an older version, another build, or one with other packages. It measures with the settings that
are given, and has its own defaults for the rest. `PYTHONPATH` holds for both: a shardio on it is what both import.

    python -m benchmarks.other_python OTHER/bin/python DATASET --settings image-size=224,threads=2 --json other.json
"""

import json
import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any


def answers(lines: Iterable[str]) -> Iterable[object]:
    """Yield 0 for the first line, which is the settings as JSON, and the rate for each number of seconds."""
    import shardio
    from shardio.bench.config import BenchConfig
    from shardio.bench.standing_ranks import StandingRanks

    questions = iter(lines)
    with StandingRanks(BenchConfig(**json.loads(next(questions)))) as ranks:
        print(f"shardio {shardio.__version__} in {Path(shardio.__file__).parent}", file=sys.stderr, flush=True)
        yield 0
        for seconds in questions:
            yield ranks.rate(float(seconds))


def main() -> None:
    """Measure in turns, print and write the result."""
    from benchmarks._results import finish, options
    from benchmarks.before_after import rates_of
    from shardio.bench.config import BenchConfig
    from shardio.bench.significance import compare_pairs
    from shardio.bench.versus import ROUNDS, TURN_SECONDS, other_side

    parser = options(__doc__, rounds=ROUNDS)
    parser.add_argument("python", help="the other interpreter")
    parser.add_argument("dataset")
    parser.add_argument("--settings", default="", help="those of both sides, as `shardio bench --versus` takes them")
    given = parser.parse_args()
    config = BenchConfig(str(Path(given.dataset).absolute()))
    config = other_side(config, given.settings) if given.settings else config
    changed = {f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != f.default}
    rates: tuple[list[float], list[float]] = ([], [])
    # Not `-m`: what is imported is the shardio of the environment, not that of the working directory.
    environ = os.environ | {"PYTHONSAFEPATH": "1"}
    with ExitStack() as started:
        sides = [
            started.enter_context(rates_of([python, __file__, "--serve"], Path.cwd(), environ))
            for python in (sys.executable, given.python)
        ]
        for ask in sides:
            ask(json.dumps(changed))
            ask(str(TURN_SECONDS))  # warms up
        for number in range(given.rounds):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                rates[side].append(sides[side](str(TURN_SECONDS)))
    result: dict[str, Any] = {
        "benchmark": "other_python",
        "settings": changed,
        "a_rates": rates[0],
        "b_rates": rates[1],
    }
    finish(result | {"comparison": asdict(compare_pairs(*rates))}, given.json)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        with os.fdopen(os.dup(1), "w") as output:
            os.dup2(2, 1)  # what else is printed must not stand among the answers
            for answer in answers(sys.stdin):
                print(answer, file=output, flush=True)
    else:
        main()
