"""The thread that publishes: it waits at its gates, and tells what made it fail."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from headrace.cli.acts.publishing_thread import GROUPS, PublishingThread
from headrace.testing.crash import eventually
from tests.cli.headrace_process import PATIENCE_S


def test_it_waits_at_each_gate_until_it_may_go_on() -> None:
    published: list[int] = []

    def has(total: int) -> bool:
        return sum(published) == total

    gates = {GROUPS // 2: threading.Event(), GROUPS - 2: threading.Event()}
    publishing = PublishingThread(published.append, 30, gates, pause_s=0)
    with publishing.running():
        for gate, total in zip(gates.values(), (16, 28), strict=True):
            eventually(partial(has, total), PATIENCE_S, "a gate")
            assert not publishing.is_done
            gate.set()
        eventually(lambda: publishing.is_done, PATIENCE_S, "everything")
    assert (sum(published), len(published)) == (30, GROUPS)


def test_the_end_of_the_block_stops_it_at_a_gate() -> None:
    published: list[int] = []
    with PublishingThread(published.append, 20, {3: threading.Event()}, pause_s=0).running():
        eventually(lambda: sum(published) == 4, PATIENCE_S, "the gate")
    assert sum(published) == 4


def test_one_that_fails_says_so() -> None:
    def fail(count: int) -> None:
        raise ValueError(f"{count} cannot be published")

    publishing = PublishingThread(fail, 20, {}, pause_s=0)
    with publishing.running(), pytest.raises(ValueError, match="1 cannot be published"):
        eventually(lambda: publishing.is_done, PATIENCE_S, "an error")
