"""Stages that take all rows at once: they wait until their input ends, and are sealed once."""

from __future__ import annotations

import pytest

from headrace.errors import ChangedError, ProtocolError
from headrace.pipeline.master.messages import AdvanceClaim, ClaimWork, Go, Leave, NoWork
from headrace.pipeline.master.stage_state import InputState, StageState
from headrace.pipeline.master.state import IDLE_ASKS_MAX, JobState, SealReport
from tests.pipeline.master.test_state import claim, stage_input


def job_state(*, is_sealed: bool = False, sealed_to: int = 0, read_to: int = 0) -> JobState:
    """Return source → call → total → last; `total` takes all rows at once."""

    def inputs(stage: str, upstream: str, position: int, end: int) -> list[InputState]:
        return [InputState(stage_input(stage, 0, upstream, durable=True), position, end)]

    stages = [
        StageState("call", inputs("call", "source", read_to, 2)),
        StageState(
            "total", inputs("total", "call", sealed_to, 0), takes_all=True, is_sealed=is_sealed
        ),
        StageState("last", inputs("last", "total", 0, 0)),
    ]
    return JobState(stages, {"call": ["source"], "total": ["call"], "last": ["total"]})


def finish_call(state: JobState, end: int = 2) -> None:
    state.join("c", "call")
    number = claim(state, "c").number
    state.advance("c", AdvanceClaim(claim=number, position=2, messages=2, produced=2, end=end))
    state.validate()


def test_it_is_due_when_everything_above_it_is_done() -> None:
    state = job_state()
    assert not state.is_due("total")
    finish_call(state)
    assert state.is_due("total")
    assert not state.is_over("total")
    assert not state.is_over("last")


def test_what_is_sealed_goes_on_to_the_stages_below() -> None:
    state = job_state()
    state.join("l", "last")
    finish_call(state)
    assert state.ask("l") == NoWork()
    state.seal("total", SealReport([2], [5], messages=2, rows_in=20, rows_out=3))
    state.validate()
    assert state.is_over("total")
    assert not state.is_due("total")
    found = state.ask("l")
    assert isinstance(found, ClaimWork)
    assert (found.position, found.end) == (0, 5)
    state.advance("l", AdvanceClaim(claim=found.number, position=5))
    assert state.outcome == "done"
    counts = state.stages["total"].counts
    assert (counts.messages, counts.rows_in, counts.rows_out) == (2, 20, 3)


def test_it_is_due_even_if_there_is_nothing_to_read() -> None:
    """A count of no rows is a row."""
    state = job_state(read_to=2)
    assert state.is_due("total")
    state.seal("total", SealReport([0], [1], rows_out=1))
    assert not state.is_complete("last")


def test_what_is_sealed_is_never_due_again() -> None:
    state = job_state(is_sealed=True, sealed_to=2, read_to=2)
    assert not state.is_due("total")
    assert state.is_over("total")
    assert state.outcome == "done"
    with pytest.raises(ProtocolError, match="cannot be sealed"):
        state.seal("total", SealReport([2], [5]))


def test_more_input_after_the_seal_fails_the_run() -> None:
    """It would be left out for ever."""
    state = job_state(is_sealed=True, sealed_to=2)
    finish_call(state, end=4)
    assert not state.is_over("total")
    assert not state.is_due("total")
    assert isinstance(state.error, ChangedError)
    assert "the input of stage 'total' has grown" in str(state.error)
    assert state.outcome == "failed"


def test_a_seal_that_leaves_out_input_is_refused() -> None:
    state = job_state()
    finish_call(state)
    with pytest.raises(ProtocolError, match="left out what is between 1 and 2"):
        state.seal("total", SealReport([1], [5]))


def test_it_is_not_due_in_a_run_that_pauses_above_it() -> None:
    state = job_state()
    state.join("c", "call")
    claim(state, "c")
    state.pause("c", "the budget is spent")
    assert not state.is_due("total")
    assert state.is_over("total")
    assert state.is_over("last")
    assert not state.is_complete("total")
    assert state.outcome == "paused"


def test_it_is_not_due_in_a_run_that_stops() -> None:
    state = job_state()
    finish_call(state)
    state.stop()
    assert not state.is_due("total")
    assert state.outcome == "stopped"


def test_it_has_no_workers() -> None:
    with pytest.raises(ProtocolError, match="has no workers"):
        job_state().join("t", "total")


def test_a_worker_that_waits_for_one_without_a_slot_gives_its_own_back() -> None:
    state = job_state()
    assert state.join("l", "last") == Go()
    for _ in range(IDLE_ASKS_MAX - 1):
        assert state.time_out("l") == NoWork()
    assert state.time_out("l") == Leave("its slot is needed")


def test_a_worker_waits_as_long_as_workers_are_busy_above_it() -> None:
    state = job_state()
    state.join("l", "last")
    for _ in range(IDLE_ASKS_MAX - 1):
        state.time_out("l")
    state.join("c", "call")
    for _ in range(2 * IDLE_ASKS_MAX):
        assert state.time_out("l") == NoWork()
    state.lose("c")
    assert state.time_out("l") == NoWork()
