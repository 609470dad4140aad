"""Compare loaders of token sequences: windows of 2,048 tokens, packed rows and buckets, on 1 and 2 ranks.

    python -m benchmarks.corpus /tmp/corpus --most 500MB
    python -m benchmarks.sequences /tmp/corpus --json sequences.json

All loaders deliver the same documents in random order as int64 tensors, from the page cache, in turns. A rank is a
process; ranks share two threads or worker processes, and begin together. Figures are million tokens per second of all
ranks, padding not counted: medians over rounds, and ratios to the first loader of shardio within each round.

    windows     of documents: [32, 2048], rows without padding
    packed      of documents: [32, 2048], longer ones are split; `rows` beside `least_rows`, ceil(tokens / 2048)
    buckets     of paragraphs: [paragraphs, longest], at most 16,384 places; `padding` beside that of random batches
"""

import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardio
from benchmarks._environments import environment
from benchmarks._processes import START, PeerFailed, ask, environ, run
from benchmarks._results import finish, options, ratio, turns
from benchmarks._rounds import last_line
from benchmarks._store import kept
from benchmarks.sequence_loaders import BUDGET, CONTAINERS, LENGTH, LOADERS, TEXTS, Place, by_budget

MODULE = ("loaders", "sequence")  # benchmarks/sequence_loaders.py says what its environment has
WORLDS = (1, 2)
SOURCES = {"documents": ["files"], "paragraphs": ["paragraphs.txt", "--paragraphs", "--limit", "500000"]}
"""Files of the corpus, and options of `shardio convert text`, by the name of what becomes of them."""


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("corpus", type=Path, help="made by benchmarks/corpus.py")
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardio-sequences"), help="environment and data")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--only", nargs="+", default=list(LOADERS), choices=LOADERS, metavar="TASK")
    parser.add_argument("--loaders", nargs="+", metavar="NAME", help="those whose names begin so (default: all)")
    args = parser.parse_args()
    work = args.work.absolute()
    ranks = Ranks(environment(MODULE[0], work, MODULE[1]), work, work / "data")
    corpus = args.corpus.absolute()
    kept(ranks.folder, str(corpus), partial(_prepare, corpus))
    peers = kept(ranks.folder / "peers", str(corpus), ranks.prepare)
    result: dict[str, Any] = {"rounds": args.rounds}
    for task in args.only:
        names = [name for name in LOADERS[task] if not args.loaders or name.startswith(tuple(args.loaders))]
        lengths = np.diff(Place(ranks.folder, 0, 1).data(TEXTS[task])[1])
        least: dict[str, Any] = {"texts": len(lengths), "tokens": int(lengths.sum())}
        if task == "packed":
            least["least_rows"] = -(-least["tokens"] // LENGTH)
        if task == "buckets":
            least["padding_of_random_batches"] = round(_random_padding(lengths), 4)
        print(task, least, file=sys.stderr)
        result[task] = least | measure(ranks, task, names, args.rounds, args.seconds)
    finish(result | {"versions": json.loads((peers / "versions.json").read_text())}, args.json)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Starts the ranks of a loader.

    Attributes:
        peers: the interpreter of the peers.
        work: where caches are.
        folder: where the data is.
    """

    peers: Path
    work: Path
    folder: Path

    def prepare(self, out: Path) -> None:
        """Write the corpus in the peers' formats, and their versions. Raises PeerFailed."""
        (versions,) = self._start(self.peers, 1, {"do": "prepare", "out": str(out)})
        (out / "versions.json").write_text(json.dumps(versions))

    def count(self, task: str, loader: str) -> dict[str, Any]:
        """The rows, places and tokens of an epoch. Raises PeerFailed."""
        (counted,) = self._start(self._python(loader), 1, {"do": "count", "task": task, "loader": loader})
        return counted

    def rate(self, task: str, loader: str, world: int, seconds: float) -> float:
        """Million tokens per second of all ranks; NaN if one of them failed."""
        order = {"do": "rate", "task": task, "loader": loader, "seconds": seconds}
        try:
            found = self._start(self._python(loader), world, order)
        except PeerFailed as error:
            print(f"{task} {loader}: {last_line(str(error))}", file=sys.stderr)
            return math.nan
        return float(sum(rank["tokens"] / rank["seconds"] for rank in found) / 1e6)

    def _python(self, loader: str) -> Path:
        return Path(sys.executable) if loader.startswith("shardio") else self.peers

    def _start(self, python: Path, world: int, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(world) as pool:
            place = {"folder": str(self.folder), "world": world, "meeting": f"{folder}/meeting"}
            return list(pool.map(lambda rank: self._rank(python, {**order, **place, "rank": rank}), range(world)))

    def _rank(self, python: Path, order: Mapping[str, Any]) -> dict[str, Any]:
        names = {"RANK": order["rank"], "LOCAL_RANK": order["rank"]}
        names |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), order["world"])
        environment = environ(MODULE[0], self.work, MODULE[1]) | {name: str(value) for name, value in names.items()}
        if order["world"] > 1:
            environment["OMP_NUM_THREADS"] = "1"  # as torchrun does
        return ask([str(python), "-c", START, "benchmarks.sequence_loaders"], order, environment)


def measure(ranks: Ranks, task: str, names: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    """The figures of a task by loader: counts of an epoch, rates, and ratios to the first loader."""
    found: dict[str, Any] = {name: {} for name in names}
    if task != "windows":
        for name in names:
            counted = ranks.count(task, name)
            padding = round(1 - counted["tokens"] / counted["places"], 4)
            found[name] = {"rows": counted["rows"], "tokens": counted["tokens"], "padding": padding}
            print(task, name, found[name], file=sys.stderr, flush=True)
    for world in WORLDS:
        runs = {name: partial(ranks.rate, task, name, world, seconds) for name in names}
        rates = turns(runs, rounds)
        for name in names:
            compared = ratio(rates[name], rates[names[0]])
            figures = {"million_tokens_per_second": median(rates[name]), f"of {names[0]}": compared}
            found[name][f"ranks_{world}"] = {key: round(value, 3) for key, value in figures.items()}
            print(task, name, world, figures, file=sys.stderr, flush=True)
    return {"loaders": found}


def _prepare(corpus: Path, out: Path) -> None:
    """Convert the corpus with shardio to each container, and write its tokens and where texts begin as arrays."""
    tokenizer = ["--tokenizer", str(corpus / "tokenizer.json")]
    for texts, source in SOURCES.items():
        first, *others = [out / texts / name for name in CONTAINERS]
        given = [str(corpus / source[0]), str(first), *source[1:], *tokenizer, "--to", first.name]
        run([sys.executable, "-m", "shardio", "convert", "text", *given])
        data = shardio.open(first)
        tokens = [data[number]["tokens"] for number in range(len(data))]
        np.save(out / texts / "tokens.npy", np.concatenate(tokens))
        np.save(out / texts / "offsets.npy", np.cumsum([0, *map(len, tokens)]))
        for other in others:
            with shardio.create(other, container=other.name, fields=dict(data.fields)) as writer:
                for values in tokens:
                    writer.append({"tokens": values})


def _random_padding(lengths: NDArray[np.int64]) -> float:
    """The share of padding in batches of the same budget that are made of documents in random order."""
    order = np.random.default_rng(0).permutation(np.flatnonzero(lengths <= BUDGET))
    batches = [lengths[batch] for batch in by_budget(order, lengths)]
    return 1 - float(sum(batch.sum() for batch in batches) / sum(len(batch) * batch.max() for batch in batches))


if __name__ == "__main__":
    main()
