"""What a run tells of itself while it goes on, and how it is stopped: all figures are the truth."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import RetryableError, UnitError
from headrace.pipeline.dead_letters import DeadLetters
from headrace.pipeline.status.job_status import JobStatus
from headrace.queues.local_backend import LocalBackend
from headrace.testing.crash import eventually
from tests.pipeline.jobs import numbers

pytestmark = pytest.mark.long

ROWS = 200
PER_UNIT = 20
FAILING = {7, 8, 133}
PATIENCE_S = 60.0


_providers: list[Provider] = []


class Provider:
    """Counts the calls that it is paid for, and calls back after one of them."""

    def __init__(self) -> None:
        self.paid: Counter[int] = Counter()
        self.lock = threading.Lock()
        self.after: dict[int, Callable[[], None]] = {}
        self.has_begun = threading.Event()
        self.pipeline: hr.Pipeline | None = None
        _providers.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to workers, which are threads here, as the same."""
        return _provider, (_providers.index(self),)

    def answer(self, row: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.paid[row["n"]] += 1
            calls = self.paid.total()
        if then := self.after.get(calls):
            then()
        if row["n"] in FAILING:
            raise UnitError("it is refused", do="ask for another", in_doubt=False)
        return row

    def is_refused(self) -> bool:
        """True if the ledger hands out no more calls."""
        run = self.pipeline and self.pipeline._running
        ledger = run and run.services.ledger
        return bool(ledger and ledger._state.is_stopping)

    def wait_for(self, stage: str) -> None:
        """Return when the stage has processed all that it gets."""
        run = self.pipeline and self.pipeline._running
        assert run
        eventually(
            lambda: run.master.look(lambda state: state.is_complete(stage)), PATIENCE_S, stage
        )

    @property
    def calls(self) -> int:
        return self.paid.total()


def _provider(number: int) -> Provider:
    return _providers[number]


def even_units(table: pa.Table) -> pa.Array:
    """Drop all rows of every other unit."""
    return pc.equal(pc.bit_wise_and(pc.divide(table["n"], PER_UNIT), 1), 0)


def make(ws: hr.Workspace, provider: Provider, **options: Any) -> hr.Pipeline:
    return (
        hr.pipeline("numbers", ws)
        .source(numbers(ROWS), rows_per_unit=PER_UNIT)
        .filter(even_units, durable=True)
        .map(
            provider.answer,
            name="answer",
            version="1",
            expensive=True,
            cost=0.25,
            on_error="dead_letter",
            **options,
        )
        .map(lambda row: row, name="light", version="1")
        .sink(lambda rows, key: None, version="1")
    )


def check(status: JobStatus) -> None:
    """What must hold of every status that somebody is shown."""
    for name, each in status.progress.items():
        assert each.units_before <= each.units, (name, each)
        assert each.units_total is None or each.units <= each.units_total, (name, each)
        assert min(each.calls, each.calls_under_way, each.working) >= 0, (name, each)


def run(pipeline: hr.Pipeline) -> JobStatus:
    """Run to the end, and return the last status of the run."""
    shown: list[JobStatus] = []
    summary = pipeline.run(watch=shown.append)
    for each in shown:
        check(each)
    assert shown[-1].outcome == summary.outcome
    assert shown[-1] == pipeline.status()
    assert (shown[-1].cost, shown[-1].cost_in_all) == (summary.cost, summary.cost_in_all)
    return shown[-1]


def test_a_run_that_is_stopped_and_the_next_tell_what_an_oracle_counted(
    workspace: hr.Workspace,
) -> None:
    provider = Provider()
    pipeline = provider.pipeline = make(workspace, provider)
    # A stop ends the stage above too; what it has not filtered yet would count as units to come.
    provider.after[1] = lambda: provider.wait_for("even_units")
    provider.after[47] = pipeline.stop
    first = run(pipeline)
    assert first.outcome == "stopped"
    made = provider.calls
    # Calls under way when somebody asked for the stop ended; no unit was finished for it.
    assert 47 <= made < 60
    answer = first.progress["answer"]
    assert (answer.calls, answer.calls_under_way, answer.in_doubt) == (made, 0, 0)
    assert answer.cost == 0.25 * (made - len(FAILING & provider.paid.keys()))
    assert (answer.units, answer.units_total, answer.calls_found) == (2, 5, 0)
    assert (answer.rows_left, answer.dead_letters) == (60, 2)
    assert (first.progress["even_units"].units, first.progress["even_units"].units_total) == (
        ROWS // PER_UNIT,
        ROWS // PER_UNIT,
    )

    last = run(make(workspace, provider))
    assert last.outcome == "done"
    assert provider.calls == ROWS // 2
    assert set(provider.paid.values()) == {1}
    answer = last.progress["answer"]
    assert (answer.units_before, answer.units, answer.units_total) == (2, 5, 5)
    assert answer.calls == ROWS // 2 - made
    assert (answer.calls_found, answer.results_before) == (made - 40, made - 2)
    assert (answer.calls_failed, answer.dead_letters, answer.rows_left) == (1, 3, 0)
    assert (last.cost, last.cost_in_all) == (answer.cost, 0.25 * (ROWS // 2 - 3))
    sink = last.progress["sink"]
    assert (sink.units_before, sink.units, sink.units_total) == (2, 5, 5)
    assert last.stages["sink"].rows_in == last.stages["light"].rows_in == 59


def test_a_run_that_has_nothing_to_do_says_that_all_is_done(workspace: hr.Workspace) -> None:
    provider = Provider()
    run(make(workspace, provider))
    again = run(make(workspace, provider))
    assert again.outcome == "done"
    for each in again.progress.values():
        assert (each.units_before, each.calls, each.cost) == (each.units_total, 0, 0)
    assert again.progress["answer"].results_before == ROWS // 2 - 3


def test_a_run_that_is_paused_tells_what_is_left(workspace: hr.Workspace) -> None:
    provider = Provider()
    pipeline = provider.pipeline = make(workspace, provider, budget=5)
    # A pause ends the stage above too; what it has not filtered yet would count as units to come.
    provider.after[1] = lambda: provider.wait_for("even_units")
    paused = run(pipeline)
    assert (paused.outcome, paused.cost) == ("paused", 5)
    answer = paused.progress["answer"]
    assert provider.calls == answer.calls == 22
    assert (answer.units, answer.units_total, answer.dead_letters) == (1, 5, 2)


def test_what_is_replayed_is_a_unit_of_its_own(workspace: hr.Workspace) -> None:
    provider = Provider()
    run(make(workspace, provider))

    async def replay() -> int:
        async with LocalBackend(workspace) as backend:
            return await DeadLetters(workspace, "numbers", backend).replay()

    assert asyncio.run(replay()) == 3
    last = run(make(workspace, provider))
    answer = last.progress["answer"]
    assert (answer.units_before, answer.units, answer.units_total) == (5, 7, 7)
    assert (answer.calls, answer.calls_failed, answer.dead_letters) == (3, 3, 3)
    # The rows failed again, so nothing came to the stages below.
    assert (last.progress["sink"].units, last.progress["sink"].units_total) == (5, 5)


def test_rows_of_files_that_nobody_has_read_are_not_made_up(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("n\n1\n2\n")
    provider = Provider()
    is_shown = threading.Event()
    provider.after[1] = lambda: _wait(is_shown)
    shown: list[JobStatus] = []

    def watch(status: JobStatus) -> None:
        shown.append(status)
        is_shown.set()

    pipeline = hr.pipeline("files", workspace).source(str(tmp_path / "*.csv"))
    pipeline.map(provider.answer, version="1").run(watch=watch)
    before, after = shown[0].progress["answer"], shown[-1].progress["answer"]
    assert (before.units, before.units_total, before.rows_left) == (0, 3, None)
    assert (after.units, after.units_total, after.rows_left) == (3, 3, 0)
    assert shown[-1].stages["answer"].rows_in == 6


def _wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def test_a_stop_before_anybody_runs_means_no_later_run(workspace: hr.Workspace) -> None:
    pipeline = make(workspace, Provider())
    pipeline.stop()
    assert pipeline.run().outcome == "done"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stopped_run_leaves_no_call_in_doubt(workspace: hr.Workspace, workers: int) -> None:
    provider = Provider()
    stops = 0
    while True:
        pipeline = make(workspace, provider, workers=workers)
        provider.after = {provider.calls + 10: pipeline.stop}
        status = run(pipeline)
        assert status.progress["answer"].in_doubt == 0
        if status.outcome == "done":
            break
        stops += 1
    assert stops >= 5
    # A call that failed for certain has no result, and costs nothing when it is made again.
    assert {provider.paid[n] for n in provider.paid.keys() - FAILING} == {1}


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_lets_calls_under_way_end_and_leaves_no_worker(workspace: hr.Workspace) -> None:
    provider = Provider()
    provider.after = {25: _thread.interrupt_main}
    with pytest.raises(KeyboardInterrupt):
        make(workspace, provider, workers=2).run()
    calls = provider.calls
    assert not [each for each in threading.enumerate() if each.name.startswith("headrace-answer-")]
    pipeline = make(workspace, provider)
    assert pipeline.status().outcome == "stopped"
    status = run(pipeline)
    assert (status.outcome, status.progress["answer"].in_doubt) == ("done", 0)
    assert {provider.paid[n] for n in provider.paid.keys() - FAILING} == {1}
    assert calls < provider.calls


def test_a_run_that_fails_pays_for_no_more_of_other_units(workspace: hr.Workspace) -> None:
    rows = 400
    provider = Provider()

    def answer(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] < rows // 2:
            assert provider.has_begun.wait(PATIENCE_S)
            raise ValueError("no such word")
        provider.has_begun.set()
        eventually(provider.is_refused, PATIENCE_S, "the end of claims")
        return provider.answer(row)

    pipeline = hr.pipeline("failing", workspace).source(numbers(rows), rows_per_unit=rows // 2)
    pipeline.map(answer, name="answer", version="1", expensive=True, workers=2)
    provider.pipeline = pipeline
    with pytest.raises(UnitError, match="no such word"):
        pipeline.run()
    # The other worker claims some calls ahead; it does not make those of its whole unit.
    assert 0 < provider.calls < rows // 4
    assert pipeline.status().outcome == "failed"


def test_a_run_goes_on_if_whoever_watches_it_fails(
    workspace: hr.Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    def watch(status: JobStatus) -> None:
        raise BrokenPipeError("the terminal\nis gone")

    pipeline = hr.pipeline("watched", workspace).source(numbers(3)).map_batches(lambda batch: batch)
    assert pipeline.run(watch=watch).outcome == "done"
    assert pipeline.status().outcome == "done"
    assert "job watched is not shown any more: BrokenPipeError: the terminal is gone" in caplog.text


# proves G17
def test_a_stop_gives_back_calls_that_wait_for_a_rate_limit(workspace: hr.Workspace) -> None:
    """One call passes in an hour, so a stop that waited for the others would take three."""
    provider = Provider()
    limit = hr.RateLimitSpec(name="slow", requests_per_minute=1 / 60)
    pipeline = hr.pipeline("slow", workspace).source(numbers(4))
    pipeline = pipeline.map(
        provider.answer, name="answer", version="1", expensive=True, cost=1.0,
        concurrency=4, rate_limit=limit,
    )  # fmt: skip
    provider.after[1] = lambda: _refuse_and_stop(pipeline)
    assert pipeline.run().outcome == "stopped"
    assert provider.calls == 1
    assert pipeline.status().progress["answer"].in_doubt == 0


def _refuse_and_stop(pipeline: hr.Pipeline) -> None:
    """Answer as a server that is busy, and that took no money."""
    pipeline.stop()
    raise RetryableError("ask later", do="wait", in_doubt=False)
