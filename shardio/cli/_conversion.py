"""The options of every command that writes datasets, handed on to `shardio.convert`, and what becomes of its result."""

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from .. import containers
from ..conversion.api import Conversion
from ..conversion.api import convert as convert_source
from ..conversion.pack import WrittenDataset
from ..conversion.source import Source
from ..errors import BadSample, ConfigError, Message, TooManyBad, worded
from ..foreign.names import printable
from ..format.fields import describe
from ..order.world import World
from ..output.records import Skipped
from ..stores.url import Url, as_url
from ..system.units import counted, format_size
from ._options import Shown, options_of, with_options
from ._progress import progress

ContainerName: TypeAlias = Literal["tar", "hdf5", "lmdb"]
Compression: TypeAlias = Literal["gzip", "lzf", "zstd", "none"]

WORKERS = Shown(default=(None,), help="The number of processes.", show_default="one per core")
_GROUPS = {
    "Shards": "container shard_size compression resume overwrite dry_run",
    "Choice of samples": "where shuffle limit split",
    "Images": (
        "resize_shorter max_pixels quality recompress orient jpeg_restarts strip store_pixels keep_alpha resize mask "
        "max_image_pixels"
    ),
    "Videos": "keyframes fps codec crf keep_audio",
    "Arrays": "dtype as_image squeeze allow_rounding ragged stack",
    "Bad samples": "optional on_error max_bad report strict",
    "Parallelism": "workers dask",
}
_CLASSES = 5  # the most that are listed
_SHOWN = {
    "container": Shown("--to", kind=ContainerName | None),
    "compression": Shown(
        "--compress",
        kind=Compression | None,
        default=(None,),
        help="; ".join(f"{name} only, {values}" for name, values in containers.with_option("compression").items())
        + ".",
    ),
    "report": Shown(kind=Path | None),
    "workers": WORKERS,
}
_SHOWN_OF_APPEND = {
    "shard_size": Shown(help="The size of shards, for a dataset that does not say its own; the default is 64MB."),
    "resume": Shown(
        help="Continue this append where it was interrupted, if it was; if it was the last one, leave the dataset as "
        "it is. You can always pass --resume."
    ),
    "overwrite": Shown(help="Start over where an append is unfinished; the dataset stays."),
}
OPTIONS = options_of(convert_source, _GROUPS, _SHOWN)
with_conversion_options = with_options("conversion", OPTIONS)
"""Turns `command(..., conversion: dict[str, Any])` into a command that has all options that conversions share."""
with_append_options = with_options(
    "conversion",
    [
        option
        for option in options_of(convert_source, _GROUPS, _SHOWN | _SHOWN_OF_APPEND)
        if option.name not in ("container", "compression", "split")
    ],
)
"""Does the same with the options that an append has; the others are the dataset's."""
OUTPUT = "The new dataset's directory, empty or nonexistent; or its URL, such as s3://BUCKET/PATH."
MAX_BAD = next(option.default for option in OPTIONS if option.name == "max_bad")
PRINTED_SKIPPED = 5  # skipped samples that the screen names


def convert(
    source: Source,
    out: Path,
    options: Mapping[str, Any],
    store_options: Mapping[str, str] | None = None,
    *,
    append: bool = False,
) -> None:
    """Convert `source`, or append it to the dataset at `out`, and print the result.

    Args:
        source, out, append: as in `shardio.convert`.
        options: the options of the command.
        store_options: those of a URL's store.
    """
    keywords = dict(options)
    if keywords["on_error"] == "raise" and keywords["max_bad"] != MAX_BAD:
        raise ConfigError(Message("{max_bad} goes with {on_error:skip}"))
    if (compression := keywords.pop("compression", None)) is not None:
        keywords["compression"] = None if compression == "none" else compression
    if keywords["resize"] is not None:
        keywords["resize"] = parse_size(keywords["resize"])
    result = run(partial(convert_source, source, out, append=append), store_options=store_options, **keywords)
    place = as_url(out) or out
    if result is not None and keywords["dry_run"]:
        _print_estimates(place, result, "would get" if append else "would have")
    elif result is not None:
        for name, dataset in result.datasets.items():
            print_dataset(place / name if name else place, dataset)


def run(make: Callable[..., Conversion], *, report: Path | None, resume: bool, **keywords: Any) -> Conversion | None:
    """Convert by `make`, with progress, notes and advice, and print what was skipped; return None on other ranks."""
    world = World.detect()
    with advising(report, world, resumed=resume), progress("samples", quiet=world.rank > 0) as show:
        tell = (lambda note: None) if world.rank else print_note
        result = make(world=world, progress=show, tell=tell, report=report, resume=resume, **keywords)
    if world.rank:
        return None
    print_skipped(result.skipped, report)
    return result


def _print_estimates(out: Path | Url, result: Conversion, would: str) -> None:
    for name, estimate in result.estimates.items():
        text = f"{counted(estimate.samples, 'sample')} in {counted(estimate.shards, f'{estimate.container} shard')}"
        size = format_size(estimate.bytes)
        print(f"{out / name if name else out}: {would} {text}, of about {size}, and what the container adds")
    width = max(map(len, result.fields))
    for name, field in result.fields.items():
        print(f"  {name:{width}}  {describe(field)}")


@contextlib.contextmanager
def advising(report: Path | None, world: World, *, resumed: bool, skips: bool = True) -> Iterator[None]:
    """Say what to do about an error or a Ctrl-C that ends the writing of a dataset.

    Args:
        report: as in `print_skipped`.
        world: this process's place.
        resumed: whether the command has --resume already.
        skips: whether the command can leave bad samples out.
    """
    keeping = "with --resume, as here, the same command keeps" if resumed else "add --resume to keep"
    try:
        yield
    except TooManyBad as error:
        if not world.rank:
            print_skipped(error.skipped, report)
        error.args = (Message("{} ({} the shards that are finished)", error, keeping),)
        raise
    except BadSample as error:
        if error.storable or not skips:
            raise
        ways = "the same command with --on-error skip --resume leaves such samples out and goes on from here"
        raise BadSample("{} ({})", error, ways) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            error.errno, f"{error.strerror} (make room; {keeping} finished shards)", error.filename
        ) from error
    except KeyboardInterrupt:
        print("the same command with --resume continues from here", file=sys.stderr)
        raise


def parse_size(text: str) -> tuple[int, int]:
    """Return the height and width in text such as `64,48`; raise ConfigError if it is not of this form."""
    try:
        height, width = (int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError("{resize} must be a height and a width such as 64,64, got {!r}", text) from None
    return height, width


def print_note(note: str) -> None:
    """Print a note on a source; it names options of the command that runs."""
    print(f"note: {worded(note)}", file=sys.stderr)


def print_dataset(out: Path | Url, dataset: WrittenDataset) -> None:
    manifest = dataset.manifest
    shards = counted(len(manifest.shards), f"{manifest.container} shard")
    before = max(manifest.grew_from.values(), default=None)
    new = "" if before is None else f", {manifest.samples - before} of them new,"
    content = f"{counted(manifest.samples, 'sample')}{new} in {shards}"
    print(f"{out}: {content}, {format_size(int(manifest.shards.bytes.sum()))}, digest {manifest.digest}")
    if isinstance(classes := manifest.metadata.get("classes"), list) and classes:
        more = ", ..." if len(classes) > _CLASSES else ""
        print(f"  classes ({len(classes)}): {', '.join(map(printable, map(str, classes[:_CLASSES])))}{more}")
    for name, count in dataset.entries.items():
        speed = f" ({_rate(count / dataset.seconds)})" if dataset.seconds else ""
        print(f"  {name}: {count:,} in {counted(manifest.samples - (before or 0), 'sample', ',')}{speed}")


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s" if per_second < 1e6 else f"{per_second / 1e6:.1f} M/s"


def print_skipped(skipped: Sequence[Skipped], report: Path | None) -> None:
    """Print how many samples were skipped, and name the first; `report` is the file that names them all."""
    if not skipped:
        return
    ends = sum(sample.ends_file for sample in skipped)
    single = counted(len(skipped) - ends, "bad sample")
    lost = f"the lost rest of {counted(ends, 'file')}"
    print(f"skipped {' and '.join([single] * (ends < len(skipped)) + [lost] * (ends > 0))}:")
    for sample in skipped[:PRINTED_SKIPPED]:
        print(f"  {worded(sample.reason)}")
    if len(skipped) > PRINTED_SKIPPED:
        print(f"  and {len(skipped) - PRINTED_SKIPPED} more" + ("" if report else "; --report FILE names them all"))
