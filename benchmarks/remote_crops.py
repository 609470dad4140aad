"""Measure crops of arrays in a bucket: bytes and requests per sample, and samples per second.

    python -m benchmarks.remote_crops --samples 48

Fields of 721 x 1440 float32, from which a Loader takes random crops of 64 x 64, come from a real S3 server on this
machine behind a link (`_link.py`), from an empty cache. The layouts: HDF5 that shardio wrote, contiguous or compressed
by rows, and files that h5py wrote and `shardio index` adopted, contiguous or in compressed chunks of 90 x 180.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import obstore

import shardio
from benchmarks._link import Counters, link
from shardio.conversion.indexing import index
from tests._s3 import KEY, SECRET, s3_server

SHAPE, CROP, BATCH = (721, 1440), (64, 64), 8
LAYOUTS: dict[str, dict[str, Any]] = {
    "written, contiguous": {},
    "written, gzip": {"compression": "gzip"},
    "adopted, contiguous": {},
    "adopted, chunks 90x180 gzip": {"chunks": (1, 90, 180), "compression": "gzip", "compression_opts": 1},
}


def fields(count: int) -> np.ndarray:
    """Smooth fields with a little noise, float32 [count, *SHAPE], which compress to about half."""
    lat, lon = np.linspace(-90, 90, SHAPE[0]), np.linspace(0, 6.28, SHAPE[1])
    base = 280 + 20 * np.cos(np.radians(lat))[:, None] + np.sin(lon)
    noise = np.random.default_rng(0).integers(-40, 40, (count, *SHAPE)) / 16
    return (base + noise).astype(np.float16).astype(np.float32)


def write(folder: Path, layout: str, count: int) -> Path:
    """Write a dataset of a layout; return its folder."""
    out, values = folder / layout.replace(" ", "-").replace(",", ""), fields(count)
    if layout.startswith("written"):
        with shardio.create(out, container="hdf5", shard_size="64MB", **LAYOUTS[layout]) as writer:
            for value in values:
                writer.append({"t2m": value})
        return out
    (folder / "source").mkdir(exist_ok=True)
    source = folder / "source" / f"{out.name}.h5"
    with h5py.File(source, "w") as file:
        file.create_dataset("t2m", data=values, **LAYOUTS[layout])
    index([source], out)
    return out


def measure(url: str, cache: str, options: dict[str, str], shuffle: Any) -> dict[str, float]:
    """Read an epoch of crops."""
    dataset = shardio.open(url, cache=cache, cache_size="2GB", store_options=options)
    crop = {"t2m": [shardio.RandomSpatialCrop(CROP)]}
    world = shardio.World(0, 1, 0, 1)
    loader = shardio.Loader(dataset, BATCH, transforms=crop, shuffle=shuffle, world=world, threads=2)
    begun, samples = time.monotonic(), 0
    for batch in loader:
        samples += len(batch["t2m"])
    seconds, fetched = time.monotonic() - begun, dataset.fetched
    return {
        "samples/s": samples / seconds,
        "KiB per sample": fetched.bytes / samples / 1024,
        "requests per sample": fetched.requests / samples,
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--mbit", type=float, default=400.0)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        url, cache, options, shuffle = arguments.run
        print(json.dumps(measure(url, cache, json.loads(options), shuffle)))
        return
    with tempfile.TemporaryDirectory() as name, s3_server(Path(name) / "s3") as server:
        folder = Path(name)
        server.make_bucket("crops")
        keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
        config: Any = {"endpoint": server.endpoint, **keys}
        bucket = obstore.store.S3Store("crops", config=config, client_options={"allow_http": True})
        with link(int(server.endpoint.rpartition(":")[2]), 10.0, arguments.mbit, folder) as through:
            for layout in LAYOUTS:
                data = write(folder, layout, arguments.samples)
                for path in data.iterdir():
                    obstore.put(bucket, f"{data.name}/{path.name}", path.resolve())
                for shuffle in ("global", "block"):
                    options = {"endpoint": f"http://127.0.0.1:{through.port}", **keys}
                    before = Counters(through.counters).read()
                    command = [sys.executable, "-m", "benchmarks.remote_crops", "--run", f"s3://crops/{data.name}"]
                    command += [tempfile.mkdtemp(dir=folder), json.dumps(options), shuffle]
                    made = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
                    passed = Counters(through.counters).read() - before
                    made["KiB per sample, link"] = passed.bytes / arguments.samples / 1024
                    print(f"{layout}, {shuffle}:", ", ".join(f"{key} {value:.1f}" for key, value in made.items()))


if __name__ == "__main__":
    main()
