"""Names the tests that cost more than `make test-fast` can afford, so that somebody marks them.

It fails nothing, and counts processor time instead of waiting, so a busy machine names few more.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable

import pytest

LONG_S = 0.5
"""A short test takes much less processor time, even on a busy machine."""
_MARKED = {"long", "crash", "spark", "deep"}
_PROPERTY = "processor_s"


class LongTests:
    """A plugin: counts for each test, and for the processes that it waited for."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        began = _processor_s()
        try:
            return (yield)
        finally:
            item.user_properties.append((_PROPERTY, _processor_s() - began))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        passed = terminalreporter.getreports("passed")
        if found := unmarked(report for report in passed if report.when == "call"):
            terminalreporter.section("mark these tests `long`")
            for name, seconds in found:
                terminalreporter.write_line(f"{seconds:.1f} s of processor time: {name}")


def unmarked(reports: Iterable[pytest.TestReport]) -> list[tuple[str, float]]:
    """Return the tests above LONG_S that no marker keeps out of the fast run, longest first."""
    spent = {
        report.nodeid: float(value)
        for report in reports
        if not _MARKED & report.keywords.keys()
        for name, value in report.user_properties
        if name == _PROPERTY and isinstance(value, float)
    }
    long = [(name, seconds) for name, seconds in spent.items() if seconds > LONG_S]
    return sorted(long, key=lambda each: -each[1])


def _processor_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
