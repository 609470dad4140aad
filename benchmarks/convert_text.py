"""Convert text to tokens beside plain loops over the same documents, and compare every token.

    python -m benchmarks.corpus /tmp/corpus --most 100MB
    python -m benchmarks.convert_text /tmp/corpus --forms files,lines,table,paragraphs.txt --json tokens.json

`shardio` is the whole conversion, by `--workers` processes: scanning, tokens, shards on the disk. `loop` is a plain
loop of `tokenizer.encode` over texts in memory, `batch` is `encode_batch`, 100 documents at a time, on all cores.
Tokens of every document are those of the loop, or the benchmark fails.
"""

import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

import shardio
from benchmarks._results import finish, options, turns
from benchmarks.corpus import in_paragraphs

BATCH = 100


def texts_of(corpus: Path, form: str) -> list[str]:
    """The documents of one form of the corpus, read without shardio."""
    if form == "paragraphs.txt":
        return in_paragraphs((corpus / form).read_bytes().decode())
    files = sorted((corpus / "lines").iterdir())
    return [json.loads(line)["text"] for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]


def measure(corpus: Path, form: str, workers: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of each way, by round; AssertionError if a token differs."""
    texts, path = texts_of(corpus, form), str(corpus / "tokenizer.json")
    made = tokenizers.Tokenizer.from_file(path)
    expected: list[Any] = []

    def loop() -> float:
        begun = time.perf_counter()
        expected[:] = [np.array(made.encode(text).ids, np.uint32) for text in texts]
        return time.perf_counter() - begun

    def batch() -> float:
        begun = time.perf_counter()
        for start in range(0, len(texts), BATCH):
            for found in made.encode_batch(texts[start : start + BATCH]):
                np.array(found.ids, np.uint32)
        return time.perf_counter() - begun

    def convert() -> float:
        with tempfile.TemporaryDirectory() as folder:
            given = {"tokenizer": path, "paragraphs": form == "paragraphs.txt"}
            begun = time.perf_counter()
            shardio.convert(
                corpus / form,
                Path(folder, "out"),
                converter="text",
                converter_options=given,
                workers=workers,
                container="hdf5",
                tell=lambda note: None,
            )
            seconds = time.perf_counter() - begun
            dataset = shardio.open(Path(folder, "out"))
            if len(dataset) != len(expected):
                raise AssertionError(f"{form}: {len(dataset)} documents, not {len(expected)}")
            for number, tokens in enumerate(expected):
                if not np.array_equal(dataset[number]["tokens"], tokens):
                    raise AssertionError(f"{form}: document {number} has other tokens")
        return seconds

    found = turns({"loop": loop, "shardio": convert, "batch": batch}, rounds)  # the loop makes `expected`
    tokens = sum(map(len, expected))
    rates = {name: [round(tokens / value) for value in seconds] for name, seconds in found.items()}
    return {"documents": len(texts), "tokens": tokens, "equal": True, "tokens_per_second": rates}


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=1)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--forms", default="lines", help="of files, lines, table and paragraphs.txt")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    args = parser.parse_args()
    found = {}
    for form in args.forms.split(","):
        found[form] = measure(args.corpus, form, args.workers, args.rounds)
        print(f"{form}: {found[form]}", file=sys.stderr)
    finish({"corpus": str(args.corpus), "workers": args.workers, "forms": found}, args.json)


if __name__ == "__main__":
    main()
