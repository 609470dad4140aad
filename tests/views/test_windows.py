"""Windows: samples of neighbouring rows, which never run over the end of a sequence."""

import itertools
import statistics
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _adoptable import tables
from _datasets import packed
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

import shardio
from shardio.dataset.dataset import Dataset
from shardio.errors import ConfigError, ShardCorrupt, SourceWarning
from shardio.views.index_map import RunMap, of_runs

ROWS = shardio.from_samples(
    [
        {
            "n": n,
            "time": 3600.0 * n,
            "volume": np.arange(60, dtype=np.float32).reshape(3, 4, 5) + 100 * n,
            "pixels": np.full((6, 4, 3), n, np.uint8),
            "station": f"s{n // 10}",
            "note": None if n == 4 else n,
            "ragged": np.zeros(n),
        }
        for n in range(40)
    ],
    {
        "n": "int64",
        "time": shardio.Field("scalar", "float64", attributes={"units": "seconds since 1970-01-01"}),
        "volume": ("float32", (3, 4, 5)),
        "pixels": shardio.Field("pixels", shape=(6, 4)),
        "station": "text",
        "note": shardio.Field("scalar", "int64", optional=True),
        "ragged": shardio.Field("array", "float64"),
    },
    shard_samples=7,
)


@given(
    st.lists(st.tuples(st.sampled_from([5, 5, 5, 5, 6, 10, 0, -5]), st.integers(0, 5)), max_size=40),
    st.tuples(*(st.integers(1, most) for most in (4, 5, 3))),
    st.sampled_from(["group", "name", "dataset"]),
    st.booleans(),
)
def test_windows_are_those_of_numpy(
    steps: list[tuple[int, int]], cut: tuple[int, int, int], within: str, contiguous: bool
) -> None:
    """Windows within random sequences, ended by a column and by gaps, are NumPy's sliding windows of each."""
    (length, stride, step), group, time = cut, 0, 0
    rows = [{"n": 0, "group": 0, "name": "0", "time": 0}]
    for further, change in steps:
        group, time = group + (change == 0), time + further
        rows.append({"n": len(rows), "group": group, "name": str(group), "time": time})
    together = [within == "dataset" or one["group"] == other["group"] for one, other in itertools.pairwise(rows)]
    usual = statistics.median([further for (further, _), same in zip(steps, together, strict=True) if same] or [0])
    sequences = [[0]]
    for n, ((further, _), same) in enumerate(zip(steps, together, strict=True), 1):
        follows = same and (not contiguous or abs(further - usual) < abs(usual) / 2)
        sequences.append([n]) if not follows else sequences[-1].append(n)
    span = (length - 1) * step + 1
    expected = [
        window
        for sequence in sequences
        if len(sequence) >= span
        for window in sliding_window_view(sequence, span)[::stride, ::step].tolist()
    ]

    made = shardio.from_samples(rows, shard_samples=4)
    options: dict[str, Any] = {"stride": stride, "step": step, "within": within}
    if contiguous and any(together) and not usual:
        with pytest.raises(ConfigError, match=r"'time' of .* is the same in most neighbouring rows"):
            made.windows(length, contiguous="time", **options)
        return
    windows = made.windows(length, contiguous="time" if contiguous else None, **options)
    assert windows.origin(range(len(windows))).tolist() == expected
    assert windows.read(range(len(windows)), ["n"])["n"].tolist() == expected
    for samples in range(len(rows) + 1):
        assert windows.choice.in_earlier(windows.choice.made(made), samples) == sum(
            window[-1] < samples for window in expected
        )


@pytest.mark.parametrize(("runs", "size"), [(1, 10**7), (1000, 10**4), (10**5, 40), (10**6, 2), (3 * 10**5, 1)])
@pytest.mark.parametrize("step", [1, 7])
def test_a_window_takes_at_most_eight_bytes(runs: int, size: int, step: int) -> None:
    """The map to runs finds each sample, in at most 8 bytes per sample, and in 16 bytes per run where runs are long."""
    counts = np.random.default_rng(runs).integers(0, size + 1, runs)
    firsts = np.concatenate(([0], np.cumsum(counts * step + 3)[:-1])) if runs > 1 else np.zeros(1, np.int64)
    chosen = of_runs(firsts, counts, step)
    assert len(chosen) == counts.sum()
    some = np.random.default_rng(0).integers(0, len(chosen), 1000)
    run = np.searchsorted(np.cumsum(counts), some, "right")
    assert (chosen(some) == firsts[run] + step * (some - (np.cumsum(counts) - counts)[run])).all()
    taken = sum(part.nbytes for part in vars_of(chosen) if isinstance(part, np.ndarray))
    assert taken <= 8 * len(chosen) + 80
    if size >= 10**4 and runs > 1:
        assert isinstance(chosen, RunMap)
        assert taken <= 16 * runs + 8


def vars_of(chosen: Any) -> list[Any]:
    """The attributes of an object with slots."""
    return [getattr(chosen, name) for name in chosen.__slots__]


def test_fields_get_an_axis_of_rows() -> None:
    """Scalars, arrays of one shape and pixels become arrays with the rows first; others are left out."""
    windows = ROWS.windows(4, within="dataset")
    shapes = {name: field.shape for name, field in windows.fields.items()}
    assert shapes == {"n": (4,), "time": (4,), "volume": (4, 3, 4, 5), "pixels": (4, 6, 4, 3), "note": (4,)}
    assert windows.fields["time"].attributes == {"units": "seconds since 1970-01-01"}
    sample = windows[2]
    assert sample["n"].tolist() == [2, 3, 4, 5]
    assert sample["pixels"].dtype == np.uint8
    assert sample["pixels"][:, 0, 0, 0].tolist() == [2, 3, 4, 5]
    assert sample["note"] is None  # as row 4 has none
    read = windows.read([2, 5])
    assert read["note"].tolist() == [[0] * 4, [5, 6, 7, 8]]
    assert read["note_present"].tolist() == [False, True]
    for name in ("station", "ragged"):
        with pytest.raises(ConfigError, match=f"windows leave out '{name}', whose values differ in size"):
            shardio.Loader(windows, 2, fields=[name])
    assert "cannot be shown" not in windows._repr_html_()
    assert windows.selection(np.array([2, 5])).sizes("volume").tolist() == [4 * 60 * 4] * 2


def test_rows_without_a_value_end_windows() -> None:
    """Rows that lack the text are a sequence, other than those of empty text; a row without a time is a gap."""
    texts = [None, None, "", "", "a", "a", "a", "b"]
    rows = [{"n": n, "text": text, "time": None if n == 5 else n} for n, text in enumerate(texts)]
    optional = {"text": shardio.Field("text", optional=True), "time": shardio.Field("scalar", "int64", optional=True)}
    made = shardio.from_samples(rows, {"n": "int64", **optional})
    by_text = made.windows(2, within="text")
    assert by_text.read(range(len(by_text)))["n"].tolist() == [[0, 1], [2, 3], [4, 5], [5, 6]]
    by_time = made.windows(2, within="dataset", contiguous="time")
    assert by_time.read(range(len(by_time)))["n"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [6, 7]]


def test_a_batch_holds_windows() -> None:
    """A Loader delivers windows with transforms drawn once per window, which see an array without its axis of rows."""
    transforms = {
        "volume": [shardio.RandomSpatialCrop(2), shardio.RandomAxisFlip(), shardio.Normalize([1, 2, 3], [2, 2, 2])],
        "pixels": [shardio.CenterSpatialCrop((3, 2, 3)), shardio.ToFloat()],
    }
    windows = ROWS.windows(4, within="station")
    batch = next(iter(shardio.Loader(windows, 16, transforms=transforms, verify=True, seed=1, threads=1)))
    assert batch["n"].tolist() == windows.origin(batch["index"].numpy()).tolist()
    assert batch["volume"].shape == (16, 4, 3, 2, 2)
    steps = batch["volume"].diff(dim=1) * 2  # the rows differ by 100 wherever the same crop was taken
    assert (steps == 100).all()
    assert batch["pixels"].shape == (16, 4, 3, 2, 3)
    starts = batch["volume"][:, 0, 0, 0, 0] * 2 + 1 - 100 * batch["n"][:, 0]
    assert len(set(starts.tolist())) > 1
    assert batch["note"].shape == (16, 4)
    with pytest.raises(ConfigError, match="there is no axis -4 in arrays of shape"):
        shardio.Loader(windows, 2, transforms={"volume": [shardio.RandomAxisFlip(axes=-4)]})


def test_processes_deliver_the_same_views() -> None:
    """Worker processes deliver what one thread delivers of windows, and of views of each kind of them."""
    windows = ROWS.windows(3, stride=2, within="station", contiguous="time")
    sources: dict[str, Any] = {
        "weighted": windows.weighted(np.arange(len(windows))),
        "joined": shardio.concat({"some": windows.select([3, 1, 1]), "all": windows}),
    }
    mixed = shardio.mix(sources, {"weighted": 2, "joined": 1}, samples=60)
    options: dict[str, Any] = {"seed": 5, "fields": ["n", "volume"]}
    isolated = shardio.Loader(mixed, 5, isolate=True, threads=2, **options)
    for one, other in zip(shardio.Loader(mixed, 5, threads=1, **options), isolated, strict=True):
        assert one["index"].tolist() == other["index"].tolist()
        assert one["n"].tolist() == other["n"].tolist()
        assert one["volume"].equal(other["volume"])


@pytest.mark.usefixtures("nothing_ahead")
def test_a_row_is_read_once_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the windows of a batch overlap, each row of it is read once."""
    read = list[list[int]]()
    selection = Dataset.selection

    def counting(self: Dataset, indices: Any, *limits: Any) -> Any:
        read.append(indices.tolist())
        return selection(self, indices, *limits)

    monkeypatch.setattr(Dataset, "selection", counting)
    windows = ROWS.windows(4, within="dataset")
    for shuffle in (None, "block", "global"):
        read.clear()
        loader = shardio.Loader(windows, 8, shuffle=shuffle, block=8, fields=["n", "volume"], tail="pad", threads=1)
        rows = {row for batch in loader for row in batch["n"].reshape(-1).tolist()}
        assert rows == set(range(40))
        assert all(len(each) == len(set(each)) for each in read)
        if shuffle is None:
            assert sum(map(len, read)) < 60  # of 160 that are delivered


def test_windows_stay_within_adopted_files(tmp_path: Path) -> None:
    """The files that were adopted end windows, in views and joined datasets too; those of conversions are not known."""
    source = tables(tmp_path / "files")
    with pytest.warns(SourceWarning, match="becomes the field"):
        shardio.index(source, tmp_path / "adopted")
    with pytest.warns(SourceWarning, match="becomes the field"):
        shardio.convert(source, tmp_path / "rewritten", converter="hdf5")
    adopted = shardio.open(tmp_path / "adopted")
    windows = adopted.windows(5)
    assert len(windows) == 2 * 36
    assert windows.origin([35, 36]).tolist() == [[35, 36, 37, 38, 39], [40, 41, 42, 43, 44]]
    assert windows.read([36])["data.boxes"][0, :, 0].tolist() == [40, 41, 42, 43, 44]
    assert adopted[38:43].windows(2).origin([0, 1, 2]).tolist() == [[38, 39], [40, 41], [41, 42]]
    joined = shardio.concat({"a": adopted, "b": adopted[30:50]})
    assert len(joined.windows(5)) == 2 * 36 + 2 * 6
    rewritten = shardio.open(tmp_path / "rewritten")
    with pytest.raises(ConfigError, match=r"within='file' needs to know the source files .* give within='dataset', or"):
        rewritten.windows(5)
    with pytest.raises(ConfigError, match="within='file' needs to know"):
        shardio.concat({"a": adopted, "b": rewritten}).windows(5)
    named = shardio.from_samples([{"file": f"{n // 3}.nc", "n": n} for n in range(6)])
    assert named.windows(2).read(range(4))["n"].tolist() == [[0, 1], [1, 2], [3, 4], [4, 5]]


def test_windows_run_on_from_file_to_file(tmp_path: Path) -> None:
    """Where a decoded time goes on, so do windows, be its months of different lengths; gaps and `within` end them."""
    for number, days in enumerate([[0, 31, 59, 90, 120, 151], [181, 212, 304, 334]]):
        with h5py.File(tmp_path / f"part-{number}.nc", "w") as file:
            file["time"] = np.array(days, "f8")
            file["time"].attrs["units"] = "days since 2001-01-01"
            file["t2m"] = np.arange(len(days) * 4, dtype=">i2").reshape(-1, 4)
            file["t2m"].attrs.update({"scale_factor": np.float32(0.5)})
    shardio.index(tmp_path, tmp_path, decode_cf=True)
    dataset = shardio.open(tmp_path)
    windows = dataset.windows(2, contiguous="time")
    assert windows.origin(range(len(windows)))[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 8]
    assert windows.read([5])["t2m"][0, :, 0].tolist() == [10, 0]
    in_files = dataset.windows(2, within="file", contiguous="time")
    assert in_files.origin(range(len(in_files)))[:, 0].tolist() == [0, 1, 2, 3, 4, 6, 8]
    assert in_files.read([6])["t2m"][0, :, 1].tolist() == [4.5, 6.5]


@pytest.mark.parametrize(
    ("dtype", "step", "first"), [("float32", 300, 3.9e9), ("float32", 600, 3.9e9), ("float16", 1, 3000)]
)
def test_a_coordinate_too_coarse_for_its_steps(dtype: str, step: float, first: float) -> None:
    """Steps that rounding makes uneven are no gaps, so such numbers are refused; even ones are steps as any other."""
    times = (first + step * np.arange(50)).astype(dtype)
    rows = shardio.from_samples([{"time": time} for time in times.tolist()], {"time": dtype})
    with pytest.raises(ConfigError, match=f"'time' of .* is {dtype}, whose numbers are up to .* too coarse to tell"):
        rows.windows(2, contiguous="time")
    even = np.delete((2.0**24 + 2 * np.arange(20)).astype("float32"), [10, 11, 12])
    rows = shardio.from_samples([{"time": time} for time in even.tolist()], {"time": "float32"})
    assert len(rows.windows(2, contiguous="time")) == 15


def test_damage_is_told_with_window_and_row(tmp_path: Path) -> None:
    """A checksum that differs names the window, and the row in its shard; other windows are delivered."""
    fields = {"n": "int64", "values": ("float64", (8,))}
    packed(tmp_path / "d", [{"n": n, "values": np.full(8, n + 0.125)} for n in range(20)], fields, shard_size="1MB")
    (path,) = (tmp_path / "d").glob("*.tar")
    content = path.read_bytes()
    assert content.count(np.full(8, 7.125).tobytes()) == 1
    path.write_bytes(content.replace(np.full(8, 7.125).tobytes(), np.full(8, 9.0).tobytes()))
    windows = shardio.open(tmp_path / "d").windows(3, within="dataset")
    with pytest.raises(ShardCorrupt, match=r"window 5: .*row 7 \(sample 7\): checksum"):
        list(shardio.Loader(windows, 18, shuffle=None, verify=True, threads=1))
    loader = shardio.Loader(windows, 18, shuffle=None, verify=True, threads=1, on_bad_sample="replace", max_bad=9)
    (batch,) = loader
    assert not (batch["n"] == 7).any()
    assert sorted(one.location.index for one in loader.quarantine()) == [5, 6, 7]
    assert sorted(one.location.row for one in loader.quarantine()) == [5, 6, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be an integer of at least 1, got 0"),
        ({"length": 2, "stride": 0}, "stride must be an integer of at least 1, got 0"),
        ({"length": 1, "stride": 1 << 31}, "stride must be below 2147483648, got 2147483648"),
        ({"length": 2, "step": 1.5}, "step must be an integer of at least 1, got 1.5"),
        ({"length": 2, "within": "volume"}, "within must be 'file', 'dataset' or a field that is a scalar or text"),
        ({"length": 2, "within": 3}, "within must be 'file', 'dataset' or the name of a field, got 3"),
        ({"length": 2, "within": "missing"}, "no field 'missing'"),
        ({"length": 2, "within": "dataset", "contiguous": "station"}, "contiguous must be a scalar of real numbers"),
    ],
)
def test_wrong_windows_are_refused(options: dict[str, Any], message: str) -> None:
    """Arguments that no windows follow from are errors, as are windows of windows, and data without fields for them."""
    with pytest.raises(ConfigError, match=message):
        ROWS.windows(**options)


def test_what_has_no_windows() -> None:
    """Windows of windows, of texts alone, and of samples that are drawn anew in each epoch are refused."""
    with pytest.raises(ConfigError, match="its samples are windows already"):
        ROWS.windows(2, within="dataset").windows(2, within="dataset")
    with pytest.raises(ConfigError, match=r"windows need a field whose values have one size; there are text \(text\)"):
        shardio.from_samples([{"text": "a"}]).windows(1, within="dataset")
    with pytest.raises(ConfigError, match="windows chooses from stored samples"):
        shardio.mix({"a": ROWS}, weights={"a": 1}).windows(2, within="dataset")
    with pytest.raises(ConfigError, match="at least one sample"):
        shardio.Loader(ROWS.windows(41, within="dataset"), 1, threads=1)
