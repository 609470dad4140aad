"""Damaged videos: bad samples of the clips that they are in, and of no others."""

import re
from pathlib import Path

import numpy as np
import pytest
from _builders import encode
from _videos import turned, video

import shardio
from shardio.errors import BadSample, ShardCorrupt
from shardio.foreign.video import described
from shardio.format.packets import Directory, packets_of
from shardio.transforms import Transform

NAMES = ("h264.mp4", "h264_long.mp4", "hevc_open.mp4", "vp9.webm", "turned.mp4")


@pytest.fixture(params=["tar", "hdf5", "lmdb"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of videos."""
    fields = {"video": "video", "label": "int64"}
    with shardio.create(tmp_path / "d", fields=fields, container=request.param) as writer:
        for label, name in enumerate(NAMES):
            writer.append({"video": video(name), "label": label})
    return tmp_path / "d"


def damage(folder: Path, name: str) -> None:
    """Change a byte of a packet in the middle of a video, within the shard."""
    (shard,) = (path for path in folder.iterdir() if path.suffix in (".tar", ".hdf5", ".h5", ".lmdb"))
    data, value = bytearray(shard.read_bytes()), video(name)
    facts, table = described(value)
    directory = Directory.of(facts, table[: facts.head], len(value))
    packets = packets_of(facts, directory, range(facts.groups), table[facts.head :], len(value))
    begin = int(packets.offsets[len(packets) // 2])
    data[data.index(value[begin : begin + 40]) + 20] ^= 0x10
    shard.write_bytes(data)


def load(folder: Path, **options: object) -> shardio.Loader:
    clip = shardio.CenterClip(12, stride=4)
    return shardio.Loader(shardio.open(folder), 1, transforms={"video": [clip]}, shuffle=None, **options)  # type: ignore[arg-type]  # any


def test_verified_groups(folder: Path) -> None:
    """With verify=True a changed byte of a packet is found in the clip that it is in, and other videos are whole."""
    assert len([*load(folder, verify=True)]) == len(NAMES)
    damage(folder, "h264_long.mp4")
    with pytest.raises(ShardCorrupt, match=r"sample 1\b.*field 'video': group \d+ of its packets: checksum"):
        [*load(folder, verify=True)]
    loader = load(folder, verify=True, on_bad_sample="mask")
    labels = [int(batch["label"][0]) for batch in loader if bool(batch["valid"][0])]
    assert labels == [0, 2, 3, 4]
    (bad,) = loader.quarantine()
    assert bad.location.index == 1


def test_verified_labels(tmp_path: Path) -> None:
    """With verify=True a changed label is found, although no video is read whole."""
    with shardio.create(tmp_path / "n", fields={"video": "video", "number": "int64"}, container="tar") as writer:
        writer.append({"video": video("h264.mp4"), "number": 0x1234567890})
    index = tmp_path / "n" / "shard-000000.idx.npy"
    index.write_bytes(index.read_bytes().replace((0x1234567890).to_bytes(8, "little"), bytes(8)))
    with pytest.raises(ShardCorrupt, match=r"sample 0\b.*checksum"):
        [*load(tmp_path / "n", verify=True)]


def test_limits(folder: Path) -> None:
    """`max_image_pixels` is of a frame, `max_value_bytes` of the bytes that a clip reads, not of its file."""
    with pytest.raises(BadSample, match="64 x 96 pixels, max_image_pixels allows 6143"):
        [*load(folder, max_image_pixels=6143)]
    assert len([*load(folder, max_image_pixels=6144)]) == len(NAMES)
    with pytest.raises(BadSample, match=r"'video', row .*max_value_bytes allows 900") as told:
        [*load(folder, max_value_bytes=900)]
    (claimed,) = re.findall(r"(\d+) bytes are claimed", str(told.value))
    assert 900 < int(claimed) < min(len(video(name)) for name in NAMES)
    (first,) = shardio.Loader(
        shardio.open(folder)[:1],
        1,
        transforms={"video": [shardio.RandomClip(1)]},
        max_value_bytes=len(video(NAMES[0])) // 2,
    )
    assert first["video"][0].shape == (1, 64, 96, 3)


@pytest.mark.parametrize("transforms", [[], [shardio.CenterCrop(40), shardio.Resize(32)], [shardio.ToFloat()]])
def test_rotation(tmp_path: Path, transforms: list[Transform]) -> None:
    """With orient=True frames are turned as players turn them, before their transforms; else they are as stored."""
    with shardio.create(tmp_path / "d", fields={"video": "video"}) as writer:
        for matrix in ((1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)):
            writer.append({"video": turned(video("h264.mp4"), matrix)})

    def loaded(orient: bool, transforms: list[Transform]) -> list[np.ndarray]:
        clip = [shardio.CenterClip(3, stride=4), *transforms]
        loader = shardio.Loader(
            shardio.open(tmp_path / "d"), 1, transforms={"video": clip}, shuffle=None, orient=orient, to="numpy"
        )
        return [np.asarray(batch["video"][0]) for batch in loader]

    stored = loaded(False, [])
    for turns, (frames, upright) in enumerate(zip(stored, loaded(True, []), strict=True)):
        np.testing.assert_array_equal(frames, stored[0])
        np.testing.assert_array_equal(upright, np.rot90(frames, -turns, (1, 2)))
    with shardio.create(tmp_path / "i", fields={"image": "image"}) as writer:
        for frames in loaded(True, []):
            for frame in frames:
                writer.append({"image": encode("png", frame)})
    images = shardio.Loader(shardio.open(tmp_path / "i"), 1, transforms={"image": transforms}, shuffle=None, to="numpy")
    expected = [np.asarray(batch["image"][0]) for batch in images]
    for row, frames in enumerate(loaded(True, transforms)):
        for number, frame in enumerate(frames):
            np.testing.assert_array_equal(frame, expected[3 * row + number])
