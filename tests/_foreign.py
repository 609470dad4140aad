"""Write records as other programs do: tars by tarfile, messages by the protobuf runtime, TFRecords."""

import io
import struct
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.corpus import train

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}

_TYPES = {"int32": 5, "int64": 3, "float": 2, "bool": 8, "string": 9, "bytes": 12}


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], kind: str = "ustar") -> Path:
    """Write a tar of files with Python's tarfile."""
    with tarfile.open(path, "w", format=FORMATS[kind]) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def _field(name: str, number: int, kind: str, *, repeated: bool = False, packed: bool = True) -> Any:
    field = descriptor_pb2.FieldDescriptorProto(name=name, number=number, label=3 if repeated else 1)
    if kind in _TYPES:
        field.type = _TYPES[kind]
        if repeated and kind not in ("string", "bytes"):
            field.options.packed = packed
    else:
        field.type, field.type_name = 11, f".{kind}"
    return field


def _messages(package: str, syntax: str, messages: Mapping[str, list[Any]]) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for name, fields in messages.items():
        owner, _, nested = name.partition(".")
        message = next((m for m in file.message_type if m.name == owner), None) or file.message_type.add(name=owner)
        if nested:
            message = message.nested_type.add(name=nested)
            message.options.map_entry = True
        message.field.extend(fields)
        if name == "Feature":
            message.oneof_decl.add(name="kind")
            for field in message.field:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in messages if "." not in name}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def _example(package: str, *, packed: bool) -> Any:
    return _messages(
        package,
        "proto3",
        {
            "BytesList": [_field("value", 1, "bytes", repeated=True)],
            "FloatList": [_field("value", 1, "float", repeated=True, packed=packed)],
            "Int64List": [_field("value", 1, "int64", repeated=True, packed=packed)],
            "Feature": [
                _field("bytes_list", 1, f"{package}.BytesList"),
                _field("float_list", 2, f"{package}.FloatList"),
                _field("int64_list", 3, f"{package}.Int64List"),
            ],
            "Features": [_field("feature", 1, f"{package}.Features.FeatureEntry", repeated=True)],
            "Features.FeatureEntry": [_field("key", 1, "string"), _field("value", 2, f"{package}.Feature")],
            "Example": [_field("features", 1, f"{package}.Features")],
        },
    )["Example"]


Example, UnpackedExample = _example("packed", packed=True), _example("unpacked", packed=False)
"""`tf.train.Example`, as TensorFlow writes it, and with the numbers of a list one by one."""

Datum = _messages(
    "caffe",
    "proto2",
    {
        "Datum": [
            *(_field(name, number, "int32") for number, name in enumerate(("channels", "height", "width"), 1)),
            _field("data", 4, "bytes"),
            _field("label", 5, "int32"),
            _field("float_data", 6, "float", repeated=True, packed=False),
            _field("encoded", 7, "bool"),
        ]
    },
)["Datum"]
"""Caffe's record."""


def example(features: Mapping[str, Any], message: Any = Example) -> bytes:
    """A serialized Example with lists of bytes, float or int by name; None makes a feature without a kind."""
    made = message()
    for name, values in features.items():
        feature = made.features.feature[name]
        if values is not None:
            kind = {bytes: "bytes_list", float: "float_list"}.get(type(values[0]) if values else int, "int64_list")
            getattr(feature, kind).SetInParent()
            getattr(feature, kind).value.extend(values)
    data: bytes = made.SerializeToString(deterministic=True)
    return data


def masked(data: bytes) -> bytes:
    """The masked checksum that TFRecord files store."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(data: bytes) -> bytes:
    """One framed record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def write_tfrecord(path: Path, records: Iterable[bytes]) -> Path:
    """Write an uncompressed TFRecord file."""
    path.write_bytes(b"".join(map(framed, records)))
    return path


def write_tokenizer(path: Path, texts: Iterable[str], vocabulary: int = 400) -> Any:
    """A byte-level BPE, trained on texts, with the special token `<|endoftext|>`, which it doesn't read in texts."""
    made = train(texts, vocabulary)
    made.save(str(path))
    made.encode_special_tokens = True
    return made
