"""Pages of a dataset: who gets them, what they show, and that nothing in the data does more than be shown."""

import base64
import html
import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
import zarr
from _browser import dom
from _builders import encode, jpeg, spoiled
from _cli import here
from _datasets import packed, photos
from _foreign import write_tokenizer
from _masks import grey_png
from _s3 import s3_server
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import shardio
from shardio import Field, World
from shardio.care.browse import arrays
from shardio.care.browse.batch_page import batch_page
from shardio.care.browse.batches import Job, batch_of
from shardio.care.browse.grid import PER_PAGE, Samples, classes, grid, state_of
from shardio.care.browse.sample import sample as sample_page
from shardio.care.browse.scan import Chosen, Counts, Scans
from shardio.dataset.selection import Selection
from shardio.errors import ConfigError, MissingDependency
from shardio.foreign.tokenizer import TextEncoder
from shardio.format.mask_colors import colored
from shardio.stores import open_store
from shardio.stores.url import as_url
from shardio.system.html import escaped

NAMES = [
    "<script>document.title='ran'</script>",
    "a'b\"c",
    "\u202eRTL",
    "../../etc/passwd",
    "nul\x00\x1b[31m",
    "x" * 10_240,
    "<img src=x onerror=document.title='ran'>",
    "dog",
]
FIELDS: Mapping[str, Any] = {
    "image": "image",
    "mask": Field("image", role="mask"),
    "label": "int64",
    "key": "text",
    "note": "json",
    "blob": "bytes",
    "grid": ("float32", (4, 12, 16)),
    "tokens": ("uint16", (None,)),
    "any": Field("array", dtype="int32"),
    "score": Field("scalar", "float64", optional=True),
    "frames": ("image", (None,)),
}
COUNT, BAD, BOMB = 72, 3, 4


def bomb() -> bytes:
    """A whole PNG of few bytes that claims 3.6 billion pixels."""
    small = encode("png", np.zeros((2, 2, 3), np.uint8))
    size = (60_000).to_bytes(4, "big")
    return small[:16] + size + size + small[24:]


def sample(number: int) -> dict[str, Any]:
    """A sample of every kind of field, with a hostile name; a broken image, and one that claims too much."""
    image = jpeg(40, 56, seed=number)
    mask = np.zeros((40, 56), np.uint8)
    mask[5:20, number % 30 : number % 30 + 20] = 1 + number % 5
    values = np.arange(4 * 12 * 16, dtype=np.float32).reshape(4, 12, 16) + number
    values[0, 0, 0] = np.nan
    return {
        "image": spoiled(image) if number == BAD else bomb() if number == BOMB else image,
        "mask": grey_png(mask),
        "label": number % len(NAMES),
        "key": f"{NAMES[number]}/{number}" if number < len(NAMES) else f"val/{number}",
        "note": {"n": number, "<b>": [None, "</pre><script>"]},
        "blob": bytes(range(256)) * (number % 3),
        "grid": values,
        "tokens": np.arange(number, dtype=np.uint16),
        "any": np.arange(number % 4 * 2, dtype=np.int32).reshape(2, -1),
        "score": None if number % 4 == 0 else number / 2,
        "frames": [jpeg(20, 30, seed=number + place) for place in range(number % 3)],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of hostile samples in four shards."""
    place = tmp_path_factory.mktemp("data") / "<hostile> & 'more'"
    packed(place, map(sample, range(COUNT)), FIELDS, metadata={"classes": NAMES}, shard_size="200KB")
    return place


@pytest.fixture(scope="module")
def data(folder: Path) -> shardio.Dataset:
    """The dataset, opened."""
    return shardio.open(folder)


@dataclass(frozen=True)
class Site:
    """A server of another process."""

    process: "subprocess.Popen[str]"
    address: str

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    @property
    def token(self) -> str:
        return urlsplit(self.address).query.removeprefix("token=")

    @property
    def cookie(self) -> str:
        return f"shardio-{self.port}={self.token}"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return the answer to a request: status, headers, content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content

    def page(self, path: str) -> str:
        """Return a page, as somebody with the token gets it."""
        status, _, content = self.ask(path, Cookie=self.cookie)
        assert status == 200, content
        return content.decode()


@contextmanager
def served(*args: object) -> Iterator[Site]:
    """Run `shardio browse` with these arguments."""
    command = [sys.executable, "-m", "shardio", "browse", *map(str, args), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if "http" not in line:
                process.kill()
                raise AssertionError(process.communicate())
            yield Site(process, line.split()[-1])
        finally:
            process.kill()


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    """A server of the dataset."""
    with served(folder, "--batch-size", 8, "--augment") as running:
        yield running


def pictures(page: str, kind: str) -> list[Any]:
    """The pictures of a kind whose data are within a page."""
    found = re.findall(rf'<img class="{kind}[^"]*"[^>]*src="data:image/png;base64,([^"]*)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


@pytest.mark.slow
def test_only_who_has_the_token_gets_pages(site: Site) -> None:
    """Strangers, other names of this machine, and what is not GET are refused; the token becomes a cookie."""
    assert site.ask("/")[0] == 403
    assert site.ask("/?token=wrong")[0] == 403
    assert site.ask("/?token=%ff%00")[0] == 403
    for path in ("/sample/0", "/small/image/0", "/static/browse.js", "/progress?where=label+==+1", "/nowhere"):
        assert site.ask(path)[0] == 403, path
    assert site.ask("/", Cookie=site.cookie[:-1])[0] == 403
    assert site.ask("/", Cookie='shardio="; ' + "x=y; " * 100)[0] == 403
    for host in ("evil.example", f"evil.example:{site.port}", "127.0.0.1.evil.example", "", "[::2]"):
        status, _, content = site.ask("/", Host=host, Cookie=site.cookie)
        assert (status, b"hostile" in content) == (403, False), host
    for host in ("localhost:8080", "127.0.0.1", "[::1]:1"):
        assert site.ask("/", Host=host, Cookie=site.cookie)[0] == 200, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"):
        status, headers, _ = site.ask("/", method, Cookie=site.cookie)
        assert (status, headers["allow"]) == (405, "GET")
    status, headers, content = site.ask(f"//evil.example/?where=label+%3D%3D+1&token={site.token}")
    assert status == 200
    (root,) = re.findall(r'content="0;url=(/[\w-]{22})/evil.example/\?where=label\+%3D%3D\+1"', content.decode())
    assert {"HttpOnly", "SameSite=Strict", f"Path={root}/", site.cookie} == set(headers["set-cookie"].split("; "))
    assert site.token not in content.decode()


@pytest.mark.slow
def test_the_cookie_is_for_these_pages_alone(site: Site) -> None:
    """The pages are below a path of their own, with all their addresses, as a cookie goes to every port of a host."""
    root = re.findall(r"Path=(/[^;]*)/$", site.ask(f"/?token={site.token}")[1]["set-cookie"])[0]
    for path in ("/", "/sample/0", "/classes", "/batches", "/nowhere"):
        status, _, content = site.ask(root + path, Cookie=site.cookie)
        assert status == (404 if path == "/nowhere" else 200)
        found = re.findall(r'(?:href|src|action|data-url)="([^"#]+)', html.unescape(content.decode()))
        assert found
        for address in {address for address in found if not address.startswith("data:")}:
            assert address.startswith(f"{root}/"), address
            assert site.ask(address, Cookie=site.cookie)[0] == 200, address
    assert site.ask(f"{root}/")[0] == 403


@pytest.mark.slow
def test_answers_allow_nothing_else(site: Site) -> None:
    """Every answer forbids scripts in it, other places, and to guess its type; paths that are none are not found."""
    ways_out = ["/../../etc/passwd", "/static/../server.py", "/static/%2e%2e/server.py", "/small/..%2f/0"]
    none = [f"/sample/{number}" for number in (72, -1, "1e3", "9" * 5000)]
    none += ["/small/nope/0", "/small/image/x", *ways_out]
    for path in ("/", "/classes", "/batches", "/sample/0", "/image/image/0", "/static/browse.css", *none):
        status, headers, _ = site.ask(path, Cookie=site.cookie)
        assert status == (404 if path in none else 200), path
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        told = {headers[n] for n in ("x-content-type-options", "referrer-policy", "cache-control")}
        assert told == {"nosniff", "no-referrer", "no-store"}
    for path in ("/", "/sample/0", "/batches", "/classes"):
        page = site.page(path)
        assert not re.search(r"<script(?! src=\"/static)|\son\w+=|style=|https?://", page.replace(" on", "")), path
        assert set(re.findall(r"<(?:script|link)[^>]*(?:src|href)=\"([^\"]*)\"", page)) <= {
            "/static/browse.css",
            "/static/browse.js",
        }


@pytest.mark.slow
def test_pictures_and_errors_in_their_places(site: Site, data: shardio.Dataset) -> None:
    """Images come as they are stored; a broken one and a bomb come as text, and the rest of the page is there."""
    status, headers, content = site.ask("/image/image/7", Cookie=site.cookie)
    assert (status, headers["content-type"], content) == (200, "image/jpeg", data[7]["image"])
    _, _, content = site.ask("/image/mask/7", Cookie=site.cookie)
    levels = np.asarray(Image.open(io.BytesIO(data[7]["mask"])))
    assert (np.asarray(Image.open(io.BytesIO(content))) == colored(levels.astype(np.int64))).all()
    _, _, content = site.ask("/image/frames/8?n=1", Cookie=site.cookie)
    assert content == data[8]["frames"][1]
    for name in ("image", "mask", "grid", "frames"):
        status, headers, content = site.ask(f"/small/{name}/8", Cookie=site.cookie)
        assert (status, headers["content-type"]) == (200, "image/jpeg")
        assert max(Image.open(io.BytesIO(content)).size) <= 160
    for path, words in (
        (f"/small/image/{BOMB}", "60000 x 60000"),
        (f"/image/image/{BOMB}", "60000 x 60000"),
        (f"/small/image/{BAD}", "image"),
        ("/small/frames/9", "no image 0 in a list of 0"),
        ("/small/score/8", "has no pictures: scalar"),
        ("/image/frames/8?n=5", "no image 5 in a list of 2"),
    ):
        status, headers, content = site.ask(path, Cookie=site.cookie)
        assert (status, headers["content-type"]) == (200, "image/svg+xml"), path
        assert words in content.decode(), path
    page = site.page(f"/sample/{BOMB}")
    assert "claims 60000 x 60000 pixels" in page
    assert page.count("<section") == len(FIELDS)


@pytest.mark.long
@pytest.mark.slow
def test_in_a_browser(site: Site, tmp_path: Path) -> None:
    """A real browser takes the token, shows every picture, runs nothing of the data, and reports no error."""

    def seen(path: str, *options: str) -> str:
        address = f"http://127.0.0.1:{site.port}{path}{'&' if '?' in path else '?'}token={site.token}"
        page = dom(address, tmp_path, *options, "--virtual-time-budget=5000")
        assert "<title>ran</title>" not in page
        return page

    for path in ("/", "/sample/0"):
        page = seen(path)
        assert html.escape(NAMES[0], quote=False) in page
    page = seen("/batches?batch_size=8&world=2&step=1")
    assert page.count("data:image/png") >= 8
    shot = tmp_path / "grid.png"
    seen("/", f"--screenshot={shot}", "--window-size=800,900")
    assert np.asarray(Image.open(shot).convert("HSV"))[..., 1].astype(float).std() > 5  # the pictures have colours


@pytest.mark.slow
def test_ctrl_c_ends_it(folder: Path) -> None:
    """An interrupt, which it asks for, ends it at once and is no error, also while a browser keeps its connection."""
    with served(folder) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
        connection.request("GET", "/", headers={"Cookie": running.cookie})
        assert connection.getresponse().read()
        running.process.send_signal(signal.SIGINT)
        _, err = running.process.communicate(timeout=60)
        connection.close()
        assert (running.process.returncode, err) == (0, "")


@pytest.mark.long
@pytest.mark.slow
def test_a_dataset_in_a_bucket(folder: Path, tmp_path: Path) -> None:
    """Samples of a bucket come by way of the cache: pages, pictures, filters and batches."""
    with s3_server(tmp_path / "server") as server:
        server.make_bucket("data")
        store = open_store(as_url("s3://data"), server.options)
        for path in folder.iterdir():
            store.upload(f"d/{path.name}", path)
        options = [f"--store-option={name}={value}" for name, value in server.options.items()]
        with served("s3://data/d", "--cache", tmp_path / "cache", "--cache-size", "1GB", *options) as running:
            assert "s3://data/d" in running.page("/")
            found = running.page("/?" + urlencode({"where": "label == 7 and 'val/' in key"}))
            assert re.findall(r'href="/sample/(\d+)', found) == [str(n) for n in range(15, COUNT, 8)]
            status, headers, _ = running.ask("/small/image/9", Cookie=running.cookie)
            assert (status, headers["content-type"]) == (200, "image/jpeg")
            assert len(pictures(running.page("/batches?batch_size=4"), "made")) >= 4


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> shardio.Dataset:
    """100 million samples in a Zarr store whose chunks are fill values, but for three."""
    place, count = tmp_path_factory.mktemp("large"), 10**8
    group = zarr.create_group(place / "a.zarr")
    grids = group.create_array("x", shape=(count, 4, 4), chunks=(10**5, 4, 4), dtype="uint8", fill_value=7)
    labels = group.create_array("label", shape=(count,), chunks=(10**6,), dtype="uint8", fill_value=1)
    for number in (5, 60_000_000, count - 1):
        labels[number], grids[number] = 3, np.arange(16).reshape(4, 4)
    here("index", place / "a.zarr", "-o", place / "data")
    return shardio.open(place / "data")


@pytest.mark.slow
def test_a_hundred_million_samples(large: shardio.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages come without a look at all samples; a filter says how far it is, and goes on while somebody asks."""
    monkeypatch.setattr("shardio.care.browse.grid.WAIT", 0.05)
    scans = Scans()
    last = (10**8 - 1) // PER_PAGE + 1
    for page in (f"{last}", "9" * 18):  # a page behind the last one is the last one
        assert f"#{10**8 - 1}<" in grid(large, scans, {"page": page})
    page = grid(large, scans, {"where": "label == 3"})
    assert re.search(r"looked at [\d,]+ of 100,000,000 samples", page)
    assert 'href="/sample/99999999' not in page
    limit = time.monotonic() + 120
    while not state_of(large, scans, {"where": "label == 3"})["done"]:
        assert time.monotonic() < limit
        time.sleep(0.1)
    page = grid(large, scans, {"where": "label == 3"})
    assert re.findall(r"/sample/(\d+)", page) == ["5", "60000000", "99999999"]
    assert "looked at" not in page
    chosen = Samples(large, scans, "label == 3")
    assert chosen.around(60_000_000) == (5, 99_999_999)
    assert chosen.around(70_000_000) == (60_000_000, 99_999_999)
    assert chosen.around(5) == (None, 60_000_000)
    shown = batch_of(large, Job(world=4, rank=3, batch_size=20, step=1_000_000, epoch=2, seed=1), {})
    order = large.plan(1, "global", 1, 1).at_epoch(2)
    first = 1_000_000 * 80 + 3 * 20
    assert shown.indices == order.lookup(np.arange(first, first + 20))[0].tolist()


@pytest.mark.parametrize(
    "job",
    [
        Job(world=2, rank=1, batch_size=6, epoch=1, step=2, seed=3, augment=True),
        Job(world=3, rank=2, batch_size=10, step=2, tail="pad", augment=True),
        Job(world=2, rank=0, batch_size=5, step=3, shuffle="block", block=4, window=2, assign="node", augment=True),
        Job(batch_size=70, shuffle="none"),
    ],
)
def test_batches_are_those_of_a_loader(job: Job, data: shardio.Dataset) -> None:
    """The pictures of a batch are what a Loader of that rank delivers at that step, pixel for pixel."""
    crop = [shardio.RandomResizedCrop(24), shardio.RandomHorizontalFlip()]
    transforms = {"image": [*crop, shardio.ToFloat()], "mask": crop}
    fields = ["image", "mask"]
    loader = shardio.Loader(
        data,
        job.batch_size,
        transforms=transforms if job.augment else None,
        world=World(job.rank, job.world),
        fields=fields,
        seed=job.seed,
        shuffle=None if job.shuffle == "none" else job.shuffle,
        block=job.block,
        window=job.window,
        tail=job.tail,
        assign=job.assign,
        on_bad_sample="mask",
        max_bad=COUNT,
    )
    loader.set_epoch(job.epoch)
    batches = iter(loader)
    for _ in range(job.step):
        next(batches)
    batch = next(batches)
    del batches
    page = batch_page(data, job, transforms, {})
    rows = re.findall(r'<div class="pair(?: marked)?".*?</a></div>', page, re.DOTALL)
    assert len(rows) == min(24, job.batch_size)
    for row, text in enumerate(rows):
        number = int(batch["index"][row])
        assert f'href="/sample/{number}"' in text
        if number in (BAD, BOMB):
            assert 'class="error"' in text
            continue
        assert ("marked" in text.split(">")[0]) == (not bool(batch["valid"][row]))
        image, mask = pictures(text, "made")[:2]
        value = batch["image"][row].numpy()
        expected = np.rint(value.transpose(1, 2, 0) * 255).astype(np.uint8) if job.augment else value
        assert (image == expected).all()
        assert (mask == colored(batch["mask"][row].numpy())).all()


def test_batches_by_address(data: shardio.Dataset) -> None:
    """An address chooses the batch; what breaks a rule is told on the page."""
    for query, words in (
        ({"step": "9"}, "step must be in [0, 9), the steps of an epoch, got 9"),
        ({"world": "0"}, "world must be an integer of at least 1, got 0"),
        ({"rank": "1"}, "rank must be in [0, 1), got 1"),
        ({"shuffle": "x"}, "shuffle"),
        ({"batch_size": "1e9"}, "batch_size must be an integer"),
        ({"batch_size": "999999999"}, "a page looks up steps of up to"),
        ({"epoch": "-1"}, "epoch must be in"),
        ({"tail": "<script>"}, "tail"),
    ):
        page = html.unescape(batch_page(data, Job(batch_size=8), {}, query))
        assert words in re.findall(r'<p class="error" role="alert">(.*?)</p>', page, re.DOTALL)[0], query
    second = batch_page(data, Job(batch_size=60, shuffle="none"), {}, {"from": "24"})
    assert re.findall(r'id="row(\d+)"', second) == [str(row) for row in range(24, 48)]


def test_filters_and_classes(data: shardio.Dataset) -> None:
    """A filter finds what a view has, its errors are told at the box, and classes lead to filters by number."""
    scans = Scans()
    for condition in (
        "label == 7",
        "score is None and label < 3",
        "'val/' in key",
        "grid > 3",
        "label ==",
        "nope == 1",
    ):
        page = grid(data, scans, {"where": condition})
        if condition in ("grid > 3", "label ==", "nope == 1"):
            with pytest.raises(ConfigError) as raised:
                data.where(condition)
            assert f'role="alert">{escaped(raised.value)}</p>' in page
            assert "/sample/" not in page
        else:
            numbers = [str(number) for number in data.where(condition).origin(range(len(data.where(condition))))]
            assert re.findall(r'href="/sample/(\d+)', page) == numbers[:PER_PAGE]
        assert f'value="{html.escape(condition)}"' in page
    page = classes(data, scans, {})
    assert re.findall(r'<td class="number">(\d+)</td><td><a href="([^"]*)"', page) == [
        (str(n), f"/?where=label+%3D%3D+{n}") for n in range(len(NAMES))
    ]
    assert page.count(f'</a></td><td class="number">{COUNT // len(NAMES)}</td>') == len(NAMES)
    assert "samples have no value" not in page


def test_a_page_shows_a_thousand_classes() -> None:
    """A page shows a part of a hundred thousand classes, and leads to the others."""
    names = [f"class {number}" for number in range(100_000)]
    samples = [{"label": number} for number in (0, 99_999)]
    data = shardio.from_samples(samples, {"label": "int64"}, metadata={"classes": names})
    page = classes(data, Scans(), {"page": "100"})
    assert re.findall(r"<bdi>class (\d+)</bdi>", page) == [str(number) for number in range(99_000, 100_000)]
    assert 'href="/classes?field=label&amp;page=99"' in page
    assert "class 99999" in grid(data, Scans(), {})
    assert len(page) < 1 << 20


def test_joined_fields_are_shown_beside_the_image() -> None:
    """The page of a sample has the fields of a join with where they come from, and the grid finds samples by them."""
    data = photos(12).join(
        {"key": [f"k{n}" for n in range(8)], "caption": [f"caption {n}" for n in range(8)]}, "key", how="optional"
    )
    page = sample_page(data, Scans(), 3, {}, None)
    assert "<img" in page
    assert "caption 3" in page
    assert "text, optional, joined from /memory/table" in page
    assert "This sample has no value." in sample_page(data, Scans(), 9, {}, None)
    found = grid(data, Scans(), {"where": "caption == 'caption 5'"})
    assert found.count("<img") == 1 or "1 of 12" in found or "/sample/5" in found


@pytest.mark.parametrize("size", [10_000, 1 << 21])
def test_deep_json_is_shown_by_its_beginning(size: int) -> None:
    """A value whose indents would take a hundred times its bytes costs no more than what is shown."""
    value = json.loads("[" * 60 + ",".join(["1"] * (size // 2)) + "]" * 60)
    data = shardio.from_samples([{"note": value}], {"note": "json"})
    tracemalloc.start()
    page = sample_page(data, Scans(), 0, {}, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"{size + 119:,} bytes, of which the first 20,000 characters are shown" in page
    assert len(page) < 30_000
    assert peak < 16 * size + (4 << 20)


@pytest.mark.long
@pytest.mark.parametrize("widths", [[5000] * 8, [*range(5000, 5008)]])  # in an array, and by themselves
def test_a_page_of_large_images_has_fewer(widths: list[int]) -> None:
    """A page ends with the image that takes it beyond its bytes, and the next one begins after that."""
    images = {width: encode("png", np.zeros((5000, width), np.uint8)) for width in widths}
    data = shardio.from_samples([{"image": images[width]} for width in widths], {"image": "image"})
    job, shown, pages = Job(batch_size=8, shuffle="none"), list[int](), 0
    while len(shown) < 8:
        page, pages = batch_page(data, job, {}, {"from": f"{len(shown)}"}), pages + 1
        shown += [int(row) for row in re.findall(r'id="row(\d+)"', page)]
        assert f"to {shown[-1]} of 8" in page
    assert (shown, pages) == ([*range(8)], 2 + (len(images) == 1))


def test_a_page_decodes_no_image_of_many_pixels() -> None:
    """Beyond the pixels of small pictures an image is told, whatever its few bytes claim."""
    large = shardio.from_samples([{"image": encode("png", np.zeros((6000, 6000), np.uint8))}], {"image": "image"})
    assert "max_image_pixels allows" in batch_page(large, Job(batch_size=1), {}, {})


@pytest.mark.slow
def test_idle_connections_take_no_places(folder: Path) -> None:
    """A page comes however many connections ask for nothing."""
    with served(folder) as running, ExitStack() as idle:
        for _ in range(300):
            idle.enter_context(socket.create_connection(("127.0.0.1", running.port)))
        assert "/sample/0" in running.page("/")
        held = len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))
        assert held < 200


@pytest.mark.parametrize("make", [
    lambda data: data[10:40:3],
    lambda data: data.where("label != 2"),
    lambda data: shardio.mix({"a": data[:9], "b": data[30:]}, {"a": 1, "b": 2}),
    lambda data: data.weighted("label", 20),
    lambda data: data.cut("tokens", 16),
    lambda data: data.windows(3, within="dataset"),
    lambda data: data[:0],
])  # fmt: skip
def test_views_are_shown(make: Callable[[Any], Any], data: shardio.Dataset) -> None:
    """Every kind of view has its grid, its samples and its batches."""
    view, scans = make(data), Scans()
    page = grid(view, scans, {})
    numbers = [int(number) for number in re.findall(r'href="/sample/(\d+)', page)]
    assert len(numbers) == min(PER_PAGE, len(view))
    for number in numbers[:2]:
        shown = sample_page(view, scans, number, {}, None)
        assert shown.count("<section") == len(view.fields)
        assert 'class="error"' not in shown or number in (BAD, BOMB)
    page = batch_page(view, Job(batch_size=3), {}, {})
    assert page.count('id="row') == (3 if numbers else 0)
    classes(view, scans, {})


def test_every_kind_of_value(data: shardio.Dataset) -> None:
    """A sample's page has each value as text, and its place."""
    page = html.unescape(sample_page(data, Scans(), 9, {"where": "label == 1"}, None))
    place = data.locate(9)
    for words in (place.shard, "val/9", f"<dd>{place.row}</dd>", '"</pre><script>"', "4.5"):
        assert words in page
    assert "40 x 56, RGB" in page
    assert "0 1 2 3 4 5 6 7 8" in page  # the tokens
    assert '<a rel="next" href="/sample/17?where=label+%3D%3D+1">' in page
    assert '<a rel="prev" href="/sample/1?where=label+%3D%3D+1">' in page
    assert "This sample has no value." in sample_page(data, Scans(), 8, {}, None)
    assert "00000010  10 11 12" in sample_page(data, Scans(), 10, {}, None)
    figures = re.search(r'id="grid".*?</section>', page, re.DOTALL)
    assert figures is not None
    assert re.findall(r"<dt>(\w+)</dt><dd>([^<]*)</dd>", figures[0]) == [
        ("numbers", "768"), ("NaN", "1"), ("infinite", "0"), ("min", "10"), ("max", "776"), ("mean", "393"),
    ]  # fmt: skip
    assert figures[0].count("<title>") == 40


def test_numbers_at_their_limits() -> None:
    """Figures and pictures of infinite, missing and huge numbers, and of arrays of any shape, come without an error."""
    values = {
        "huge": np.array([np.nan, np.inf, -np.inf, 1e308, -1e308]),
        "complex": np.array([[1 + 2j, 3], [np.nan, 0]], np.complex64),
        "unsigned": np.array([2**64 - 1, 0], np.uint64),
        "truths": np.array([[True, False]]),
        "none": np.zeros((2, 0, 2), np.int8),
        "deep": np.zeros((2, 2, 2, 2, 2)),
        "equal": np.ones(5),
        "nan": np.full(3, np.nan),
    }
    data = shardio.from_samples([values], {name: (value.dtype, value.shape) for name, value in values.items()})
    page = sample_page(data, Scans(), 0, {}, None)
    assert 'class="error"' not in page
    assert not re.search(r'\sd="[^"]*(nan|inf)', page)
    figures = re.findall(r"<dt>(?:min|max)</dt><dd>([^<]*)</dd>", page)
    assert figures[:6] == ["-1e+308", "1e+308", "0", "3", "0", f"{2**64 - 1}"]


def test_tokens_as_a_text(tmp_path: Path) -> None:
    """With a tokenizer tokens are a text, too; those that it does not know have none."""
    write_tokenizer(tmp_path / "tokenizer.json", ["a tale of two cities"])
    encoder = TextEncoder(tmp_path / "tokenizer.json")
    tokens = np.concatenate([encoder.encode("two cities"), [60_000]]).astype(np.uint16)
    data = shardio.from_samples([{"tokens": tokens}], {"tokens": ("uint16", (None,))})
    page = sample_page(data, Scans(), 0, {}, encoder)
    assert '<pre dir="auto">two cities</pre>' in page
    assert "60000" in page


@pytest.mark.parametrize(("name", "text", "place"), [
    ("grid", "1, :, :", np.s_[1, :, :]),
    ("grid", "-1,2:5, 0:9", np.s_[-1, 2:5, 0:9]),
    ("grid", ":, 3, 4", np.s_[:, 3, 4]),
    ("grid", "1,2,3", np.s_[1, 2, 3]),
    ("tokens", "4:20", np.s_[4:20]),
    ("any", ":, 1", np.s_[:, 1]),
])  # fmt: skip
def test_slices_are_those_of_numpy(name: str, text: str, place: Any, data: shardio.Dataset) -> None:
    """A slice holds what NumPy's has, in whatever form the array is stored."""
    part = arrays.read(data, name, 43, arrays.asked_cut(text))
    np.testing.assert_array_equal(part.values, data[43][name][place])
    assert arrays.asked_cut(str(part.cut))(part.shape) == part.cut


@pytest.mark.parametrize(
    "text", ["", "1", ":,:,:", "9, :, :", "1, 5:2, :", "x, :, :", "1, ::2, :", "1, :, 99999999999999999999"]
)
def test_slices_that_are_none(text: str, data: shardio.Dataset) -> None:
    """Another text is told above the usual slice; no text asks for that."""
    with pytest.raises(ConfigError):
        arrays.read(data, "grid", 0, arrays.asked_cut(text))
    page = sample_page(data, Scans(), 0, {"at.grid": text}, None)
    assert 'value="2, 0:12, 0:16"' in page
    assert ('role="alert"' in page) == bool(text)


def test_large_arrays_are_read_by_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page reads only a slice of an array that is too large, and says which figures are of that slice alone."""
    whole = np.arange(64 * 512 * 512, dtype=np.float32).reshape(64, 512, 512)
    data = packed(tmp_path / "d", [{"x": whole}], {"x": ("float32", (64, 512, 512))}, container="hdf5")
    monkeypatch.setattr(Selection, "column", lambda *_: pytest.fail("all of it was read"))
    page = sample_page(data, Scans(), 0, {"at.x": "3, :, :"}, None)
    assert "Figures of what is shown" in page
    assert pictures(page, "numbers")[0].shape == (512, 512)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=400), st.integers(0, 5), st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_what_a_scan_finds(labels: list[int], wanted: int, at_once: int) -> None:
    """Positions, neighbours and counts are those of the whole column, whatever parts it is read in."""
    data = shardio.from_samples([{"label": label} for label in labels], {"label": "int64"})
    chosen, expected = Chosen(data, f"label == {wanted}"), np.flatnonzero(np.array(labels) == wanted).tolist()
    parts = [np.array(labels[first : first + at_once]) == wanted for first in range(0, len(labels), at_once)]
    for part in parts:
        chosen.seen += chosen._take(part)
    assert chosen.done
    assert chosen.numbers(0, 1000) == expected
    assert chosen.numbers(1, 4) == expected[1:4]
    for number in range(0, len(labels), 7):
        assert chosen.before(number) == sum(found < number for found in expected)
    counts = Counts(data, "label")
    counts.ask(60)
    assert counts.counts() == {label: labels.count(label) for label in sorted(set(labels))}


@given(st.text(max_size=300) | st.text(st.sampled_from("<>&\"'\x00\x1b\u202e\ud800\x85\n")))
@settings(max_examples=200)
def test_any_text_stays_text(text: str) -> None:
    """Escaped text is no markup, in HTML and in XML, has no control character, and shows all others."""
    shown = escaped(text)
    assert not set("<>\"'") & set(shown)
    assert not {chr(code) for code in [*range(9), *range(11, 32), 127]} & set(shown)
    plain = html.unescape(shown)
    assert len(plain) == len(text)
    kept = [(a, b) for a, b in zip(text, plain, strict=True) if a.isprintable() and a < "\ud7ff"]
    assert all(a == b for a, b in kept)
    assert len(html.unescape(escaped(text, 5))) <= 6


def test_what_cannot_be_served_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is taken, a wrong option, and a missing package end in one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option, value, words in (
            ("--port", port, "--port must be a free port of 127.0.0.1"),
            ("--port", 99999, "--port must be in [0, 65536)"),
            ("--rank", 3, "--rank must be in [0, 1), got 3"),
            ("--tokenizer", folder / "none.json", "--tokenizer must be a tokenizer.json"),
        ):
            with pytest.raises(ConfigError, match=re.escape(words)):
                here("browse", folder, "--no-open", option, value)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingDependency, match="shardio browse needs uvicorn: pip install"):
        here("browse", folder, "--no-open")


def test_progress_is_json(data: shardio.Dataset) -> None:
    """A page that refreshes itself during a scan gets plain values."""
    scans = Scans()
    told = state_of(data, scans, {"counts": "label"})
    assert set(json.loads(json.dumps(told))) == {"text", "done"}
    with pytest.raises(ConfigError, match="a condition"):
        state_of(data, scans, {"where": "label"})
