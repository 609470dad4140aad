"""The public interface for converters: everything that a plug-in needs to turn a file format into samples.

A converter imports this module, `shardio.errors` and, for its tests, `shardio.testing`; nothing else of shardio. A
`Converter` returns a `Source`: a subclass of it, or an object that has its members. `WrappedSource` is the base of
sources that change another one; `Places`, `Hdf5Names` and `ZarrIndexes` say how files are read in place. `find` and
`names` look up installed converters.

The other functions are those that most converters need. None of them loads torch or another large package before it is
called.
"""

from typing import Any

from numpy.typing import NDArray

from .conversion.source import (
    AnnotatedPixels,
    BoxFormat,
    Converter,
    Hdf5Names,
    InstanceMembers,
    Places,
    Source,
    Tally,
    WrappedSource,
    ZarrIndexes,
    check_index,
    find,
    names,
)
from .errors import ConfigError, Message
from .format.fields import Field, Missing, infer_fields, label_as_int64, listed_names, with_optional
from .format.fields import describe as describe_field
from .format.images import ImageInfo
from .format.images import check as check_image
from .format.images import probe as probe_image
from .format.images import sniff as sniff_image
from .system.local_path import local_path
from .system.optional import load as load_optional
from .system.types import Sample

__all__ = [
    "AnnotatedPixels",
    "BoxFormat",
    "Converter",
    "Field",
    "Hdf5Names",
    "ImageInfo",
    "InstanceMembers",
    "Missing",
    "Places",
    "Sample",
    "Source",
    "Tally",
    "WrappedSource",
    "ZarrIndexes",
    "check_image",
    "check_index",
    "describe_field",
    "encode_png",
    "find",
    "infer_fields",
    "label_as_int64",
    "listed_names",
    "load_optional",
    "local_path",
    "names",
    "probe_image",
    "sniff_image",
    "with_instances",
    "with_optional",
]


def encode_png(pixels: NDArray[Any], place: object) -> bytes:
    """Encode pixels as a PNG, which loses nothing. The same pixels always give the same bytes.

    Args:
        pixels: grey `[h, w]` or RGB `[h, w, 3]`, uint8 or uint16.
        place: what the error message calls the image, such as `"train-images, image 7"`.

    Raises:
        BadSample: there are no pixels, or their shape or dtype is none of these.
    """
    from .conversion.reencode import encode_png  # loads torch

    return encode_png(pixels, place)


def with_instances(
    source: Source,
    boxes: str | None,
    box_format: BoxFormat | None,
    annotations: AnnotatedPixels | None,
    **options: Any,
) -> Source:
    """Return a source with fields of boxes, labels and more that one of its fields states; as it is without `boxes`.

    Args:
        source: a source with one field of image files.
        boxes: the field: JSON, or text that is JSON: a list of objects, an object of lists, or a list of boxes.
        box_format: what the four numbers of a box are.
        annotations: which pixels were annotated, where an EXIF tag rotates an image; None compares the sizes with the
            fields `height` and `width`, if there are such.
        options: `members`, `labels`, `classes`, `defaults`, `hidden`: what is known of instances, instead of what some
            samples tell.

    Raises:
        ConfigError: an argument breaks a rule, or only one of `boxes` and `box_format` is given.
        SourceError: there are no boxes.
    """
    from .conversion.instances import InstanceSource  # loads transforms

    if boxes is None and box_format is None and annotations is None:
        return source
    if boxes is None or box_format is None:
        raise ConfigError(Message("{boxes} needs {box_format}, and the other way round; {annotations} goes with both"))
    return InstanceSource(source, boxes, box_format, annotations, **options)
