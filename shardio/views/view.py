"""The methods of datasets that make views, and the views that they make.

A view is rows of another dataset, chosen by an index map, and read as that dataset is read.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, final, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, SplitWarning
from ..format.fields import presence
from ..order.plan import Order, Plan, Shuffle
from ..order.weighted import Points, WeightedPlan
from ..system.rules import as_integer
from ..system.types import Indices
from . import saved
from .choice import Part, Select, Slice, Where
from .classes import KEY, names_in
from .clip_starts import ClipStarts
from .clips import ClipRows
from .derived import Derived
from .index_map import IndexMap
from .join import How, Join, chosen_fields
from .joined_rows import JoinedRows
from .key_table import Keys, find
from .readable import ReadableDataset, as_indices
from .row_choice import Cut, Packed
from .sequence_rows import DocumentRows
from .split import parse_split
from .weighing import Balance, Weights
from .window_starts import ALL, FILE, Starts, usual_step
from .windows import WindowRows

_SHARE_TOLD = 0.01  # of all samples


class BaseDataset(ReadableDataset):
    """Samples by number, and the methods that make views of them; datasets and views are of this class.

    A view is a dataset: a Loader reads it, exactly and over any ranks, and resumes it. Views stack.
    """

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        """Return this, as nothing changes what a dataset is."""
        return self

    @property
    def classes(self) -> list[str] | None:
        """The class names by `label`, or by the only field that has such names; None if no source has stated them.

        They are the list `classes` in `metadata`, which also has names of other fields' classes.
        """
        return list(names_in(self.metadata.get(KEY))) or None

    def _repr_html_(self) -> str:
        """Return the fields and a few samples as HTML, which notebooks show. It reads at most four samples."""
        return type(self)._as_html(self)

    _as_html: ClassVar[Callable[[Any], str]]  # set by `shardio/__init__.py`: what draws values stands above datasets

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> View: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | View:
        """Return one sample, field names to values; or for a slice the view of its samples.

        An image is its encoded bytes, a scalar a Python number, and what the sample lacks of an optional field None.
        A view that draws samples anew in each epoch shows epoch 0 of seed 0.
        """
        if isinstance(index, slice):
            return View(self._to_choose_from("a slice"), Slice.of(index))
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"a sample's number must be an integer, got {index!r}; read([...]) reads several")
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [0, {len(self)}), got {index}")
        place = np.array([index % len(self)])
        columns = self.read(self.plan(0, None, 1, 1).lookup(place)[0])
        sample = {}
        for name, field in self.fields.items():
            value = columns[name][0]
            lacks = field.optional and not columns.get(presence(name), [True])[0]
            sample[name] = None if lacks else value.item() if field.kind == "scalar" else value
        return sample

    def where(self, condition: str) -> View:
        """Return the samples for which a condition holds, in their order.

        It reads the fields that the condition names, and no others.

        Args:
            condition: such as `"label in (3, 5) and score > 0.7"`, on scalars and texts. Besides numbers and
                comparisons it may have names of classes (`label == "cat"`), `key.startswith("val/")`, `"val/" in key`,
                `count(boxes) > 0`, the number of entries of a value, `score is None`, `and`, `or` and `not`.

        Raises ConfigError for text that is no condition, or names what is no such field.
        """
        return View(self._to_choose_from("where"), Where(condition))

    def select(self, indices: Sequence[int] | Indices | Sequence[bool] | NDArray[np.bool_]) -> View:
        """Return samples by number, in the order given, repeats allowed.

        Args:
            indices: integers in [-N, N), or a mask of N bools.

        Raises ConfigError for a mask of another length, IndexError for a number outside.
        """
        base = self._to_choose_from("select")
        given = np.asarray(indices)
        if given.dtype == np.bool_:
            if given.shape != (len(base),):
                raise ConfigError(f"a mask for select must have {len(base)} values, got {list(given.shape)}")
            return View(base, Select(np.flatnonzero(given)))
        rows = as_indices(given)
        return View(base, Select(self._checked(np.where(rows < 0, rows + len(base), rows))))

    def find(self, keys: Keys, on: str = "key") -> Indices:
        """Return the numbers of the samples that have some keys, int64 [n]; -1 for a key that no sample has.

        In a view, these are the view's numbers. Keys are looked up in an index, which `shardio convert`, `append` and
        `shardio index --keys` write beside the shards. Without one, the first call reads all keys, and from 65,536
        samples on keeps the index in a file in the dataset's folder, or in the cache, once per node.

        Args:
            keys: n strings, or n integers.
            on: the field of keys, texts or integers. A missing value of an optional field equals no key.

        Raises ConfigError for a field of another kind, keys that are not of its kind, two samples with the same key,
        and a view whose samples are made of several stored ones, such as windows.
        """
        return find(self, keys, on)

    def windows(
        self, length: int, *, stride: int = 1, step: int = 1, within: str | None = None, contiguous: str | None = None
    ) -> Windows:
        """Return windows: samples of `length` neighbouring rows each, arrays with an axis of that length before theirs.

        A window never holds rows of two sequences. Each sequence has windows from its first row on, and leaves out the
        rows at its end that are too few for one.

        Args:
            length: the rows of a window.
            stride: the rows from the start of a window to the start of the next one. With less than `length` they
                overlap; rows that windows of one batch share are read once.
            step: the rows from one row of a window to the next: 2 takes every second row.
            within: what a sequence is. `"file"`: the rows of one source file of data that `shardio index` adopted; of
                other data, rows with one value of the field `file`. `"dataset"`: all rows. Or the name of a field,
                a scalar or text: rows with one value of it. By default `"dataset"` with `contiguous`, else `"file"`.
            contiguous: the name of a coordinate, a scalar such as the time, whose gaps also end sequences: where its
                step from row to row differs by half or more from its usual step, the median of all. Missing rows,
                repeated ones, and a row without the value are gaps; months of 28 to 31 days are none. Alone, it lets
                windows run from file to file where the coordinate goes on.

        Fields whose values differ in size, such as image files and texts, are left out. A window has the value of an
        optional field if all of its rows have it.

        Raises ConfigError for numbers below 1, a column that is no scalar or text, a coordinate too coarse for its
        steps, data whose source files are unknown, and data without a field that windows could have.
        """
        base = self._to_choose_from("windows")
        if within is None:
            within = FILE if contiguous is None else ALL
        starts = Starts(length, stride, step, within)
        if contiguous is not None:
            starts = Starts(length, stride, step, within, (contiguous, usual_step(base, within, contiguous)))
        return Windows(base, starts)

    def clips(self, field: str, frames: int, *, step: int = 1, every: int | None = None) -> Clips:
        """Return clips: each sample is `frames` frames of a video, and a video has as many clips as fit in it.

        In a Loader the transforms of the field begin after the choice of frames, as in `[RandomResizedCrop(112)]`.
        A batch has `NAME_time`, float64 [B, T], the time of each frame in seconds. All other fields are those of the
        video. Without `group=`, `split` keeps the clips of a video together, and `origin` gives the videos.

        Args:
            field: a field of videos, or of lists of images, which are the frames.
            frames: the frames of a clip.
            step: the frames from one frame of a clip to the next one: 2 takes every second frame.
            every: the frames from the start of a clip to the start of the next one; None for clips that don't overlap.

        Raises ConfigError for numbers below 1 and a field of another kind.
        """
        every = as_integer(frames, "frames") * as_integer(step, "step") if every is None else every
        return Clips(self._to_choose_from("clips"), ClipStarts(field, frames, step, every))

    def cut(
        self, field: str, length: int, *, positions: bool = False, documents: bool = False, cu_seqlens: bool = False
    ) -> SequenceRows:
        """Return rows of `length` entries, cut from all documents end to end: `floor(entries / length)` in an epoch.

        The documents form a ring, and each shuffled epoch enters it at another place, so rows differ from epoch to
        epoch. An epoch has each entry at most once, and leaves out fewer than `length`.

        Args:
            field: a ragged field, such as `("uint16", (None,))`, whose values are the documents.
            length: the entries of a row.
            positions: also give `NAME_position`, int64 [length]: the position of each entry within its document's part
                of the row.
            documents: also give `NAME_document`, int64 [length]: the number, within the row, of each entry's document.
            cu_seqlens: also give `NAME_cu_seqlens`, int32 [segments + 1]: the boundaries of documents in the batch laid
                end to end, as attention kernels take them.

        Rows come under the field's name, `[length, *entry]`; integers of up to 32 bits as int64. Other fields are
        left out. Numbers of samples, as in `batch["index"]`, are the places on the ring at which rows begin.

        A token that the field's attribute `vocabulary`, the number of tokens, does not cover is a bad sample.

        Raises ConfigError for a field of another kind and a length below 1, ShardCorrupt for damaged lengths.
        """
        base = self._to_choose_from("cut")
        return SequenceRows(base, Cut(field, length, positions, documents, cu_seqlens))

    def packed(
        self,
        field: str,
        length: int,
        *,
        value: float = 0,
        positions: bool = False,
        documents: bool = False,
        cu_seqlens: bool = False,
    ) -> SequenceRows:
        """Return rows of `length` entries with whole documents in them, packed by best fit decreasing.

        Documents longer than a row are split: their first parts fill rows, and the rest is packed. Every entry is in
        exactly one row. Which documents make which row is decided once, and kept in a file in the dataset's folder, or
        in the cache.

        Args:
            field: a ragged field, such as `("uint16", (None,))`, whose values are the documents.
            length: the entries of a row.
            value: what follows the last document of a row that is not full.
            positions: as for `cut`; 0 in padding.
            documents: as for `cut`; -1 in padding.
            cu_seqlens: as for `cut`; the padding of a row is a segment of its own.

        Besides the fields that `cut` gives, rows have `NAME_length`, int64: how many entries are of documents.

        Raises what `cut` raises, and ConfigError for a value that the rows' dtype cannot hold.
        """
        base = self._to_choose_from("packed")
        return SequenceRows(base, Packed(field, value, length, positions, documents, cu_seqlens))

    def join(
        self,
        other: Any,
        on: str | None = None,
        *,
        fields: Sequence[str] | Mapping[str, str | None] | None = None,
        how: How = "error",
        replace: bool = False,
    ) -> Joined:
        """Return these samples with fields of another dataset, such as captions, new labels or features of a model.

        No data is copied: fields are read from the dataset that has them.

        ```python
        photos.join("captions.csv", on="key")
        photos.join({"score": np.load("scores.npy")})
        ```

        Args:
            other: a dataset or a view, or its path or URL; a table, which is read into memory: the path of a `.csv`,
                `.tsv`, `.jsonl`, `.parquet`, `.npy` or `.npz` file, or a dict of arrays and lists; or a dict of
                datasets, of which each gives one field, by the name of the field here.
            on: the field, text or integers, by whose value a sample's row in `other` is found. None joins by position:
                row i is for sample i of the stored dataset, also if this is a view of it. The rows of a dataset that
                `shardio derive` has made are for the samples of its input.
            fields: the fields to join, a list or a dict of their names in `other` by new names. None takes all but
                `on`.
            how: what happens to samples without a row. `"error"` raises; `"optional"` makes the joined fields optional,
                and these samples lack them; `"inner"` leaves these samples out.
            replace: let fields take the place of those of the same name, and of their names of classes. They have the
                same kind and shape.

        Rows of `other` that no sample gets are ignored. Join before `windows`, `clips`, `cut`, `packed` and `weighted`.

        Raises ConfigError for samples without a row, with their number and the first; for two rows with one key; for
        more rows by position than samples; for a dataset that was derived from another one; and for a field that is
        there already.
        """
        datasets = (BaseDataset, str, os.PathLike)
        if isinstance(other, Mapping) and other and all(isinstance(one, datasets) for one in other.values()):
            joined: Any = self
            for name, one in other.items():
                joined = joined.join(one, on, fields={name: None}, how=how, replace=replace)
            return joined  # type: ignore[no-any-return]
        base, found = self._to_choose_from("join"), type(self)._as_other(other)
        choice = Join(chosen_fields(found, fields, on), on, how, bool(replace))
        return Joined(base, found._to_choose_from("join"), choice)

    _as_other: ClassVar[Callable[[Any], BaseDataset]]  # set by `shardio/__init__.py`, as `_as_html` is

    def split(
        self,
        shares: Mapping[str, float],
        *,
        by: str | None = None,
        group: str | None = None,
        seed: int = 0,
    ) -> dict[str, View]:
        """Split the samples at random into parts, each of which keeps their order.

        The same data gives the same parts for the same seed, in any container and any number of shards.

        Args:
            shares: the share of each part by name, such as `{"train": 0.9, "val": 0.1}`; they add up to at most 1.
            by: a scalar or text field whose classes keep their shares in every part. Without `group`, each part gets
                the floor or the ceiling of its share of each class.
            group: a scalar or text field, such as `"patient"`: samples of one group stay together. Within each class
                (that of most of a group's samples) the largest groups are given out first, and each goes where most is
                lacking, so parts come as near to their shares as whole groups allow. A part that is off by more than a
                hundredth of all samples gives a SplitWarning. By default the clips of a video are one group.
            seed: determines the parts.

        Raises ConfigError for shares out of range, a field of another kind, and if a part would be empty.
        """
        base, checked, seed = self._to_choose_from("split"), parse_split(shares), as_integer(seed, "seed")
        choices = {name: Part(checked, name, by, group, seed) for name in checked}
        maps = next(iter(choices.values())).index_maps(base)
        parts = {name: View(base, choice, maps[name]) for name, choice in choices.items()}
        for name, part in parts.items():
            share = len(part) / len(self)
            if abs(share - shares[name]) > _SHARE_TOLD and abs(len(part) - shares[name] * len(self)) >= 1:
                told = f"the part {name!r} has {len(part):,} of {len(self):,} samples"
                warnings.warn(f"{told}, {share:.1%} instead of {shares[name]:.1%}", SplitWarning, stacklevel=2)
        return parts

    def weighted(
        self,
        weights: Sequence[float] | NDArray[Any] | str,
        samples: int | None = None,
        *,
        replacement: bool = False,
    ) -> Weighted:
        """Return a view whose epochs hold each sample in proportion to its weight.

        A sample comes the floor or the ceiling of its expected count in every epoch: which of the two is drawn anew
        each time, so that the mean is the expected count. It is augmented differently each time that it comes.

        Args:
            weights: a weight of at least 0 for each sample, or the name of a field of scalars that holds them. A sample
                of weight 0 never comes.
            samples: samples per epoch; None takes as many as this dataset has.
            replacement: draw every sample independently instead, so that counts vary at random.

        Raises ConfigError for weights that are negative, not finite, all 0 or of another number than the samples.

        Source: systematic sampling (Madow 1949).
        """
        base = self._to_choose_from("weighted")
        count = None if samples is None else as_integer(samples, "samples")
        if isinstance(weights, str):
            return Weighted(base, Weights(weights, count, replacement))
        # A copy, as the array may change later; in a type that `save` keeps, so that equal weights have one digest.
        given = np.asarray(weights)
        stored = np.dtype("f8") if given.dtype == np.longdouble else given.dtype.newbyteorder("<")
        return Weighted(base, Weights(given.astype(stored), count, replacement))

    def balanced(self, field: str, samples: int | None = None, *, replacement: bool = False) -> Weighted:
        """Return a view whose epochs hold each class equally often, and each sample of a class equally often.

        Classes come the floor or the ceiling of their share in every epoch, and so do samples; see `weighted`.

        Args:
            field: a scalar or text field whose values are the classes, such as `"label"`.
            samples: samples per epoch; None takes as many as this dataset has.
            replacement: see `weighted`.

        Raises ConfigError for a field of another kind, and if a sample lacks it.
        """
        count = None if samples is None else as_integer(samples, "samples")
        return Weighted(self._to_choose_from("balanced"), Balance(field, count, replacement))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep a view in a file: its description, with the digests of what it is of. `shardio.open` opens it.

        It replaces an older view there in one step. Arrays that you gave, as to `select`, are saved next to it. The
        file has the path of a dataset below its own folder, so you may move both together; otherwise give the dataset
        to `shardio.open`.

        Args:
            path: the file, whose name ends in `.json`.

        Raises ConfigError for another name, for a file there that is no view, and for a dataset that is no view.
        """
        saved.save(self, path)

    def _to_choose_from(self, how: str) -> ReadableDataset:
        """Return this dataset for a view to choose from; ConfigError if it draws samples by an order of its own."""
        if self.orders_itself:
            raise ConfigError(
                f"{how} chooses from stored samples, and {self!r} draws them anew in each epoch: choose first, then "
                "weigh, cut or mix"
            )
        return self


@final
class View(Derived[IndexMap], BaseDataset):
    """Rows of another dataset: sample i of the view is the i-th that its choice makes.

    Attributes:
        base: the dataset that the view is of.
        choice: the choice that it makes.
        path: the path of the dataset at the bottom.
    """

    def _in_base(self, indices: Indices) -> Indices:
        return self._decided()(indices)

    def __len__(self) -> int:
        return len(self._decided())

    def __repr__(self) -> str:
        return f"<View {self._told()}: {len(self)} of {self.base!r}>"


@final
class Joined(JoinedRows, BaseDataset):
    """Samples of a dataset with fields of another one; `dataset.join` returns them.

    Attributes:
        base: the dataset whose samples they are.
        other: the dataset that has the joined fields.
        choice: which fields these are, and which row of it belongs to a sample.
        path: the path of the dataset at the bottom.
    """


@final
class Windows(WindowRows, BaseDataset):
    """Windows of a dataset: each sample is several neighbouring rows of it; `dataset.windows` returns them.

    Attributes:
        base: the dataset that has the rows.
        choice: the first row of each window, and which rows follow it.
        path: the path of the dataset at the bottom.
    """


@final
class Clips(ClipRows, BaseDataset):
    """Clips of the videos of a dataset; `dataset.clips` returns them.

    Attributes:
        base: the dataset that has the videos.
        choice: where clips start, and which frames they have.
        path: the path of the dataset at the bottom.
    """


@final
class SequenceRows(DocumentRows, BaseDataset):
    """Rows of one length, made of documents; `dataset.cut` and `dataset.packed` return them.

    Attributes:
        base: the dataset that has the documents.
        choice: how they make rows.
        path: the path of the dataset at the bottom.
    """


@final
class Weighted(Derived[Points], BaseDataset):
    """Samples of another dataset that its order draws by weight; `BaseDataset.weighted` and `balanced` return it.

    The numbers of samples, as in `batch["index"]`, are those of the dataset that is weighed.

    Attributes:
        base: the dataset that is weighed.
        choice: the weights, the samples per epoch, and how they are drawn.
        path: the path of the dataset at the bottom.
    """

    choice: Weights | Balance
    orders_itself = True

    def __len__(self) -> int:
        return len(self.base) if self.choice.samples is None else self.choice.samples

    def __repr__(self) -> str:
        return f"<Weighted {self._told()}: {len(self)} an epoch of {self.base!r}>"

    @property
    def numbers(self) -> int:
        """The number of samples that are weighed."""
        return len(self.base)

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""
        drawn = Plan(len(self), seed, 0, shuffle, block, window)
        return WeightedPlan(drawn, self._decided(), self.choice.replacement)
