"""The result as JSON, as a text table, and as a chart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks._limits import LIMIT
from benchmarks._rounds import Plan, last_line
from benchmarks._store import storage
from benchmarks._summary import Row
from shardio.bench.machine import describe

COLUMNS = ("peer", "samples/s", "GB/s", "of limit", "of shardio", "CPU s/1000", "what is run")
FAILURE_LENGTH = 200


def as_json(plan: Plan, rows: Sequence[Row], reference: str, unsupported: Mapping[str, str]) -> dict[str, Any]:
    """The full result of a comparison."""
    workload = asdict(plan.workload)
    workload.pop("variant")
    settings = {"rounds": plan.rounds, "seconds": plan.seconds, "cold": plan.cold, "reference": reference}
    return {
        "date": date.today().isoformat(),
        "workload": workload | settings | {"source_bytes": _size(plan.source)},
        "machine": describe(),
        "storage": storage(plan.work),
        "peers": {row.name: {k: v for k, v in asdict(row).items() if k != "name"} for row in rows},
        "unsupported": dict(unsupported),
    }


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result, with a final newline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def table(rows: Sequence[Row], sample_bytes: int) -> str:
    """The rows as an aligned text table, the fastest first; failed peers show the reason."""
    lines = [COLUMNS]
    for row in rows:
        what = row.label if not row.failure else f"FAILED: {last_line(row.failure)[-FAILURE_LENGTH:]}"
        version = next(iter(row.versions.values()), "")
        rate = row.samples_per_s
        lines.append(
            (
                f"{row.name} {version}".strip(),
                "-" if rate is None else f"{rate:,.0f}",
                "-" if rate is None else f"{rate * sample_bytes / 1e9:.2f}",
                _figure(row.of_limit),
                _figure(row.of_reference),
                "-" if row.cpu_s_per_1000 is None else f"{row.cpu_s_per_1000:.3g}",
                what,
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS) - 1)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *_right(line[1:-1], widths[1:]), line[-1]]) for line in lines)


def plot(path: Path, rows: Sequence[Row], title: str) -> None:
    """Draw a horizontal bar per peer, and the limit as a line."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    measured = [row for row in rows if row.samples_per_s is not None]
    bars = [(row.name, row.samples_per_s or 0.0) for row in reversed(measured) if row.name != LIMIT]
    limit = next((row.samples_per_s for row in measured if row.name == LIMIT), None)
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.34 * len(bars)), layout="constrained")
    colours = ["#1f6f8b" if name.startswith("shardio") else "#b0b7bc" for name, _ in bars]
    drawn = axes.barh([name for name, _ in bars], [rate for _, rate in bars], color=colours)
    axes.bar_label(drawn, labels=[f"{rate:,.0f}" for _, rate in bars], padding=4, fontsize=9)
    if limit is not None:
        axes.axvline(limit, color="#c0392b", linestyle="--", label=f"limit: {limit:,.0f}")
        figure.legend(loc="outside lower right", frameon=False)
    axes.set_xlim(0, 1.12 * max([limit or 0.0, *(rate for _, rate in bars), 1e-9]))
    axes.set_xlabel("samples per second (median)")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _right(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]


def _figure(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _size(source: Path) -> int:
    files = [source] if source.is_file() else list(source.rglob("*.jpg"))
    return sum(path.stat().st_size for path in files)
