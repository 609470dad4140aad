"""Write the TFRecord test files with TensorFlow itself. Run it by hand where tensorflow is installed:

python tests/converters/files/make_tfrecords.py
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
COUNT = 5


def int64s(*values: int) -> tf.train.Feature:
    """A feature of integers."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values: float) -> tf.train.Feature:
    """A feature of floats."""
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def texts(*values: bytes) -> tf.train.Feature:
    """A feature of bytes."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def picture(number: int) -> bytes:
    """A small JPEG or, for odd numbers, PNG."""
    pixels = np.full((6, 8, 3), 40 * number, np.uint8)
    return (tf.io.encode_png if number % 2 else tf.io.encode_jpeg)(pixels).numpy()


def examples() -> Iterator[bytes]:
    """Examples with one feature of each kind."""
    for number in range(COUNT):
        features = {
            "image/encoded": texts(picture(number)),
            "image/class/label": int64s(number - 2),
            "image/class/text": texts(f"größe {number}".encode()),
            "score": floats(number + 0.1),
            "box": floats(0, 0.25, 0.5, number),
            "tokens": int64s(*range(-1, number)),
            "large": int64s(2**63 - 1 - number, -(2**63) + number),
            "tags": texts(*(f"tag {tag}".encode() for tag in range(number + 1))),
            "raw": texts(b"\xff\xfe" + bytes([number])),
        }
        yield tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def gaps() -> Iterator[bytes]:
    """Records with a feature that is missing, empty, without a kind, or of another kind."""
    for feature in (int64s(7), None, int64s(), tf.train.Feature(), floats(7.0), int64s(8)):
        features = {"id": int64s(0), **({} if feature is None else {"label": feature})}
        yield tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def sequences() -> Iterator[bytes]:
    """A SequenceExample, which is another message than Example."""
    lists = {"words": tf.train.FeatureList(feature=[int64s(1), int64s(2)])}
    yield tf.train.SequenceExample(
        context=tf.train.Features(feature={"id": int64s(0)}), feature_lists=tf.train.FeatureLists(feature_list=lists)
    ).SerializeToString(deterministic=True)


def write(name: str, records: Iterator[bytes], compression: str = "") -> None:
    """Write one file."""
    with tf.io.TFRecordWriter(str(HERE / name), compression) as writer:
        for record in records:
            writer.write(record)


if __name__ == "__main__":
    write("examples.tfrecord", examples())
    write("examples-gzip.tfrecord", examples(), "GZIP")
    write("examples-zlib.tfrecord", examples(), "ZLIB")
    write("gaps.tfrecord", gaps())
    write("sequences.tfrecord", sequences())
    write("empty.tfrecord", iter(()))
