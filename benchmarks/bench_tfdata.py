"""Peer: TensorFlow's tf.data, on TFRecord files, or on files of fixed-length records for arrays."""

from collections.abc import Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks._workloads import IMAGE_SIZE, Batch, Workload, arrays, encoded

WORKLOADS = {"exact": ("",), "fast": ("",), "tensors": ("",), "records": ("",)}
REQUIREMENTS = ("tensorflow-cpu==2.21.0", "numpy==2.4.6")
VERSIONS = ("tensorflow-cpu",)
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2"}
SHARDS = 16
BUFFERS = {"photos": 1000, "tensors": 64, "records": 10_000}
BLOCKS = {"photos": 1, "tensors": 1, "records": 64}  # consecutive records from each open file


def label(workload: Workload) -> str:
    """Describe what runs."""
    order = f"files shuffled, then a shuffle buffer of {BUFFERS[workload.data]}"
    if workload.data == "photos":
        pixels = {
            "exact": "accurate DCT, chroma interpolated, antialiased resize",
            "fast": "fast DCT, chroma repeated, no antialias",
        }
        return f"decode_and_crop_jpeg, only the crop is decoded; {pixels[workload.name]}; {order}"
    return f"fixed-length records; {order}"


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write TFRecord files of image and label, or files of concatenated arrays."""
    out.mkdir(parents=True)
    if workload.data != "photos":
        data = arrays(workload, source)
        for shard in range(SHARDS):
            data[shard * len(data) // SHARDS : (shard + 1) * len(data) // SHARDS].tofile(out / f"shard-{shard:04d}.bin")
        return
    import tensorflow as tf

    writers = [tf.io.TFRecordWriter(str(out / f"shard-{shard:04d}.tfrecord")) for shard in range(SHARDS)]
    for number, (image, of_class) in enumerate(encoded(source, workload.count)):
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[of_class])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writers[number % SHARDS].write(example.SerializeToString())
    for writer in writers:
        writer.close()


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """The next `count` samples of one endless iterator, less the last incomplete batch."""
    return workload.pairs(islice(_batches(workload, prepared), workload.count // workload.batch_size))


@cache
def _batches(workload: Workload, prepared: Path) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = workload.threads
    options.threading.max_intra_op_parallelism = 1
    size = workload.sample_bytes

    def opened(name: Any) -> Any:
        if workload.data == "photos":
            return tf.data.TFRecordDataset(name)
        return tf.data.FixedLengthRecordDataset(name, size, buffer_size=max(1 << 20, size))

    def decode(values: Any) -> Any:
        flat = tf.io.decode_raw(values, workload.dtype)
        return tf.reshape(flat, (workload.batch_size, *workload.shape))

    files = tf.data.Dataset.from_tensor_slices(sorted(str(path) for path in prepared.iterdir())).shuffle(SHARDS)
    stored = files.interleave(
        opened, cycle_length=4, block_length=BLOCKS[workload.data], num_parallel_calls=workload.threads
    )
    data = stored.shuffle(BUFFERS[workload.data]).repeat()
    if workload.data == "photos":
        data = data.map(partial(_photo, workload.name == "exact"), num_parallel_calls=workload.threads).batch(
            workload.batch_size
        )
    else:
        data = data.batch(workload.batch_size).map(decode, num_parallel_calls=workload.threads)
    return iter(data.with_options(options).prefetch(2))


def _photo(exact: bool, stored: Any) -> Any:
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}
    parsed = tf.io.parse_single_example(stored, features)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(parsed["image"]),
        bounding_boxes=tf.zeros((1, 0, 4)),
        min_object_covered=0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    method = "INTEGER_ACCURATE" if exact else "INTEGER_FAST"
    image = tf.image.decode_and_crop_jpeg(parsed["image"], window, channels=3, dct_method=method, fancy_upscaling=exact)
    image = tf.image.resize(image, (IMAGE_SIZE, IMAGE_SIZE), antialias=exact)  # bilinear, to float32
    image = tf.round(image) if exact else image
    return tf.image.random_flip_left_right(tf.cast(image, tf.uint8)), parsed["label"]
