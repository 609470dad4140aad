"""Measures input throughput: it starts a process per rank, samples what they use, and sums up what they report."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from ..errors import PipelineStalled, ShardioError
from ..order.world import World
from ..system import cpus, processes
from .config import BenchConfig
from .fast_decoding import fast_decoding
from .rank import START_LIMIT, Meeting, Progress, RankRecord, build_loader, mean_sample_bytes, run_rank
from .result import BenchResult, RankResult, Spread, StageTimes, Timeline, rank_result, rates
from .usage_sampler import UsageSampler
from .verdict import Figures, diagnose


def measure(config: BenchConfig, progress: Callable[[Progress], None] | None = None) -> BenchResult:
    """Measure `config` in `config.ranks` processes.

    Args:
        config: what to measure.
        progress: called now and then with how far each rank is.

    Raises the error that a rank raised; ShardioError if a rank died, PipelineStalled if none says anything for long.
    """
    config = config.resolved()
    # A loader in this process finds wrong arguments before any process is started.
    loader = build_loader(config, World(0, config.ranks, 0, config.ranks))
    engine = config.engine if config.engine != "auto" else "cpu" if config.device in (None, "cpu") else "engine"
    sample_bytes = mean_sample_bytes(config)
    del loader
    meeting = Meeting.of(config.ranks)
    pipes = [processes.CONTEXT.Pipe(duplex=False) for _ in range(config.ranks)]
    ranks = [
        processes.CONTEXT.Process(target=run_rank, args=(config, rank, meeting, pipe[1]), name=f"bench rank {rank}")
        for rank, pipe in enumerate(pipes)
    ]
    for process, (_, sender) in zip(ranks, pipes, strict=True):
        with processes.children_ignore_interrupts():
            process.start()
        sender.close()
    try:
        with UsageSampler([process.pid or 0 for process in ranks]) as sampler:
            records = _receive([pipe[0] for pipe in pipes], progress)
    except BaseException:
        for process in ranks:
            process.terminate()
        raise
    finally:
        _join(ranks)
    return _sum_up(config, records, sampler, engine, sample_bytes)


def _join(ranks: Sequence[SpawnProcess]) -> None:
    deadline = time.monotonic() + START_LIMIT
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))


def _receive(receivers: "list[Connection[Any, Any]]", progress: Callable[[Progress], None] | None) -> list[RankRecord]:
    """Return the records in rank order; raise the first error that a rank sends."""
    records: dict[int, RankRecord] = {}
    while len(records) < len(receivers):
        open_ranks = {receivers[rank]: rank for rank in range(len(receivers)) if rank not in records}
        ready = wait(list(open_ranks), START_LIMIT)
        if not ready:
            raise PipelineStalled(f"bench: ranks {list(open_ranks.values())} sent nothing for {START_LIMIT:.0f} s")
        for receiver in ready:
            rank = open_ranks[receiver]  # type: ignore[index]  # wait returns the objects that it was given
            try:
                message = receivers[rank].recv()
            except EOFError as error:
                raise ShardioError(f"bench: rank {rank} died") from error
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, RankRecord):
                records[rank] = message
            elif progress is not None:
                progress(message)
    return [records[rank] for rank in range(len(receivers))]


def _sum_up(
    config: BenchConfig, records: list[RankRecord], sampler: UsageSampler, engine: str, sample_bytes: float
) -> BenchResult:
    begun = min(float(record.times.begun[record.counted_from]) for record in records)
    ended = max(float(record.times.ended[-1]) for record in records)
    seconds, cores = ended - begun, cpus.usable()
    usage = [sampler.rank(rank, begun, ended) for rank in range(len(records))]
    ranks = [
        rank_result(config, rank, record, used) for rank, (record, used) in enumerate(zip(records, usage, strict=True))
    ]
    stages = _stages(records, ranks, seconds)
    busy = sampler.machine_busy(begun, ended)
    own = sum(record.cpu_seconds for record in records)
    capacity = max(len(os.sched_getaffinity(0)) * seconds, 1e-9)
    others = min(1.0, max(0.0, (busy - own) / capacity))
    starved = sum(rank.starved for rank in ranks) / len(ranks)
    waited = sum(float(record.waits.sum()) for record in records)
    on_device = sum(float(r.times.device[r.counted_from :].sum()) for r in records) / max(waited, 1e-9)
    counts = [len(record.times) - record.counted_from for record in records]
    stored = sum(rank.disk_bytes + rank.cached_bytes for rank in ranks)
    figures = Figures(
        starved=starved,
        on_device=on_device,
        own=tuple((1 - rank.at_barrier) * rank.seconds / steps for rank, steps in zip(ranks, counts, strict=True)),
        waits=tuple(rank.starved * rank.seconds / steps for rank, steps in zip(ranks, counts, strict=True)),
        workers=sum(rank.threads for rank in ranks),
        cores=cores,
        seconds=seconds,
        stages=stages.seconds,
        cpu=stages.cpu_seconds,
        delay=sum(used.delay_seconds for used in usage),
        others_busy=others,
        disk_share=min(1.0, sum(rank.disk_bytes for rank in ranks) / max(stored, 1)),
        at_epoch_start=sum(float(r.waits[r.first_of_epoch].sum()) for r in records) / max(waited, 1e-9),
        prefetch=int(max(record.settings[-1, 2] for record in records)),
        isolate=config.isolate,
        engine=engine,
        unpacked=sum(r.unpacked_bytes for r in records) / max(sum(r.stored_bytes for r in records), 1),
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
        sample_bytes=sample_bytes,
        samples_per_second=Spread.of(slowest),
        samples_per_second_in_all=Spread.of([math.fsum(part) for part in by_part]),
        rates=slowest,
        starved=starved,
        utilisation=sum(utilisations) / len(utilisations) if utilisations else None,
        utilisation_of_slowest=min(utilisations, default=None),
        slowest_rank=min(ranks, key=lambda rank: (rank.at_barrier, rank.samples_per_second.median)).rank,
        ceiling=config.samples_per_step / max(ceilings) if ceilings else None,
        ranks=ranks,
        stages=stages,
        machine_busy=min(1.0, busy / capacity),
        others_busy=others,
        bad=len(frozenset().union(*(record.bad for record in records))),
        verdict=verdict,
        timelines=[Timeline.of(record, min(float(r.times.begun[0]) for r in records)) for record in records],
    )


def _stages(records: list[RankRecord], ranks: list[RankResult], seconds: float) -> StageTimes:
    wall: dict[str, float] = {}
    on_cpu: dict[str, float] = {}
    for record in records:
        for sums, addends in ((wall, record.stage_seconds), (on_cpu, record.stage_cpu_seconds)):
            for name, spent in addends.items():
                sums[name] = sums.get(name, 0.0) + spent
    idle = max(0.0, sum(rank.threads for rank in ranks) * seconds - sum(wall.values()))
    return StageTimes(wall, on_cpu, idle)
