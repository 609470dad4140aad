"""The options of every command that writes datasets, parsed and handed on to `conversion.convert`."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from .. import containers
from ..conversion.api import Conversion
from ..conversion.api import convert as convert_source
from ..conversion.container_choice import DEFAULT, kept_container
from ..conversion.pack import OnError, WrittenDataset
from ..conversion.reencode import Recompress
from ..conversion.source import Source
from ..dataset.writer import DEFAULT_SHARD_SIZE
from ..errors import BadSample, ConfigError, TooManyBad
from ..format.fields import describe, listed_names
from ..format.limits import MAX_IMAGE_PIXELS
from ..order.world import World
from ..output.records import Skipped
from ..stores.url import Url, as_url
from ..system.units import counted, format_size
from ._command import typed
from ._option_group import with_options
from ._progress import progress

ContainerName: TypeAlias = Literal["tar", "hdf5", "lmdb"]
Compression: TypeAlias = Literal["gzip", "lzf", "zstd", "none"]

SHARDS, CHOICE, IMAGES, ARRAYS, WORK, BAD = (
    *("Shards", "Choice of samples", "Images", "Arrays", "Who does the work", "Bad samples"),
)
OUTPUT = "The new dataset's directory, empty or nonexistent; or its URL, such as s3://BUCKET/PATH."
PRINTED_SKIPPED = 5  # skipped samples that the screen names


@dataclass(frozen=True, slots=True)
class PackingOptions:
    """The options of a command that writes datasets: one field for each option."""

    to: Annotated[
        ContainerName | None,
        typer.Option(
            help="The shards' container. The default is that of the datasets, else tar; of arrays and numbers from "
            "numpy, hdf5, and of small strings lmdb.",
            rich_help_panel=SHARDS,
        ),
    ] = None
    shard_size: Annotated[
        str, typer.Option(help="The estimated size at which a shard ends: 64MB, 1GiB.", rich_help_panel=SHARDS)
    ] = DEFAULT_SHARD_SIZE
    compress: Annotated[
        Compression | None,
        typer.Option(
            help="; ".join(f"{name} only, {values}" for name, values in containers.with_option("compression").items())
            + ".",
            rich_help_panel=SHARDS,
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue this command where it was interrupted, if it was.", rich_help_panel=SHARDS
        ),
    ] = False
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace the dataset at OUT once the new one is complete.", rich_help_panel=SHARDS
        ),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Write nothing; estimate the number of samples, shards and bytes.",
            rich_help_panel=SHARDS,
        ),
    ] = False
    where: Annotated[
        str | None,
        typer.Option(
            help="Take only samples for which this holds, on scalar fields: 'label < 10 and not hidden'.",
            rich_help_panel=CHOICE,
        ),
    ] = None
    shuffle: Annotated[
        int | None, typer.Option(help="Store the samples in a random order with this seed.", rich_help_panel=CHOICE)
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(help="Take at most this many samples: the first ones, in their order.", rich_help_panel=CHOICE),
    ] = None
    split: Annotated[
        str | None,
        typer.Option(
            help="Write several datasets OUT/NAME of random shares: train=0.9,val=0.1 (the seed is --shuffle's, or 0).",
            rich_help_panel=CHOICE,
        ),
    ] = None
    resize_shorter: Annotated[
        int | None,
        typer.Option(help="Shrink images whose shorter side has more pixels than this.", rich_help_panel=IMAGES),
    ] = None
    max_pixels: Annotated[
        int | None, typer.Option(help="Shrink images that have more pixels than this.", rich_help_panel=IMAGES)
    ] = None
    quality: Annotated[
        int | None,
        typer.Option(help="The quality of re-encoded JPEGs, 1 to 100. The default is 92.", rich_help_panel=IMAGES),
    ] = None
    recompress: Annotated[
        Recompress,
        typer.Option(
            help="Re-encode images: never (except those that shrink), if-needed (JPEGs that hardware decoders do not"
            " take: progressive, CMYK, rotated by a tag), always.",
            rich_help_panel=IMAGES,
        ),
    ] = "never"
    orient: Annotated[
        bool,
        typer.Option(
            "--orient",
            help="Re-encode images that an EXIF tag rotates or mirrors, upright.",
            rich_help_panel=IMAGES,
        ),
    ] = False
    store_pixels: Annotated[
        bool,
        typer.Option(
            "--store-pixels",
            help="Store images as pixels, which load without a decoder: small ones of one size.",
            rich_help_panel=IMAGES,
        ),
    ] = False
    keep_alpha: Annotated[
        bool,
        typer.Option(
            "--keep-alpha",
            help="With --store-pixels: store red, green, blue and alpha, as arrays [4, height, width].",
            rich_help_panel=IMAGES,
        ),
    ] = False
    resize: Annotated[
        str | None,
        typer.Option(
            help="With --store-pixels: resize all images to this height and width: 64,64.", rich_help_panel=IMAGES
        ),
    ] = None
    mask: Annotated[
        str | None,
        typer.Option(
            help="Keep the numbers of these fields of images, which are masks: palette indices or grey levels.",
            rich_help_panel=IMAGES,
        ),
    ] = None
    max_image_pixels: Annotated[
        int,
        typer.Option(
            help="Re-encoding holds at most this many pixels of an image at once; others are bad samples.",
            rich_help_panel=IMAGES,
        ),
    ] = MAX_IMAGE_PIXELS
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Cast all arrays to this dtype, or single fields: float16, or image=float16,mask=uint8.",
            rich_help_panel=ARRAYS,
        ),
    ] = None
    as_image: Annotated[
        str | None,
        typer.Option(
            help="Store these fields of uint8 arrays, [h, w], [h, w, 1 or 3] or [1 or 3, h, w], as images.",
            rich_help_panel=ARRAYS,
        ),
    ] = None
    squeeze: Annotated[
        str | None,
        typer.Option(
            help="Store these fields of arrays of one element, [n, 1], as numbers without a shape: label.",
            rich_help_panel=ARRAYS,
        ),
    ] = None
    optional: Annotated[
        str | None,
        typer.Option(
            help="Fields that samples may lack, such as caption,score: what is missing, or null, is then None.",
            rich_help_panel=BAD,
        ),
    ] = None
    allow_rounding: Annotated[
        bool,
        typer.Option(
            "--allow-rounding",
            help="Let --dtype round integers that a float dtype cannot hold, which are bad samples otherwise.",
            rich_help_panel=ARRAYS,
        ),
    ] = False
    ragged: Annotated[
        str | None,
        typer.Option(
            help="Store these fields of arrays without a fixed shape, where the first samples share one: tokens.",
            rich_help_panel=ARRAYS,
        ),
    ] = None
    workers: Annotated[
        int | None, typer.Option(help="The number of processes; by default one per core.", rich_help_panel=WORK)
    ] = None
    dask: Annotated[
        str | None,
        typer.Option(
            help="A Dask scheduler whose workers do the work instead: tcp://HOST:8786, or local.", rich_help_panel=WORK
        ),
    ] = None
    on_error: Annotated[
        OnError,
        typer.Option(
            help="raise: stop at the first bad sample; skip: leave bad samples out and name them.", rich_help_panel=BAD
        ),
    ] = "raise"
    max_bad: Annotated[
        float | None,
        typer.Option(
            help="With skip: how many samples may be bad, a count, or below 1 a share of all. The default is 0.01.",
            rich_help_panel=BAD,
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            help="With skip: write the bad samples to this file, a JSON object per line.", rich_help_panel=BAD
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail if anything would be left out or renamed, instead of telling it.",
            rich_help_panel=BAD,
        ),
    ] = False

    def convert(self, source: Source, out: Path, store_options: Mapping[str, str] | None = None) -> None:
        """Convert `source` and print the result; `store_options` are those of a URL's store."""
        self._check(source)
        world = World.detect()
        first_rank, place = world.rank == 0, as_url(out) or out
        with (
            advising(self.report, world, resumed=self.resume),
            progress("samples", quiet=not first_rank) as report_progress,
        ):
            result = convert_source(
                source,
                out,
                world=world,
                progress=report_progress,
                tell=print_note if first_rank else lambda note: None,
                store_options=store_options,
                **self._keywords(),
            )
        if first_rank and self.dry_run:
            self._print_estimates(place, result)
        elif first_rank:
            print_skipped(result.skipped, self.report)
            for name, dataset in result.datasets.items():
                print_dataset(place / name if name else place, dataset)
            print_rotated(result.datasets.values(), "--orient stores them upright, ")

    def _check(self, source: Source) -> None:
        """Raise ConfigError, in the words of the command line, for options that would do nothing."""
        follows = self.to is None and getattr(source, "plain_values", False)
        compressed = containers.with_option("compression")
        container = self.to or kept_container(source) or DEFAULT
        if self.compress is not None and container not in compressed and not follows:
            raise ConfigError(f"--compress is for --to {', '.join(compressed)}, got --to {container}")
        if self.on_error == "raise" and not (self.max_bad is None and self.report is None):
            raise ConfigError("--max-bad and --report go with --on-error skip")
        encodes = self.resize_shorter or self.max_pixels or self.recompress != "never"
        if self.quality is not None and not encodes:
            raise ConfigError("--quality goes with --resize-shorter, --max-pixels or --recompress")
        if self.resize is not None and not self.store_pixels:
            raise ConfigError("--resize goes with --store-pixels; --resize-shorter and --max-pixels shrink image files")
        if self.keep_alpha and not self.store_pixels:
            raise ConfigError("--keep-alpha goes with --store-pixels")
        if self.allow_rounding and not self.dtype:
            raise ConfigError("--allow-rounding goes with --dtype")

    def _keywords(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `conversion.convert`."""
        same = (
            "shard_size", "workers", "dask", "resume", "overwrite", "dry_run", "on_error", "report", "strict", "where",
            "shuffle", "limit", "resize_shorter", "max_pixels", "quality", "recompress",
            "max_image_pixels", "orient", "store_pixels", "keep_alpha", "split", "allow_rounding",
        )  # fmt: skip
        keywords = {name: getattr(self, name) for name in same}
        if self.max_bad is not None:
            keywords["max_bad"] = self.max_bad
        if self.compress is not None:
            keywords["compression"] = None if self.compress == "none" else self.compress
        return keywords | {
            "container": self.to,
            "dtype": parse_dtypes(self.dtype),
            "as_image": listed_names(self.as_image),
            "resize": None if self.resize is None else parse_size(self.resize),
            "squeeze": listed_names(self.squeeze),
            "optional": listed_names(self.optional),
            "mask": listed_names(self.mask),
            "ragged": listed_names(self.ragged),
        }

    def _print_estimates(self, out: Path | Url, result: Conversion) -> None:
        for name, estimate in result.estimates.items():
            text = f"{counted(estimate.samples, 'sample')} in {counted(estimate.shards, f'{estimate.container} shard')}"
            size = format_size(estimate.bytes)
            print(f"{out / name if name else out}: would have {text}, of about {size}, and what the container adds")
        width = max(map(len, result.fields))
        for name, field in result.fields.items():
            print(f"  {name:{width}}  {describe(field)}")


@contextlib.contextmanager
def advising(report: Path | None, world: World, *, resumed: bool) -> Iterator[None]:
    """Say what to do about an error or a Ctrl-C that ends the writing of a dataset.

    Args:
        report: as in `print_skipped`.
        world: this process's place.
        resumed: whether the command has --resume already.
    """
    keeping = "with --resume, as here, the same command keeps" if resumed else "add --resume to keep"
    try:
        yield
    except TooManyBad as error:
        if not world.rank:
            print_skipped(error.skipped, report)
        error.args = (f"{error} ({keeping} the shards that are finished)",)
        raise
    except BadSample as error:
        if error.storable:
            raise
        ways = "the same command with --on-error skip --resume leaves such samples out and goes on from here"
        raise BadSample(f"{error} ({ways})") from error
    except KeyboardInterrupt:
        print("the same command with --resume continues from here", file=sys.stderr)
        raise


def with_packing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn `command(..., packing)` into a command that has all options of `PackingOptions`."""
    return with_options(command, "packing", PackingOptions)


def parse_size(text: str) -> tuple[int, int]:
    """Return the height and width in text such as `64,48`; raise ConfigError if it is not of this form."""
    try:
        height, width = (int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"resize must be a height and a width such as 64,64, got {text!r}") from None
    return height, width


def parse_dtypes(text: str | None) -> dict[str, str]:
    """Return the dtypes in text such as `image=float16,mask=uint8` by field; one without a field by the name ""."""
    pairs = (part.strip().rpartition("=") for part in (text or "").split(",") if part.strip())
    return {name: value for name, _, value in pairs}


def print_note(note: str) -> None:
    """Print a note on a source; it names options of the command that runs."""
    print(f"note: {typed(note)}", file=sys.stderr)


def print_dataset(out: Path | Url, dataset: WrittenDataset) -> None:
    manifest = dataset.manifest
    shards = counted(len(manifest.shards), f"{manifest.container} shard")
    content = f"{counted(manifest.samples, 'sample')} in {shards}"
    print(f"{out}: {content}, {format_size(int(manifest.shards.bytes.sum()))}, digest {manifest.digest}")


def print_rotated(datasets: Iterable[WrittenDataset], advice: str = "") -> None:
    """Print how many images a tag rotates, if there are some."""
    if count := sum(dataset.rotated for dataset in datasets):
        told = f"an EXIF tag rotates or mirrors {counted(count, 'image')}, which a Loader ignores, as torchvision does"
        print(f"note: {told}: {advice}Loader(orient=True) turns them", file=sys.stderr)


def print_skipped(skipped: Sequence[Skipped], report: Path | None) -> None:
    """Print how many samples were skipped, and name the first; `report` is the file that names them all."""
    if not skipped:
        return
    ends = sum(sample.ends_file for sample in skipped)
    single = counted(len(skipped) - ends, "bad sample")
    lost = f"the lost rest of {counted(ends, 'file')}"
    print(f"skipped {' and '.join([single] * (ends < len(skipped)) + [lost] * (ends > 0))}:")
    for sample in skipped[:PRINTED_SKIPPED]:
        print(f"  {sample.reason}")
    if len(skipped) > PRINTED_SKIPPED:
        print(f"  and {len(skipped) - PRINTED_SKIPPED} more" + ("" if report else "; --report FILE names them all"))
