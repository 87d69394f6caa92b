"""Workers that are killed, given up or stopped: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError, PeerLostError, UnitError
from headrace.pipeline.job import Stage
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.source.sources import TableSource
from headrace.pipeline.worker.claimed_work import ClaimedWork
from tests.pipeline.fake_operators import FakeOperator, Killed
from tests.pipeline.jobs import (
    LOCAL,
    MEMORY,
    chain,
    double,
    keep_fours,
    numbers,
    results,
    run,
    same,
)

EXPECTED = [2 * n for n in range(200) if n % 2 == 0]


def killer(seed: int, probability: float) -> Callable[[str, Sequence[int]], None]:
    """Return a function that ends a worker now and then."""
    chance, lock = random.Random(seed), threading.Lock()

    def kill(unit: str, rows: Sequence[int]) -> None:
        with lock:
            # A worker that probes single rows is spared: the rows are not to blame.
            if len(rows) > 1 and chance.random() < probability:
                raise Killed

    return kill


# proves G15
@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_workers_lose_and_repeat_nothing(workspace: hr.Workspace, seed: int) -> None:
    job = chain(
        TableSource(numbers(200), rows_per_unit=4),
        Stage("double", FakeOperator(double, before=killer(seed, 0.1)), LOCAL),
        Stage("filter", FakeOperator(keep_fours, before=killer(seed + 1, 0.1)), MEMORY),
        Stage("last", FakeOperator(same, before=killer(seed + 2, 0.1)), LOCAL),
    )
    summary = run(workspace, job)
    assert results(workspace, job, "last") == EXPECTED
    assert sum(stage.deaths for stage in summary.stages.values()) > 0


def kill_once(monkeypatch: pytest.MonkeyPatch, method: str, *, after: bool) -> list[int]:
    """Kill the first worker that comes to a method of ClaimedWork; return a list of deaths."""
    original, lock = getattr(ClaimedWork, method), threading.Lock()
    deaths: list[int] = []

    async def stepped(self: ClaimedWork, *args: Any, **options: Any) -> Any:
        result = await original(self, *args, **options) if after else None
        with lock:
            is_first = not deaths
            if is_first:
                deaths.append(1)
        if is_first:
            raise Killed
        return result if after else await original(self, *args, **options)

    monkeypatch.setattr(ClaimedWork, method, stepped)
    return deaths


# proves G15
def test_crash_before_commit(workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages are processed again, by another worker."""
    deaths = kill_once(monkeypatch, "_commit", after=False)
    operator = FakeOperator(double)
    job = chain(TableSource(numbers(100), rows_per_unit=10), Stage("double", operator, LOCAL))
    run(workspace, job)
    assert deaths
    assert results(workspace, job, "double") == [2 * n for n in range(100)]
    assert max(operator.seen.values()) == 2


# proves G15
def test_crash_after_produce(workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specification expects that outputs are there and are made again. They are not.

    Outputs and offset are committed in one step, so there is no moment between the two.
    """
    deaths = kill_once(monkeypatch, "_commit", after=True)
    operator = FakeOperator(double)
    job = chain(
        TableSource(numbers(100), rows_per_unit=10),
        Stage("double", operator, LOCAL),
        Stage("last", FakeOperator(same), LOCAL),
    )
    run(workspace, job)
    assert deaths
    assert set(operator.seen.values()) == {1}
    assert results(workspace, job, "last") == [2 * n for n in range(100)]


# proves G15, G16
@pytest.mark.long
def test_offset_recovery(workspace: hr.Workspace) -> None:
    """A run that was stopped half-way goes on where it was."""
    first = FakeOperator(double)
    job = chain(
        TableSource(numbers(100), rows_per_unit=1),
        Stage("double", first, LOCAL),
        Stage("filter", FakeOperator(keep_fours), MEMORY),
        Stage("last", FakeOperator(same), LOCAL),
    )
    with JobRun(workspace, job) as stopped:
        first.before = lambda unit, rows: stopped.master.stop() if len(first.seen) > 40 else None
        ThreadRunner().run(stopped)
        assert stopped.summary().outcome == "stopped"
    first.before = lambda unit, rows: None
    assert run(workspace, job).outcome == "done"
    assert len(first.seen) == 100
    assert results(workspace, job, "last") == [2 * n for n in range(100) if n % 2 == 0]


# proves G15
def test_network_partition(workspace: hr.Workspace) -> None:
    """A worker that was given up comes back, and finds that another went on."""
    stalled, other = threading.Event(), threading.Event()
    operator = FakeOperator(double)
    job = chain(TableSource(numbers(10), rows_per_unit=1), Stage("double", operator, LOCAL))

    def stall(unit: str, rows: Sequence[int]) -> None:
        if not stalled.is_set():
            stalled.set()
            assert other.wait(30)

    operator.before = stall
    with JobRun(workspace, job) as control:
        ended: list[HeadraceError] = []
        zombie = threading.Thread(target=run_worker, args=(control, "zombie", ended))
        zombie.start()
        assert stalled.wait(30)
        control.master.lose("zombie")
        ThreadRunner().run(control)
        other.set()
        zombie.join(30)
        assert control.summary().outcome == "done"
    assert [type(error) for error in ended] == [PeerLostError]
    assert results(workspace, job, "double") == [2 * n for n in range(10)]


def run_worker(control: JobRun, name: str, ended: list[HeadraceError]) -> None:
    try:
        control.assignment("double").run(name)
    except HeadraceError as error:
        ended.append(error)


def poison(row_of_unit: dict[str, int]) -> Callable[[str, Sequence[int]], None]:
    def kill(unit: str, rows: Sequence[int]) -> None:
        if row_of_unit.get(unit) in rows:
            raise Killed

    return kill


# proves G18
def test_a_poison_row_is_isolated(workspace: hr.Workspace) -> None:
    operator = FakeOperator(double, on_error="dead_letter")
    job = chain(TableSource(numbers(100), rows_per_unit=10), Stage("double", operator, LOCAL))
    units: list[str] = []

    def choose(unit: str, rows: Sequence[int]) -> None:
        if not units:
            units.append(unit)
        poison({units[0]: 7})(unit, rows)

    operator.before = choose
    summary = run(workspace, job)
    assert summary.stages["double"].dead == 1
    found = results(workspace, job, "double")
    assert len(found) == 99
    assert {2 * n for n in range(100)} - set(found) <= {2 * n for n in range(7, 100, 10)}


# proves G18
def test_a_poison_row_is_named_if_there_are_no_dead_letters(workspace: hr.Workspace) -> None:
    operator = FakeOperator(double)
    job = chain(TableSource(numbers(10), rows_per_unit=10), Stage("double", operator, LOCAL))
    operator.before = lambda unit, rows: poison({unit: 7})(unit, rows)
    with pytest.raises(UnitError, match=r"stage 'double', unit \w+: .* row 7"):
        run(workspace, job)


# proves G18
def test_an_operator_that_raises_ends_the_run_and_is_mended(workspace: hr.Workspace) -> None:
    operator = FakeOperator(double)
    job = chain(TableSource(numbers(30), rows_per_unit=1), Stage("double", operator, LOCAL))

    def fail(unit: str, rows: Sequence[int]) -> None:
        if len(operator.seen) > 10:
            raise ValueError("no such model")

    operator.before = fail
    with pytest.raises(UnitError, match="stage 'double': ValueError: no such model"):
        run(workspace, job)
    operator.before = lambda unit, rows: None
    run(workspace, job)
    assert results(workspace, job, "double") == [2 * n for n in range(30)]
