"""Everything that takes a dataset's path for reading takes its URL."""

import json
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _bucket import options_of, uploaded
from _datasets import load, packed, photo
from _s3 import S3Server
from typer.testing import CliRunner, Result

import shardio
from shardio.cli import app
from shardio.dataset.store_access import StoreAccess
from shardio.diagnosis import Finding, storage
from shardio.format.pieces import PIECE
from shardio.stores import open_store
from shardio.stores.url import as_url

COUNT = 60


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local dataset of photos with labels and vectors, in three shards."""
    path = tmp_path_factory.mktemp("local") / "photos"
    samples = [photo(n, classes=3) | {"vector": np.full(900, n, np.float32)} for n in range(COUNT)]
    packed(path, samples, shard_size="100KB", metadata={"classes": ["a", "b", "c"]})
    return path


@pytest.fixture(scope="module")
def url(s3: S3Server, local: Path) -> str:
    """The same dataset in a bucket."""
    return uploaded(s3, local, "s3://reading/photos")


def command(line: str, *more: str) -> Result:
    """Run a command of shardio's."""
    return CliRunner().invoke(app, [*shlex.split(line), *more], prog_name="shardio")


def access(s3: S3Server, cache: Path) -> dict[str, Any]:
    """The keywords that lead to the server."""
    return {"cache": cache, "cache_size": "64MB", "store_options": s3.options}


def test_a_loader_delivers_what_it_delivers_of_the_local_dataset(
    s3: S3Server, url: str, local: Path, tmp_path: Path
) -> None:
    """`Loader(URL)`, pickled too, `TorchDataset(URL)`, `mix` and notebooks give of URLs what they give of paths."""
    keywords = access(s3, tmp_path / "cache")
    # As Lightning and spawned processes pickle it.
    far = pickle.loads(pickle.dumps(shardio.Loader(url, 8, seed=3, shuffle="block", **keywords)))  # noqa: S301  # its own
    for one, other in zip(shardio.Loader(local, 8, seed=3, shuffle="block"), far, strict=True):
        assert one["index"].tolist() == other["index"].tolist()
        assert one["vector"].equal(other["vector"])
        assert [bytes(x) for x in map(np.asarray, one["image"])] == [bytes(x) for x in map(np.asarray, other["image"])]
    samples = shardio.TorchDataset(url, fields=["label"], **keywords)
    assert [samples[n]["label"].item() for n in range(5)] == [0, 1, 2, 0, 1]
    mixed = shardio.mix({"far": url, "near": local}, **keywords)
    assert len(mixed) == 2 * COUNT
    assert mixed.selection(np.array([1, COUNT + 1])).column("vector")[:, 0].tolist() == [1, 1]
    batches = list(load(mixed, 20, fields=["vector"], seed=3))
    assert sorted(index for batch in batches for index in batch["vector"][:, 0].tolist()) == sorted([*range(COUNT)] * 2)
    shown = shardio.open(url, **keywords)._repr_html_()
    assert f"<strong>{url}</strong>" in shown
    assert "cannot be shown" not in shown


def test_windows_are_those_of_the_local_dataset(s3: S3Server, url: str, local: Path, tmp_path: Path) -> None:
    """Windows from a bucket, verified with the fields that they leave out, are those of the folder."""
    far = shardio.open(url, **access(s3, tmp_path / "cache")).windows(4, within="dataset")
    near = shardio.open(local).windows(4, within="dataset")
    options: dict[str, Any] = {"seed": 3, "shuffle": "block", "block": 8, "verify": True, "fields": ["vector"]}
    assert "image" not in far.fields
    for one, other in zip(shardio.Loader(near, 8, **options), shardio.Loader(far, 8, **options), strict=True):
        assert one["index"].tolist() == other["index"].tolist()
        assert one["vector"].equal(other["vector"])
    assert far.fetched.bytes <= sum(path.stat().st_size for path in local.iterdir())


VIEWS: dict[str, Any] = {
    "where": lambda dataset: dataset.where("label == 'b' or label == 2"),
    "select": lambda dataset: dataset.select([5, 3, 5, 41, 59, 0, 3, 7]),
    "split": lambda dataset: dataset.split({"train": 0.8, "val": 0.2}, by="label")["train"],
    "balanced": lambda dataset: dataset.where("label < 2").balanced("label"),
    "concat": lambda dataset: shardio.concat({"a": dataset[:20], "b": dataset.where("label == 0")}),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("options", [{}, {"shuffle": "block", "block": 4, "window": 3}, {"assign": "node"}])
def test_views_of_a_dataset_in_a_store(
    s3: S3Server, url: str, local: Path, tmp_path: Path, name: str, options: Any
) -> None:
    """A view of a dataset in a store delivers what it delivers of the local one, saved and opened, too."""
    far = VIEWS[name](shardio.open(url, **access(s3, tmp_path / "cache")))
    near = VIEWS[name](shardio.open(local))
    assert far.digest == near.digest
    far.save(tmp_path / "view.json")
    assert shardio.open(tmp_path / "view.json", of=url, **access(s3, tmp_path / "cache")).digest == near.digest
    for one, other in zip(load(near, 4, seed=3, **options), load(far, 4, seed=3, **options), strict=True):
        assert one["index"].tolist() == other["index"].tolist()
        assert one["vector"].equal(other["vector"])


def test_decoded_netcdf(s3: S3Server, tmp_path: Path) -> None:
    """Adopted files of netCDF that are decoded when they are read are decoded in a bucket, too."""
    for number in range(2):
        with h5py.File(tmp_path / f"month-{number}.nc", "w") as file:
            file["t2m"] = np.arange(40, dtype=">i2").reshape(10, 4)
            file["t2m"].attrs.update({"scale_factor": np.float32(number + 0.5), "_FillValue": np.int16(3)})
    shardio.index(tmp_path, tmp_path, decode_cf=True)
    place = uploaded(s3, tmp_path, "s3://reading/months")
    far = shardio.open(place, **access(s3, tmp_path / "cache")).selection(np.arange(20)).column("t2m")
    assert np.array_equal(far, shardio.open(tmp_path).selection(np.arange(20)).column("t2m"), equal_nan=True)
    assert far[13].tolist() == [18.0, 19.5, 21.0, 22.5]


def test_commands_that_read(s3: S3Server, url: str, local: Path, tmp_path: Path) -> None:
    """`info`, `plan`, `verify --deep`, `stats` and `show` say of the URL what they say of the local dataset."""
    options = options_of(s3, tmp_path / "cache")
    store = options[2:]
    lines = {
        "info {} --json": store, "plan {} --world 2 --batch-size 4 --json -": store,
        "verify {} --deep --json -": options, "stats {} --json -": options,
    }  # fmt: skip
    for line, more in lines.items():
        far, near = command(line.format(url), *more), command(line.format(local))
        assert far.exit_code == near.exit_code == 0, (line, far.output, far.exception)
        assert json.loads(far.stdout) == json.loads(near.stdout.replace(str(local), url)), line
    sheet = tmp_path / "sheet.png"
    assert command(f"show {url} -o {sheet}", *options).exit_code == 0
    near_sheet = tmp_path / "near.png"
    assert command(f"show {local} -o {near_sheet}").exit_code == 0
    assert sheet.read_bytes() == near_sheet.read_bytes()


def test_reshard_and_merge_read_urls(s3: S3Server, url: str, local: Path, tmp_path: Path) -> None:
    """`reshard` and `merge` take URLs as inputs, also beside local paths, and keep every sample and its checksum."""
    options = options_of(s3, tmp_path / "cache")
    done = command(f"reshard {url} {tmp_path / 'h5'} --to hdf5 --workers 2", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    assert shardio.open(tmp_path / "h5").digest == shardio.open(local).digest
    done = command(f"merge {url} {local} {tmp_path / 'all'}", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    assert len(shardio.open(tmp_path / "all")) == 2 * COUNT


@pytest.mark.long
def test_bench_and_train(s3: S3Server, url: str, tmp_path: Path) -> None:
    """`bench` and `train` read URLs, and write no key of a store to their results."""
    options = options_of(s3, tmp_path / "cache")
    line = f"bench {url} --image-size 32 --epochs 1 --batch-size 10 --json {tmp_path / 'bench.json'}"
    done = command(line, *options)
    assert done.exit_code == 0, (done.output, done.exception)
    line = f"train {url} --val {url} --output {tmp_path / 'run'} --epochs 1 --batch-size 20 --image-size 32"
    done = command(f"{line} --device cpu", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    for path in [tmp_path / "bench.json", *(path for path in (tmp_path / "run").rglob("*") if path.is_file())]:
        assert s3.options["secret_access_key"].encode() * 2 not in path.read_bytes()
    written = json.loads((tmp_path / "bench.json").read_text())["config"]["store_options"]
    assert written == dict.fromkeys(s3.options, "...")


def test_verify_reads_the_store_and_not_the_cache(s3: S3Server, local: Path, tmp_path: Path) -> None:
    """`verify` finds objects that are damaged or missing in the bucket, though the cache has them whole."""
    place = uploaded(s3, local, "s3://reading/damaged")
    keywords = access(s3, tmp_path / "cache")
    assert not shardio.verify(place, deep=True, **keywords).problems
    store = open_store(as_url(place), s3.options)
    shard = bytearray((local / "shard-000001.tar").read_bytes())
    shard[len(shard) // 2] ^= 1
    store.write("damaged/shard-000001.tar", bytes(shard))
    store.delete(["damaged/shard-000002.tar"])
    found = shardio.verify(place, **keywords).problems
    assert len(found) == 2
    assert found[0].startswith("shard-000001.tar: checksum ")
    assert found[1] == "shard-000002.tar is missing"


def test_what_a_store_does_not_know_is_refused(s3: S3Server, url: str, local: Path, tmp_path: Path) -> None:
    """Options that no store has, options of URLs beside local paths, and repairs in place are refused in words."""
    refused = {
        f"verify {url} --cache {tmp_path} --store-option enpoint=http://x": "Configuration key: 'enpoint' is not valid",
        f"verify {url} --store-option endpoint": "--store-option must be KEY=VALUE",
        f"stats {local} --cache-size 1GB": "--cache-size goes with --cache or the URL of a dataset",
        f"info {local} --store-option region=x": "--store-option goes with the URL of a dataset",
        f"info {local} --nodes 3": "--nodes goes with --cost",
        f"repair {url}": "repair works on local files, got the URL s3://reading/photos",
        f"bench {url} --storage": "--storage reads local files",
    }
    for line, words in refused.items():
        done = command(line)
        assert done.exit_code != 0, line
        assert words in f"{done.exception}", (line, done.exception)
    with pytest.raises(shardio.ConfigError, match="cache goes with the path or URL of a dataset, got Dataset"):
        shardio.Loader(shardio.open(local), 4, cache=tmp_path)


def test_the_estimated_cost_is_what_an_epoch_takes(s3: S3Server, url: str, tmp_path: Path) -> None:
    """`info --cost` names about the requests and bytes that the first epoch of one node takes."""
    done = command(f"info {url} --cost --json", *options_of(s3, tmp_path)[2:])
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)["cost"]["epochs"][0]
    dataset = shardio.open(url, **access(s3, tmp_path / "cache"))
    for _ in shardio.Loader(dataset, 10):
        pass
    size = int(dataset.manifest.shards.bytes.sum())
    assert found["first"]["bytes"] == pytest.approx(size, abs=PIECE)
    assert found["first"]["requests"] <= 3 + 1 + COUNT
    assert found["later"] == {"requests": 0, "bytes": 0}


def test_doctor_tells_how_a_store_answers_and_where_the_cache_is(s3: S3Server, url: str, tmp_path: Path) -> None:
    """`doctor URL` times the store, and says of the cache whether it suits and is large enough, without making it."""
    (tmp_path / "file").touch()

    def told_of(cache: Path, size: str) -> dict[str, Finding]:
        found = storage(url, StoreAccess(cache, size, s3.options))
        assert not cache.exists()
        return {finding.name: finding for finding in found}

    found = told_of(tmp_path / "cache", "64MB")
    assert f"{COUNT} samples in" in found["dataset"].value
    assert re.search(r"^s3://reading: answers in [\d.]+ ms", found["store"].value)
    assert found["cache"].value.startswith(str(tmp_path / "cache"))
    assert found["cache"].value.endswith("64.0 MB at most, which holds the whole dataset")
    small = told_of(tmp_path / "cache", "100KB")["cache"]
    assert small.state == "note"
    assert "100.0 KB at most, less than the dataset's" in small.value
    refused = told_of(tmp_path / "file" / "cache", "64MB")["cache"]
    assert refused.value.endswith("it takes no files: Not a directory")
    assert refused.state == "broken"
    assert "--cache /dev/shm " in refused.advice
    done = command(f"doctor {url}-no --json", *options_of(s3, tmp_path / "cache"))
    assert done.exit_code == 1
    (missing,) = json.loads(done.stdout)["storage"].values()  # nothing is told of a store that holds no dataset
    assert (missing["state"], missing["value"]) == ("broken", f"{url}-no: no shardio.json there")
