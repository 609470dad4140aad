"""Standing ranks for another interpreter, which asks for turns: `python -m shardio.bench.turn_server`.

It reads questions and writes answers, one JSON object per line: `{"config": {...}}` first, with the settings that are
not the defaults, and then `{"turn": seconds}` as often as wanted. It ends with its standard input.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from typing import Any

from .. import __version__
from ..errors import ConfigError, ShardioError
from ..system import processes
from .config import BenchConfig
from .standing_ranks import StandingRanks

SCHEMA = "shardio-bench-turns/1"


def answers(questions: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the answer to each line of `questions`; raise what StandingRanks raises."""
    lines = iter(questions)
    settings = json.loads(next(lines))["config"]
    for name in settings.keys() - {field.name for field in fields(BenchConfig)}:
        raise ConfigError(f"shardio {__version__} has no setting {name!r}")
    with StandingRanks(BenchConfig(**settings)) as ranks:
        yield {"schema": SCHEMA, "installation": asdict(ranks.installation)}
        for line in lines:
            yield {"samples_per_second": ranks.rate(json.loads(line)["turn"])}


def main() -> None:
    """Answer standard input on standard output; the last answer names the error that ended it, if there was one."""
    processes.die_with(os.getppid())
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)  # what else is printed must not stand among the answers
        try:
            for answer in answers(sys.stdin):
                print(json.dumps(answer), file=output, flush=True)
        except (ShardioError, OSError) as error:
            print(json.dumps({"error": str(error)}), file=output, flush=True)
            raise SystemExit(1) from error


if __name__ == "__main__":
    main()
