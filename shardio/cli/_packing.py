"""The options of every command that writes shards, and what they do."""

import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

from .. import containers
from ..conversion import Conversion, Skipped, estimate
from ..conversion import convert as run
from ..conversion.choice import parse_split, shuffled, split
from ..conversion.matching import matching
from ..conversion.pack import OnError, Progress
from ..conversion.reencode import Recompress, ReencodeOptions
from ..conversion.runners import in_processes
from ..conversion.source import HasRemarks, Source
from ..conversion.transformed_source import TransformedSource
from ..dataset.writer import DEFAULT_SHARD_SIZE
from ..errors import BadSample, ConfigError, TooManyBad
from ..format.fields import Field, describe
from ..order.world import World
from ..system.types import Indices
from ..system.units import format_size
from ._progress import progress

SHOWN = 5  # skipped samples named on the screen


@dataclass(frozen=True, slots=True)
class Packing:
    """How samples become a dataset: one field for each option."""

    to: Annotated[str, typer.Option(help=f"The container: {', '.join(containers.names())}.")] = "tar"
    shard_size: Annotated[
        str, typer.Option(help="A shard ends once its samples take this much, by estimates: 64MB, 1GiB.")
    ] = DEFAULT_SHARD_SIZE
    workers: Annotated[int | None, typer.Option(help="Processes; without it one per core.")] = None
    dask: Annotated[
        str | None, typer.Option(help="A Dask scheduler whose workers do the work: tcp://HOST:8786, or local.")
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what is left of this command, if it was cut off.")
    ] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset at OUT once the new one is whole.")
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Write nothing; tell how many samples, shards and bytes there would be, about."),
    ] = False
    on_error: Annotated[
        str, typer.Option(help="raise: end at the first bad sample; skip: leave bad samples out and say which.")
    ] = "raise"
    max_bad: Annotated[
        float | None,
        typer.Option(help="With skip: how many may be bad, a count, or below 1 a share of all. Without it 0.01."),
    ] = None
    report: Annotated[
        Path | None, typer.Option(help="With skip: write what was left out to this file, a JSON line each.")
    ] = None
    where: Annotated[
        str | None,
        typer.Option(help="Only samples for which this holds, of scalar fields: 'label < 10 and not hidden'."),
    ] = None
    shuffle: Annotated[int | None, typer.Option(help="Store the samples in a random order, of this seed.")] = None
    limit: Annotated[int | None, typer.Option(help="At most this many samples: the first ones, in their order.")] = None
    split: Annotated[
        str | None,
        typer.Option(
            help="Several datasets OUT/NAME, by random shares: train=0.9,val=0.1 (the seed is --shuffle's, or 0)."
        ),
    ] = None
    resize_shorter: Annotated[
        int | None, typer.Option(help="Shrink images whose shorter side is longer than this many pixels.")
    ] = None
    max_pixels: Annotated[int | None, typer.Option(help="Shrink images that have more pixels than this.")] = None
    quality: Annotated[int | None, typer.Option(help="Of JPEGs that are encoded anew, 1 to 100. Without it 92.")] = None
    recompress: Annotated[
        str,
        typer.Option(
            help="Encode images anew: never (but for those that shrink), if-needed (JPEGs that hardware decoders do not"
            " take: progressive, CMYK, rotated by a tag), always."
        ),
    ] = "never"
    dtype: Annotated[
        str | None,
        typer.Option(help="Cast arrays to this dtype, or single fields: float16, or image=float16,mask=uint8."),
    ] = None
    pixels: Annotated[
        str | None,
        typer.Option(help="Fields of uint8 arrays, [h, w], [h, w, 1 or 3] or [1 or 3, h, w], to become PNG images."),
    ] = None
    squeeze: Annotated[
        str | None,
        typer.Option(help="Fields of arrays of one element, [n, 1], to become numbers without a shape: label."),
    ] = None
    compress: Annotated[
        str | None,
        typer.Option(
            help="; ".join(f"{name} only, {values}" for name, values in containers.with_option("compression").items())
            + "."
        ),
    ] = None

    def carry_out(self, source: Source, out: Path) -> None:
        """Writes the dataset, or the datasets, and tells of them."""
        self._check()
        world = World.detect()
        workers = max(1, len(os.sched_getaffinity(0)) // world.local_size) if self.workers is None else self.workers
        if self.report is not None and not world.rank and not self.dry_run:
            self.report.open("a").close()  # a path that cannot be written to shows now, and not after the work
        if not world.rank:
            for remark in (*(source.remarks if isinstance(source, HasRemarks) else ()), *self._remarks(source)):
                print(f"note: {remark}", file=sys.stderr)
        source = self._reworked(source)
        try:
            self._carry_out(source, out, workers, world)
        except TooManyBad as error:
            if not world.rank:
                tell_skipped([("", bad) for bad in error.skipped], self.report)
            raise
        except BadSample as error:
            ways = "--on-error skip leaves such samples out; with --resume goes on what was begun"
            raise BadSample(f"{error} ({ways})") from error
        except KeyboardInterrupt:
            print("the same command with --resume goes on from here", file=sys.stderr)
            raise

    def _check(self) -> None:
        """ConfigError for options that would do nothing."""
        if self.to not in containers.names():
            raise ConfigError(f"--to must be one of {', '.join(containers.names())}, got {self.to!r}")
        if self.compress is not None and self.to not in (compressed := containers.with_option("compression")):
            raise ConfigError(f"--compress is for --to {', '.join(compressed)}, got --to {self.to}")
        if self.on_error == "raise" and not (self.max_bad is None and self.report is None):
            raise ConfigError("--max-bad and --report go with --on-error skip")
        encodes = self.resize_shorter or self.max_pixels or self.recompress != "never"
        if self.quality is not None and not encodes:
            raise ConfigError("--quality goes with --resize-shorter, --max-pixels or --recompress")

    def _carry_out(self, source: Source, out: Path, workers: int, world: World) -> None:
        skipped: list[tuple[str, Skipped]] = []
        with progress("samples", quiet=world.rank > 0) as show:
            chosen = self._chosen(source, workers, show)
            made = {}
            for name, numbers in ({} if self.dry_run else chosen).items():
                made[name] = self._convert(source, out / name, numbers, workers, world, _named(show, name))
                skipped += [(name, bad) for bad in made[name].skipped]
        if self.dry_run and not world.rank:
            self._tell_outlook(source, out, chosen)
        elif not world.rank:
            tell_skipped(skipped, self.report)
            for name, conversion in made.items():
                tell(out / name, conversion)

    def _convert(
        self, source: Source, out: Path, numbers: Indices | None, workers: int, world: World, show: Any
    ) -> Conversion:
        return run(
            source,
            out,
            container=self.to,
            shard_size=self.shard_size,
            numbers=numbers,
            workers=workers,
            dask=self.dask,
            world=world,
            on_error=cast(OnError, self.on_error),  # checked there
            max_bad=0.01 if self.max_bad is None else self.max_bad,
            resume=self.resume,
            overwrite=self.overwrite,
            progress=show,
            **self._options,
        )

    @property
    def _options(self) -> dict[str, Any]:
        """The container's own."""
        return {} if self.compress is None else {"compression": None if self.compress == "none" else self.compress}

    def _tell_outlook(self, source: Source, out: Path, chosen: Mapping[str, Indices | None]) -> None:
        for name, numbers in chosen.items():
            found = estimate(source, container=self.to, shard_size=self.shard_size, numbers=numbers, **self._options)
            told = f"{found.samples} samples in {found.shards} {self.to} shards, of about {format_size(found.bytes)}"
            print(f"{out / name}: would have {told}, and what the container adds")
        width = max(map(len, source.fields))
        for name, field in source.fields.items():
            print(f"  {name:{width}}  {describe(field)}")

    def _remarks(self, source: Source) -> Iterator[str]:
        """Of fields that look like something else than they are stored as."""
        for name, field in source.fields.items():
            single = field.kind == "array" and field.shape is not None and math.prod(field.shape) == 1
            if name == "label" and single and name not in _names(self.squeeze):
                yield f"field 'label' is {describe(field)}; --squeeze label makes numbers of it, which training takes"
            if name not in _names(self.pixels) and _looks_like_pixels(field):
                yield f"field {name!r} is {describe(field)}; if these are pixels, --pixels {name} makes images of them"

    def _reworked(self, source: Source) -> Source:
        images = ReencodeOptions(
            self.resize_shorter,
            self.max_pixels,
            92 if self.quality is None else self.quality,
            cast(Recompress, self.recompress),
        )
        dtypes = _pairs(self.dtype)
        pixels, squeeze = _names(self.pixels), _names(self.squeeze)
        idle = images.idle and not (dtypes or pixels or squeeze)
        return source if idle else TransformedSource(source, images, dtypes, pixels, squeeze)

    def _chosen(self, source: Source, workers: int, show: Any) -> Mapping[str, Indices | None]:
        """By the name of each split ("" if there are none) its samples' numbers; None for all."""
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit must be at least 1, got {self.limit}")
        parts = None if self.split is None else parse_split(self.split)
        if self.where is None and self.shuffle is None and self.limit is None and parts is None:
            return {"": None}
        if self.where is None:
            numbers = np.arange(len(source.sizes()))
        else:
            numbers = matching(source, self.where, in_processes(workers), show)
        if self.shuffle is not None:
            numbers = shuffled(numbers, self.shuffle)
        numbers = numbers[: self.limit]
        chosen = {"": numbers} if parts is None else split(numbers, parts, self.shuffle or 0)
        if empty := [name for name, part in chosen.items() if name and not len(part)]:
            raise ConfigError(f"--split: of {len(numbers)} samples none are left for {', '.join(empty)}")
        return chosen


def with_packing(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., packing)` as a command that has all of `Packing`'s options."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "packing"]
    names = [option.name for option in fields(Packing)]

    def packed(**values: Any) -> None:
        packing = Packing(**{name: values.pop(name) for name in names})
        command(**values, packing=packing)

    options = [
        inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, annotation=o.type, default=o.default)
        for o in fields(Packing)
    ]
    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *options]
    described = cast(Any, packed)
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {p.name: p.annotation for p in parameters}
    described.__doc__, described.__name__ = command.__doc__, command.__name__
    return packed


def _looks_like_pixels(field: Field) -> bool:
    """Whether image transforms would be looked for: bytes [h, w], [h, w, 3] or [3, h, w], 16 pixels a side or more."""
    shape = field.shape or ()
    sides = shape[1:] if len(shape) == 3 and shape[0] in (1, 3) else shape[:2]
    channels = len(shape) == 2 or (len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)))
    return field.kind == "array" and field.dtype == "uint8" and channels and min(sides) >= 16


def _named(show: Progress, name: str) -> Progress:
    """Progress of one of several datasets."""
    return (lambda what, done, total: show(f"{what} {name}", done, total)) if name else show


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _pairs(text: str | None) -> dict[str, str]:
    """`image=float16,mask=uint8` by name; a lone `float16` by the name ""."""
    pairs = (part.strip().rpartition("=") for part in (text or "").split(",") if part.strip())
    return {name: value for name, _, value in pairs}


def tell(out: Path, conversion: Conversion) -> None:
    made = conversion.manifest
    size = format_size(int(made.shards.bytes.sum()))
    print(f"{out}: {made.samples} samples in {len(made.shards)} {made.container} shards, {size}, digest {made.digest}")


def tell_skipped(skipped: list[tuple[str, Skipped]], report: Path | None) -> None:
    if report is not None and (skipped or not report.exists() or not report.stat().st_size):
        lines = [{**({"split": n} if n else {}), "number": s.number, "reason": s.reason} for n, s in skipped]
        report.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    if skipped:
        print(f"skipped {len(skipped)} bad samples:")
        for _, bad in skipped[:SHOWN]:
            print(f"  {bad.reason}")
        if len(skipped) > SHOWN:
            print(f"  and {len(skipped) - SHOWN} more" + ("" if report else "; --report FILE names them all"))
