"""Create a corpus of real text from Debian's documentation packages, and a tokenizer that was trained on it.

    apt-get install bible-kjv bible-kjv-text debian-policy python3-doc
    apt-get install doc-rfc    # by far the largest, of Debian's section non-free
    python -m benchmarks.corpus /tmp/corpus --most 500MB

OUT has the same documents in the same order four times, and all their paragraphs: `files/000000.txt` and so on, one
document each; `lines/0.jsonl.gz` and so on, and `table/0.parquet` and so on, with a column `source`; `paragraphs.txt`,
all documents with blank lines between them; and `tokenizer.json`, a byte-level BPE with the token `<|endoftext|>`. The
same packages and options give the same files.
"""

import argparse
import gzip
import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from shardio.system.units import parse_size

DOCUMENTATION = Path("/usr/share/doc")
PATTERNS = {
    "debian-policy": "debian-policy/**/*.txt.gz",
    "python3-doc": "python3*/html/_sources/**/*.txt*",
    "doc-rfc": "RFC/**/*.txt.gz",
}
END = "<|endoftext|>"
TRAINED_ON = 64 << 20  # characters of documents, evenly spaced, that a tokenizer is trained on
ROWS = 2000  # documents in a file of JSON lines or a Parquet file


class Document(NamedTuple):
    """A document: the package that it is from, and its text."""

    source: str
    text: str


def documents(sources: Iterable[str] = ("bible-kjv-text", *PATTERNS)) -> Iterator[Document]:
    """Yield the documents of those of these packages that are installed, in a stable order, none twice."""
    for source in sources:
        for text in _bible() if source == "bible-kjv-text" else _files(PATTERNS[source]):
            if text.strip():
                yield Document(source, text)


def _bible() -> Iterator[str]:
    """Yield the chapters of the King James Bible, a line for each verse."""
    if shutil.which("bible") is None or not Path("/usr/lib/bible.data").exists():
        return
    printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    for _, verses in groupby(printed.splitlines(), lambda verse: verse.partition(":")[0]):
        yield "\n".join(verses) + "\n"


def _files(pattern: str) -> Iterator[str]:
    for path in sorted({path.resolve() for path in DOCUMENTATION.glob(pattern)}):  # several names lead to one file
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        try:
            yield data.decode("utf-8-sig")
        except UnicodeDecodeError:
            yield data.decode("latin-1")


def limited(found: Iterable[Document], most: int) -> Iterator[Document]:
    """Yield documents until they have `most` characters."""
    characters = 0
    for document in found:
        if (characters := characters + len(document.text)) > most:
            return
        yield document


def train(texts: Iterable[str], vocabulary: int) -> Any:
    """A byte-level BPE with the token `<|endoftext|>`, of at most `vocabulary` tokens."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def write(out: Path, found: Sequence[Document]) -> None:
    """Write documents to a folder in each of the forms that `shardio convert text` takes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for folder in ("files", "lines", "table"):
        (out / folder).mkdir(parents=True)
    with (out / "paragraphs.txt").open("w", newline="") as paragraphs:
        for number, document in enumerate(found):
            (out / "files" / f"{number:06}.txt").write_bytes(document.text.encode())
            paragraphs.write(f"{document.text}\n\n")
    for number, start in enumerate(range(0, len(found), ROWS)):
        rows = found[start : start + ROWS]
        lines = "".join(f"{json.dumps(row._asdict(), ensure_ascii=False)}\n" for row in rows)
        (out / "lines" / f"{number:04}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 6, mtime=0))
        table = pa.Table.from_pylist([row._asdict() for row in rows])
        pq.write_table(table, out / "table" / f"{number:04}.parquet", row_group_size=100)


def in_paragraphs(text: str) -> list[str]:
    """The paragraphs of a text: lines without a blank one between them."""
    parts = groupby(text.encode().split(b"\n"), lambda line: bool(line.strip()))
    return [b"\n".join(lines).rstrip(b"\r").decode() for filled, lines in parts if filled]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", default="1GB", help="characters of text")
    parser.add_argument("--vocabulary", type=int, default=32000)
    args = parser.parse_args()
    found = list(limited(documents(), parse_size(args.most)))
    if not found:
        parser.error(f"no text below {DOCUMENTATION}: install the packages named in --help")
    write(args.out, found)
    characters = sum(len(document.text) for document in found)
    some = found[:: max(1, characters // TRAINED_ON)]
    train((document.text for document in some), args.vocabulary).save(str(args.out / "tokenizer.json"))
    counts = {source: len(list(group)) for source, group in groupby(found, lambda document: document.source)}
    print(f"{len(found)} documents of {characters} characters in {args.out}: {counts}")


if __name__ == "__main__":
    main()
