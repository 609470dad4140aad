"""Measures input throughput: it starts a process per rank, samples what they use, and sums up what they report."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from ..engines.fused_images import Decode
from ..loader.stats import LoaderStats
from ..loader.torch_dataset import TorchDataset
from ..order.world import World
from ..system import cpus
from .config import BenchConfig
from .rank import RankRecord, build_loader, ended, mean_sample_bytes, measure_rank, open_with_transforms
from .rank_processes import RankProcesses
from .result import BenchResult, Spread, StageTimes, Timeline, rank_result, rates
from .usage import UsageSampler
from .verdict import Figures, diagnose

FAST_SECONDS = 0.5  # of processor time, to compare both ways of decoding
_FAST_SAMPLES = 4  # in one call


def measure(config: BenchConfig, progress: Callable[[float], None] | None = None) -> BenchResult:
    """Measure `config` in `config.ranks` processes.

    Args:
        config: what to measure.
        progress: called now and then with the share of the measurement that is done, 0 to 1.

    Raises the error that a rank raised; ShardioError if a rank died, PipelineStalled if none says anything for long.
    """
    config = config.resolved()
    # A loader in this process finds wrong arguments before any process is started.
    build_loader(config, World(0, config.ranks, 0, config.ranks))
    with RankProcesses(config, measure_rank) as ranks, UsageSampler(ranks.pids) as sampler:
        records = ranks.answers(progress=progress)
    return _sum_up(config, records, sampler)


def _sum_up(config: BenchConfig, records: list[RankRecord], sampler: UsageSampler) -> BenchResult:
    engine = config.engine if config.engine != "auto" else "cpu" if config.device in (None, "cpu") else "engine"
    begun = min(float(record.counted["begun"][0]) for record in records)
    end = max(float(ended(record.steps)[-1]) for record in records)
    seconds, cores = end - begun, cpus.usable()
    usage = [sampler.rank(rank, begun, end) for rank in range(len(records))]
    ranks = [
        rank_result(config, rank, record, used) for rank, (record, used) in enumerate(zip(records, usage, strict=True))
    ]
    stats = sum((record.stats for record in records), LoaderStats())
    in_stages = sum(stats.stage_seconds.values())
    workers = sum(rank.threads for rank in ranks)
    busy = sampler.machine_busy(begun, end)
    own = sum(record.cpu_seconds for record in records)
    capacity = max(len(cpus.affinity()) * seconds, 1e-9)
    others = min(1.0, max(0.0, (busy - own) / capacity))
    starved = sum(rank.starved for rank in ranks) / len(ranks)
    waited = max(1e-9, sum(float(record.waits.sum()) for record in records))
    firsts = [np.diff(record.steps["epoch"], prepend=-1)[record.counted_from :] != 0 for record in records]  # of epochs
    counts = [len(record.counted) for record in records]
    stored = sum(rank.disk_bytes + rank.cached_bytes for rank in ranks)
    figures = Figures(
        starved=starved,
        on_device=sum(float(record.counted["device"].sum()) for record in records) / waited,
        own=tuple((1 - rank.at_barrier) * rank.seconds / steps for rank, steps in zip(ranks, counts, strict=True)),
        waits=tuple(rank.starved * rank.seconds / steps for rank, steps in zip(ranks, counts, strict=True)),
        workers=workers,
        cores=cores,
        seconds=seconds,
        stages=stats.stage_seconds,
        cpu=stats.stage_cpu_seconds,
        most_workers=sum(int(record.settings[:, 1].max()) for record in records),
        used=own,
        delay=sum(used.delay_seconds for used in usage),
        others_busy=others,
        disk_share=min(1.0, sum(rank.disk_bytes for rank in ranks) / max(stored, 1)),
        at_epoch_start=sum(float(r.waits[first].sum()) for r, first in zip(records, firsts, strict=True)) / waited,
        prefetch=int(max(record.settings[-1, 2] for record in records)),
        isolate=config.isolate,
        engine=engine,
        unpacked=stats.unpacked_bytes / max(stats.bytes, 1),
        decoded_frames=stats.decoded_frames / max(stats.wanted_frames, 1),
    )
    verdict = diagnose(figures)
    if verdict.bottleneck == "decode" and config.decode == "exact" and engine == "cpu":
        verdict = diagnose(replace(figures, fast_decode=fast_decoding(config)))
    by_part = list(zip(*(rates(config, record) for record in records), strict=False))
    slowest = [min(part) for part in by_part]
    utilisations = [rank.utilisation for rank in ranks if rank.utilisation is not None]
    ceilings = [record.ceiling for record in records if record.ceiling is not None]
    return BenchResult(
        config=config,
        sample_bytes=mean_sample_bytes(config),
        samples_per_second=Spread.of(slowest),
        samples_per_second_in_all=Spread.of([math.fsum(part) for part in by_part]),
        rates=slowest,
        starved=starved,
        utilisation=sum(utilisations) / len(utilisations) if utilisations else None,
        utilisation_of_slowest=min(utilisations, default=None),
        slowest_rank=min(ranks, key=lambda rank: (rank.at_barrier, rank.samples_per_second.median)).rank,
        ceiling=config.samples_per_step / max(ceilings) if ceilings else None,
        ranks=ranks,
        stages=StageTimes(
            dict(stats.stage_seconds), dict(stats.stage_cpu_seconds), max(0.0, workers * seconds - in_stages)
        ),
        decoded_frames=figures.decoded_frames or None,
        machine_busy=min(1.0, busy / capacity),
        others_busy=others,
        bad=len(frozenset().union(*(record.bad for record in records))),
        verdict=verdict,
        timelines=[Timeline.of(record, min(float(r.steps["begun"][0]) for r in records)) for record in records],
    )


def fast_decoding(config: BenchConfig) -> float | None:
    """Return how many times as fast samples are read and decoded with `decode="fast"` as with `decode="exact"`.

    None if there is no image to decode. Both ways make the same samples with the same crops, in turns, on this thread.
    It compares their processor time, because other processes hardly change that.
    """
    dataset, transforms = open_with_transforms(config)
    if not any(field.kind == "image" for field in dataset.fields.values()):
        return None
    bad: Literal["raise", "replace"] = "raise" if config.on_bad_sample == "raise" else "replace"
    names: tuple[Decode, Decode] = ("exact", "fast")
    ways = [
        TorchDataset(dataset, transforms=transforms, decode=name, seed=config.seed, on_bad_sample=bad) for name in names
    ]
    seconds = np.zeros(2)
    for number in range(len(dataset)):
        # From all over the dataset.
        samples = [(number * _FAST_SAMPLES + n) * 7919 % len(dataset) for n in range(_FAST_SAMPLES)]
        for way, torch_dataset in enumerate(ways):
            begun = time.thread_time()
            torch_dataset.__getitems__(samples)
            if number:  # the first call loads libraries
                seconds[way] += time.thread_time() - begun
        if seconds.sum() >= FAST_SECONDS:
            break
    return float(seconds[0] / seconds[1]) if seconds[1] else None
