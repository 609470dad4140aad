"""DICOM files: a file of one or several frames, or the slices of a series, sorted by their position in space."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, Message
from shardio.foreign.files import File
from shardio.source import load_optional

from ._opened_array import OpenedArray, ReadOptions, Stream, damage_is_bad, rescaled_dtype
from ._volume_axes import space_of

_SAME_PLACE = 1e-3  # millimetres
_SAME_DIRECTION = 1e-3  # of a cosine
_GAP = 1.5  # times the usual distance of slices

_EACH_FILE = Message("{series:False} takes each file as a sample")


def series_of(path: Path) -> str | None:
    """Return what names the series of a DICOM file of one frame; "" for one of several, without, or damaged.

    Returns None for a file without an image, such as a DICOMDIR, an RTSTRUCT or a report.
    """
    try:
        with damage_is_bad("pydicom"):
            tags = ["SeriesInstanceUID", "NumberOfFrames", "Rows"]
            head = _pydicom().dcmread(Stream(File(path)), stop_before_pixels=True, specific_tags=tags)
            several = int(head.get("NumberOfFrames") or 1) > 1
            if "Rows" not in head and "Image" not in head.file_meta.MediaStorageSOPClassUID.name:  # nor cut off
                return None
            return "" if several else str(head.get("SeriesInstanceUID") or "")
    except BadSample:
        return ""


def open_dicom(files: Sequence[Stream | Path], options: ReadOptions) -> OpenedArray:
    """Read the headers of a file, or of the slices of one series, which are opened one at a time.

    Frames of one file are in the order of their positions, as slices are. Raises BadSample if slices differ in shape,
    direction or spacing, if two have one position, and if one is missing.
    """
    pydicom = _pydicom()
    with damage_is_bad("pydicom"):
        streams = map(_stream, files)
        sized = [(stream.size, pydicom.dcmread(stream, stop_before_pixels=True)) for stream in streams]
        heads = [head for _, head in sized]
        dose = bool(options.rescale)
        shapes, dtypes = [_shape(head) for head in heads], [_dtype(head, dose) for head in heads]
        inverted = any(head.get("PhotometricInterpretation") == "MONOCHROME1" for head in heads)
        order = [0] if len(heads) == 1 else _in_order(heads, shapes)
        space = _space([heads[number] for number in order])
        frames = _frames_in_order(heads[0]) if len(heads) == 1 else None
        unapplied = {n: float(heads[0][n].value) for n in ("DoseGridScaling",) if n in heads[0] and not dose}
    dtype = np.result_type(*dtypes)
    shape = (len(heads), *shapes[0]) if len(heads) > 1 else shapes[0]
    notes = ["MONOCHROME1: larger numbers are darker, and stay as they are"] if inverted else []
    if frames == []:
        notes.append("frames lie at the same positions, or in several directions, and stay in their order in the file")

    def read() -> NDArray[Any]:
        if len(order) == 1:
            values = _values(_stream(files[0]), dose).astype(dtype, copy=False)
            return values[frames] if frames else values
        values = np.empty(shape, dtype)
        for place, number in enumerate(order):
            found = _values(_stream(files[number]), dose)
            if found.shape != shapes[0]:
                raise BadSample(f"slice {place} has the shape {list(found.shape)}, its header states {list(shapes[0])}")
            values[place] = found
        return values

    size = sum(size for size, _ in sized)
    return OpenedArray(shape, dtype, "pydicom", size, read, space=space, notes=tuple(notes), unapplied=unapplied)


def _stream(file: Stream | Path) -> Stream:
    return file if isinstance(file, Stream) else Stream(File(file))


def _pydicom() -> Any:
    return load_optional("pydicom", purpose="reading a DICOM file", extra="imaging")


def _shape(head: Any) -> tuple[int, ...]:
    frames, colours = int(head.get("NumberOfFrames") or 1), int(head.get("SamplesPerPixel") or 1)
    size = (int(head.Rows), int(head.Columns))
    return ((frames,) if frames > 1 else ()) + size + ((colours,) if colours > 1 else ())


def _dtype(head: Any, dose: bool) -> np.dtype[Any]:
    """The dtype of a file's values: that of the stored ones or of a lookup table, or floats where they are rescaled."""
    if table := head.get("ModalityLUTSequence"):
        return np.dtype(f"uint{int(table[0].LUTDescriptor[2])}")
    bits = int(head.BitsAllocated)
    if "PixelRepresentation" not in head:  # FloatPixelData and DoubleFloatPixelData
        stored = np.dtype(f"f{bits // 8}")
    else:
        stored = np.dtype(f"{'i' if head.PixelRepresentation else 'u'}{max(1, bits // 8)}")
    return stored if all(rule == (1, 0) for rule in _rescaling(head, dose)) else rescaled_dtype(stored)


def _rescaling(head: Any, dose: bool) -> list[tuple[float, float]]:
    """The slope and the intercept of each frame; with `dose`, the slope of a file of doses takes them to its units."""
    found = []
    for of in _of_frames(head, "PixelValueTransformationSequence"):
        of = head if of is None else of
        slope, intercept = of.get("RescaleSlope"), of.get("RescaleIntercept")
        slope = head.get("DoseGridScaling") if dose and slope is None else slope
        found.append((1.0 if slope is None else float(slope), float(intercept or 0)))
    return found


def _of_frames(head: Any, name: str) -> list[Any]:
    """Return the value that an enhanced file states of each frame, in its group or in that of all; None without one."""
    shared = head.get("SharedFunctionalGroupsSequence") or [None]
    each = head.get("PerFrameFunctionalGroupsSequence") or [None] * int(head.get("NumberOfFrames") or 1)
    groups = [
        next((group for group in (frame, shared[0]) if group is not None and group.get(name)), None) for frame in each
    ]
    return [None if group is None else group[name].value[0] for group in groups]


def _frames_in_order(head: Any) -> list[int] | None:
    """Return the numbers of the frames of an enhanced file in the order of their positions; [] if these give no order.

    Returns None if the file states no positions, or the frames are in order.
    """
    places, directions = (
        [None if of is None else of.get(f"Image{what}Patient") for of in _of_frames(head, f"Plane{what}Sequence")]
        for what in ("Position", "Orientation")
    )
    if not 1 < len(places) == int(head.get("NumberOfFrames") or 1) or None in directions or None in places:
        return None
    along = _along_normal(directions, places)
    order = [] if along is None else np.argsort(along, kind="stable").tolist()
    if along is None or not np.diff(along[order]).min() > _SAME_PLACE:
        return []
    return None if order == sorted(order) else order


def _values(stream: Stream, dose: bool) -> NDArray[Any]:
    stream.seek(0)
    whole = _pydicom().dcmread(stream)
    values: NDArray[Any] = whole.pixel_array
    dtype, rules = _dtype(whole, dose), _rescaling(whole, dose)
    if whole.get("ModalityLUTSequence"):
        return np.asarray(_pydicom().pixels.apply_modality_lut(values.astype(np.int32), whole), dtype)
    if all(rule == (1, 0) for rule in rules):
        return values
    if len(set(rules)) == 1:
        return (values * rules[0][0] + rules[0][1]).astype(dtype)
    slope, intercept = (np.array(column).reshape(-1, *[1] * (values.ndim - 1)) for column in zip(*rules, strict=True))
    return np.asarray(values * slope + intercept).astype(dtype)


def _in_order(heads: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the numbers of slices in the order of their positions along the normal, else of InstanceNumber."""
    if len(set(shapes)) > 1:
        raise BadSample("the slices of its series differ in shape, {}; {}", _two(shapes), _EACH_FILE)
    if all("ImagePositionPatient" in head and "ImageOrientationPatient" in head for head in heads):
        return _by_place(heads)
    numbers = [head.get("InstanceNumber") for head in heads]
    if None in numbers:
        raise BadSample("its series has slices without ImagePositionPatient and InstanceNumber; {}", _EACH_FILE)
    found = np.array(numbers, np.int64)
    order = np.argsort(found, kind="stable")
    steps = np.diff(found[order])
    if (steps != 1).any():
        at = int(np.argmax(steps != 1))
        what = "two slices have" if steps[at] == 0 else "a slice is missing after"
        raise BadSample("its series is not whole: {} InstanceNumber {}; {}", what, int(found[order[at]]), _EACH_FILE)
    return [int(number) for number in order]


def _by_place(heads: Sequence[Any]) -> list[int]:
    directions = [head.ImageOrientationPatient for head in heads]
    spacings = [tuple(map(float, head.get("PixelSpacing") or ())) for head in heads]
    places = _along_normal(directions, [head.ImagePositionPatient for head in heads])
    if places is None or len(set(spacings)) > 1:
        raise BadSample("the slices of its series differ in direction or PixelSpacing; {}", _EACH_FILE)
    order = np.argsort(places, kind="stable")
    steps = np.diff(places[order])
    at = int(np.argmin(steps))
    if not steps[at] > _SAME_PLACE:
        raise BadSample("its series has two slices at {:g} mm; {}", places[order[at]], _EACH_FILE)
    at = int(np.argmax(steps))
    if steps[at] > _GAP * np.median(steps):
        near, far = places[order[at]], places[order[at + 1]]
        raise BadSample(
            "a slice of its series is missing between {:g} and {:g} mm, others are {:g} mm apart; {}",
            near, far, np.median(steps), _EACH_FILE,
        )  # fmt: skip
    return [int(number) for number in order]


def _space(heads: Sequence[Any]) -> NDArray[np.float64] | None:
    """The affine of slices in order, rows and columns, with the axes of NIfTI; None where headers don't state it."""
    tags = "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"
    if len(heads) == 1 or not all(head.get(tag) for head in heads for tag in tags):
        return None
    first, last = (np.array(head.ImagePositionPatient, np.float64) for head in (heads[0], heads[-1]))
    across, down = np.array(heads[0].ImageOrientationPatient, np.float64).reshape(2, 3)
    height, width = map(float, heads[0].PixelSpacing)
    affine = np.eye(4)
    affine[:3] = np.stack([(last - first) / (len(heads) - 1), down * height, across * width, first], axis=1)
    affine[:2] *= -1  # from left and posterior
    return space_of(affine, (len(heads), *_shape(heads[0])))


def _along_normal(directions: Sequence[Any], places: Sequence[Any]) -> NDArray[np.float64] | None:
    """Return the positions of slices along their normal in millimetres, `[n]`; None if they differ in direction."""
    cosines = np.array(directions, np.float64)
    if np.abs(cosines - cosines[0]).max() > _SAME_DIRECTION:
        return None
    return np.array(places, np.float64) @ np.cross(cosines[0, :3], cosines[0, 3:])


def _two(shapes: Sequence[tuple[int, ...]]) -> str:
    first, *others = dict.fromkeys(shapes)
    return f"{list(first)} and {list(others[0])}"
