"""A measurement as lines of text."""

from ..cache.fetcher import FetchCounts
from ..system.units import counted, format_size
from .accelerators import Accelerator
from .limit_search import Limit
from .result import BenchResult, Spread
from .storage import StorageRates


def summary(result: BenchResult) -> str:
    """Return the figures of a measurement as text."""
    config, machine = result.config, result.machine
    slowest = result.ranks[result.slowest_rank]
    from_disk = slowest.disk_bytes / max(1, slowest.disk_bytes + slowest.cached_bytes)
    parts = f"{config.epochs} epochs" if config.seconds is None else f"{config.seconds:g} s in five parts"
    rate, in_all = result.samples_per_second, result.samples_per_second_in_all
    what = "median and range" if result.enough_steps else "median"
    short = "" if result.enough_steps else "; too short to tell how it varies: measure longer"
    rows = [
        ("samples/s per rank", f"{_spread(rate, result.enough_steps)} ({what} of {parts}, slowest rank{short})"),
        *([("in all", _spread(in_all, result.enough_steps))] if config.ranks > 1 else []),
        ("read per rank", f"{format_size(slowest.bytes_per_second)}/s, {from_disk:.0%} of it from storage"),
        *_fetched(result),
        ("first batch", f"after {_seconds(slowest.first_batch_seconds)}"),
        (
            "wait per step",
            f"{_seconds(slowest.wait_median)} median, {_seconds(slowest.wait_p99)} 99th percentile, "
            f"{_seconds(slowest.wait_max)} longest; {slowest.stalled_steps} steps stalled",
        ),
        ("starved", f"{result.starved:.0%} of the time"),
        *_accelerator(result),
        (
            "processors",
            f"{slowest.cpu_seconds_per_1000:.2f} s per 1,000 samples; all are {result.machine_busy:.0%} busy, "
            f"{result.others_busy:.0%} with other processes",
        ),
        ("memory per rank", format_size(max(rank.peak_memory for rank in result.ranks))),
        (
            "workers' time",
            ", ".join(f"{name} {share:.0%}" for name, share in result.verdict.shares.items() if share >= 0.005)
            + f" of {slowest.threads} {'processes' if config.isolate else 'threads'} per rank",
        ),
        *_videos(result),
        ("limited by", result.verdict.sentence),
        *([("change", str(result.verdict.change))] if result.verdict.change is not None else []),
        *([("bad samples", str(result.bad))] if result.bad else []),
        (
            "measured on",
            f"{machine['cores']} cores of {machine['processor']}, Python {machine['python']}, "
            f"{'with' if machine['compiled'] else 'without'} the compiled part",
        ),
    ]
    return "\n".join(f"{name:18}  {text}" for name, text in rows) + _by_rank(result)


def _fetched(result: BenchResult) -> list[tuple[str, str]]:
    """Return the line on what came from a store, if anything did."""
    fetched = sum((rank.fetched for rank in result.ranks), FetchCounts())
    if not fetched.requests:
        return []
    size, requests = format_size(fetched.bytes), counted(fetched.requests, "request", ",")
    return [("fetched", f"{size} from the store in {requests}, {fetched.retries:,} tried again, by all ranks")]


def _videos(result: BenchResult) -> list[tuple[str, str]]:
    """Return the line on videos, if there are any."""
    if result.decoded_frames is None:
        return []
    cpu = result.stages.cpu_seconds
    share = cpu.get("libavcodec", 0.0) / max(sum(cpu.values()), 1e-9)
    told = f"{result.decoded_frames:.3g} frames decoded for each one of a clip"
    return [("videos", f"{told}; {share:.0%} of the rate of libavcodec, by processor time")]


def _accelerator(result: BenchResult) -> list[tuple[str, str]]:
    accelerator = result.config.accelerator
    if accelerator is None:
        return []
    if result.utilisation is None or result.utilisation_of_slowest is None:
        return [("utilisation", "none: the first step of an epoch does not count, and no epoch had more")]
    reached = "passed" if result.passed else "not reached"
    if not result.is_workload:
        reached = _not_this_workload(accelerator, result.sample_bytes)
    if result.passed and result.starved > 1 - accelerator.pass_mark:
        reached += "; the first step of each epoch does not count here, but in `starved`"
    rows = [
        (
            "utilisation",
            f"{result.utilisation:.1%}, slowest {result.utilisation_of_slowest:.1%} of {accelerator.name} "
            f"({accelerator.step_seconds:g} s per step of {accelerator.batch_size}); MLPerf-style mark "
            f"{accelerator.pass_mark:.0%}: {reached}",
        )
    ]
    if accelerator.follows is not None:
        rows.append(("follows", accelerator.follows))
    if result.ceiling is not None:
        rows.append(("ceiling", f"{result.ceiling:,.0f} samples/s per rank with a batch that is always there"))
    return rows


def _not_this_workload(accelerator: Accelerator, sample_bytes: float) -> str:
    here, there = format_size(sample_bytes), format_size(accelerator.sample_bytes or 0)
    return f"not this workload: samples have {here} on average, and those of {accelerator.name} {there}"


def _by_rank(result: BenchResult) -> str:
    if len(result.ranks) == 1:
        return ""
    lines = ["", "", "rank  samples/s  starved  at barrier  wait p99  stalled  threads  memory"]
    for rank in result.ranks:
        mark = "  <- slowest" if rank.rank == result.slowest_rank else ""
        lines.append(
            f"{rank.rank:4}  {rank.samples_per_second.median:9,.0f}  {rank.starved:7.0%}  {rank.at_barrier:10.0%}  "
            f"{_seconds(rank.wait_p99):>8}  {rank.stalled_steps:7}  {rank.threads:7}  {format_size(rank.peak_memory)}"
            f"{mark}"
        )
    return "\n".join(lines)


def _spread(spread: Spread, enough_steps: bool) -> str:
    if spread.smallest == spread.largest or not enough_steps:
        return f"{spread.median:,.0f}"
    return f"{spread.median:,.0f}, {spread.smallest:,.0f} to {spread.largest:,.0f}"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def limit_text(limit: Limit) -> str:
    """Return the result of a search as text."""
    lines = [
        f"shortest step       {limit.step_seconds:.5f} s holds {limit.pass_mark:.0%}: "
        f"{limit.samples_per_second:,.0f} samples/s per rank"
    ]
    accelerator = limit.config.accelerator
    if accelerator is not None and not accelerator.takes(limit.sample_bytes):
        lines.append(f"this machine feeds  {_not_this_workload(accelerator, limit.sample_bytes)}")
    elif limit.accelerators is not None:
        lines.append(f"this machine feeds  {limit.accelerators:.2f} x {limit.config.emulate} (MLPerf-style)")
    if limit.config.follows is not None:
        lines.append(f"follows             {limit.config.follows}")
    return "\n".join(lines)


def storage_text(result: BenchResult, rates: StorageRates) -> str:
    """Return the rates of plain reads and of the loader as text."""
    loader = sum(rank.bytes_per_second for rank in result.ranks)
    way = "past the page cache" if rates.direct else "after dropping the page cache"
    return (
        f"storage             {format_size(rates.sequential)}/s in sequence, {format_size(rates.random)}/s at random "
        f"in reads of {format_size(rates.random_bytes)}, {rates.threads} threads, {way}\n"
        f"the loader reads    {format_size(loader)}/s, {loader / rates.random:.2f} times the random rate"
    )
