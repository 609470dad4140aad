"""Write what a release writes to a folder: `python make_written_before.py written_before/0.1.0`, once for each release.

Until that release is published its folder is written anew where a format changes on purpose.
"""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import shardio

out = Path(sys.argv[1])
shutil.rmtree(out, ignore_errors=True)
out.mkdir(parents=True)
rng = np.random.default_rng(7)


def image() -> bytes:
    """A small JPEG."""
    pix = (
        np.add.outer(np.arange(24), np.arange(32))[..., None] * 2
        + rng.integers(0, 60, 3)
        + rng.integers(0, 6, (24, 32, 3))
    ).astype(np.uint8)
    return cv2.imencode(".jpg", pix)[1].tobytes()


samples = [
    {
        "image": image(),
        "label": n % 3,
        "key": f"class/{n:03d}",
        "note": {"n": n, "odd": bool(n % 2)},
        "points": rng.normal(size=(n % 4, 2)).astype(np.float32),
        "row": rng.integers(0, 99, 5).astype(np.int16),
        "raw": bytes(range(n)),
    }
    for n in range(20)
]
fields = {
    "image": shardio.Field("image"),
    "label": shardio.Field("scalar", dtype="int64"),
    "key": shardio.Field("text"),
    "note": shardio.Field("json"),
    "points": shardio.Field("array", dtype="float32"),
    "row": shardio.Field("array", dtype="int16", shape=(5,)),
    "raw": shardio.Field("bytes"),
}

for container in ("tar", "hdf5", "lmdb"):
    with shardio.create(out / container, container=container, fields=fields, shard_size="6KB") as writer:
        for sample in samples:
            writer.append(sample)

(out / "others").mkdir()

with tarfile.open(out / "others" / "photos.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
    for n, sample in enumerate(samples):
        for suffix, data in (("jpg", sample["image"]), ("cls", str(sample["label"]).encode())):
            info = tarfile.TarInfo(f"{n:04d}.{suffix}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
subprocess.run([sys.executable, "-m", "shardio", "index", "others", "-o", "others"], check=True, cwd=out)
loader = shardio.Loader(out / "hdf5", 4, seed=5, threads=1, fields=["label"], world=shardio.World())
steps = iter(loader)
seen = [next(steps)["index"].tolist() for _ in range(2)]
state = loader.state_dict()
rest = [b["index"].tolist() for b in steps]


def short_name(v: Any) -> str:
    """A short name of a value."""
    data = (
        v
        if isinstance(v, bytes)
        else v.dtype.str.encode() + repr(v.shape).encode() + v.tobytes()
        if isinstance(v, np.ndarray)
        else json.dumps(v, sort_keys=True).encode()
    )
    return hashlib.sha256(data).hexdigest()[:16]


names = [*("tar", "hdf5", "lmdb", "others")]
expected = {
    "state": state,
    "seen": seen,
    "rest": rest,
    "digests": {n: shardio.open(out / n).digest for n in names},
    "samples": {n: [{k: short_name(v) for k, v in shardio.open(out / n)[i].items()} for i in range(20)] for n in names},
    "files": {
        str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(out.rglob("*"))
        if p.is_file()
    },
}
(out / "expected.json").write_text(json.dumps(expected, indent=1))
