"""Watching a loader: what is counted adds up, it goes where it is asked to, and a starved rank is warned about."""

import itertools
import json
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from _datasets import load as loader_of
from _datasets import photos
from _time_limit import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.cache.fetcher import FetchCounts
from shardio.errors import ConfigError
from shardio.loader.stats import LoaderStats
from shardio.monitoring import InputFigures


def load(**options: Any) -> shardio.Loader:
    """A loader of 24 photos in 6 batches."""
    return loader_of(photos(), 4, **options)


class Kept:
    """A sink that keeps all figures."""

    def __init__(self) -> None:
        self.all: list[InputFigures] = []
        self.closed = 0

    def write(self, figures: InputFigures) -> None:
        self.all.append(figures)

    def close(self) -> None:
        self.closed += 1


@settings(max_examples=20, deadline=None)
@given(
    every=st.sampled_from([0.001, 0.01, 10.0]),
    loops=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.0, 0.002, 0.02])), min_size=1, max_size=5),
)
def test_what_is_counted_is_what_was_delivered(every: float, loops: list[tuple[int, float]]) -> None:
    """The intervals add up, however long they are, and wherever epochs end: whole, left early or never begun."""
    kept, delivered = Kept(), 0
    with shardio.monitor(loader := load(), every=every, sinks=[kept]):
        for epoch, (steps, pause) in enumerate(loops):
            loader.set_epoch(epoch)
            for batch in itertools.islice(loader, steps):
                delivered += len(batch["index"])
            time.sleep(pause)
    assert sum(figures.samples for figures in kept.all) == delivered == kept.all[-1].total_samples
    assert sum(figures.bytes for figures in kept.all) == loader.stats(all_epochs=True).bytes
    assert all(figures.wait_seconds >= 0 and 0 <= figures.starved <= 1 for figures in kept.all)
    assert kept.closed == 1


def test_statistics_are_added_and_subtracted() -> None:
    """Every figure takes part: sums, stages that only one side has, sources, fetched bytes."""
    before = LoaderStats(
        *(10, 100, 300, 2.0, 1.0, 0.25),
        stage_seconds={"read": 1.0},
        stage_cpu_seconds={"read": 0.5},
        sources={"a": 10},
        fetched=FetchCounts(bytes=1000, requests=3),
        decoded_frames=30,
        wanted_frames=10,
    )
    part = LoaderStats(
        *(6, 60, 240, 1.0, 0.5, 0.125),
        stage_seconds={"read": 0.5, "map": 0.125},
        stage_cpu_seconds={"read": 0.25, "map": 0.0},
        sources={"a": 2, "b": 4},
        fetched=FetchCounts(bytes=500, requests=1, retries=1),
        decoded_frames=12,
        wanted_frames=6,
    )
    assert all(getattr(part, figure.name) for figure in fields(part))  # none is left at its default
    assert (before + part) - before == part
    assert (part.samples_per_second, part.bytes_per_second, part.starved) == (6, 60, 0.5)


def test_an_interval_has_all_statistics() -> None:
    """What a Loader counts for each source, and the processor time of its stages, reaches the sinks."""
    mixed = shardio.mix({"a": photos(8), "b": photos(8)}, weights={"a": 1, "b": 1})
    kept = Kept()
    with shardio.monitor(loader := loader_of(mixed, 4), sinks=[kept]):
        list(loader)
    (figures,) = kept.all
    assert figures.sources == {"a": 8, "b": 8} == loader.stats().sources
    assert figures.stage_cpu_seconds == loader.stats().stage_cpu_seconds
    assert figures.seconds >= loader.stats().seconds  # the length of the interval


def test_json_lines_have_a_file_for_each_rank(tmp_path: Path) -> None:
    for rank in range(2):
        loader = load(world=shardio.World(rank, 2))
        with shardio.monitor(loader, every=10, jsonl=tmp_path / "input.jsonl"):
            list(loader)
    lines = [json.loads(line) for file in sorted(tmp_path.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["input-00000.jsonl", "input-00001.jsonl"]
    assert [(line["rank"], line["samples"]) for line in lines] == [(0, 12), (1, 12)]


def test_dashboards(tmp_path: Path) -> None:
    """TensorBoard's reader, a scrape by Prometheus and a reader of OpenTelemetry's SDK find the figures."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader, loader = InMemoryMetricReader(), load()
    meter = MeterProvider([reader]).get_meter("test")
    monitor = shardio.monitor(loader, every=0.1, tensorboard=tmp_path, prometheus=0, opentelemetry=meter)
    list(loader)
    url = f"http://127.0.0.1:{monitor._sinks[-1]._server.server_port}/metrics"  # port 0 is any
    wait_until(lambda: 'shardio_samples_total{rank="0"} 24.0' in urllib.request.urlopen(url).read().decode())
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    monitor.close()
    assert 'shardio_stage_seconds_total{rank="0",stage="decode"}' in text
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert set(found.Tags()["scalars"]) >= {"input/samples_per_second", "input/starved"}
    assert found.Scalars("input/starved")[-1].step == 24
    measured = {
        metric.name: metric.data.data_points[0].value
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert measured["shardio.input.samples"] == 24
    assert 0 <= measured["shardio.input.starved"] <= 1


def test_a_starved_rank_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that waits for a slow function is warned about, once; intervals without any batch are the most starved."""
    calls: list[None] = []

    def slow(batch: Any) -> Any:
        time.sleep(0.05 if calls else 0.6)
        calls.append(None)
        return batch

    kept = Kept()
    loader = loader_of(photos(), 1, map=slow, threads=1, prefetch=1)
    with (
        caplog.at_level(logging.WARNING, "shardio"),
        shardio.monitor(loader, every=0.1, patience=8, sinks=[kept]),
    ):
        list(loader)
    messages = [record.getMessage() for record in caplog.records]
    # A busy machine may end the hunger for an interval, which is told too.
    (warning,) = [one for one in messages if one.startswith("rank 0 has waited for input for ")]
    assert "'map'" in warning
    assert max(one.starved for one in kept.all if not one.samples) > 0.9
    assert sum(one.wait_seconds for one in kept.all) == pytest.approx(loader.stats().wait_seconds, abs=0.1)


def test_a_sink_that_fails_ends_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    """The loop goes on, and the log says why the monitor has ended."""

    class Full(Kept):
        def write(self, figures: InputFigures) -> None:
            raise OSError("no space left on device")

    with shardio.monitor(loader := load(), every=0.01, sinks=[Full()]):
        assert len(list(loader)) == 6
        time.sleep(0.05)
    assert "no space left on device" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loader": 1}, r"a monitor watches a shardio\.Loader, got 1"),
        ({"every": 0}, "every must be a number of seconds above 0, got 0"),
        ({"warn_starved": 1.5}, "warn_starved must be a share above 0, at most 1, got 1.5"),
        ({"patience": 0}, "patience must be at least 1 interval, got 0"),
        ({"jsonl": "/nowhere/input.jsonl"}, "jsonl must be a file in a writable folder, got /nowhere/input.jsonl"),
        ({"tensorboard": 3}, "tensorboard must be a SummaryWriter or a folder, got 3"),
        ({"prometheus": 70000}, "prometheus must be a port from 0 to 65535 or a registry, got 70000"),
        ({"prometheus": "9400"}, "prometheus must be a port from 0 to 65535 or a registry, got '9400'"),
        ({"opentelemetry": "yes"}, "opentelemetry must be True or a meter, got 'yes'"),
        ({"sinks": [3]}, r"sinks must be a list of objects with write\(figures\) and close\(\), got 3"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        shardio.monitor(**{"loader": load()} | options)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """The second monitor on a port says which port it is and what to do, and leaves nothing open."""
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"Prometheus cannot be served at port {port}: .*\+ loader\.world\.local_rank"
        ):
            shardio.monitor(load(), prometheus=port, jsonl=tmp_path / "input.jsonl")


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "shardio monitor"]
