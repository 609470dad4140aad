"""Where torch isn't installed, a file of tests or a test that needs it is skipped and says so, instead of failing."""

from collections.abc import Generator

import pytest

_MISSING = "No module named 'torch'"  # as an exception, or in what a process has printed


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _skipped((yield), collector)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _skipped((yield), item)


def _skipped(report, node: pytest.Item | pytest.Collector):  # type: ignore[no-untyped-def]  # either kind
    if report.failed and _MISSING in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (str(node.path), 0, "needs torch")
    return report
