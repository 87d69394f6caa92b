"""What the state of a run answers, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ProtocolError, UnitError
from headrace.pipeline.contract import OnError
from headrace.pipeline.master.inputs import StageInput
from headrace.pipeline.master.messages import AdvanceClaim, ClaimWork, Go, Leave, NoWork, PoisonRow
from headrace.pipeline.master.stage_state import DEATHS_MAX, InputState, StageState
from headrace.pipeline.master.state import JobState, TruncateTopic


def stage_input(stage: str, number: int, upstream: str, *, durable: bool) -> StageInput:
    return StageInput(stage, number, upstream, upstream, number, durable, "source", number, stage)


def job_state(
    *, middle_durable: bool = True, ends: tuple[int, ...] = (3, 3), on_error: OnError = "fail"
) -> JobState:
    """Return source → first → last, with an input for each end."""
    first = [
        InputState(stage_input("first", number, "source", durable=True), 0, end)
        for number, end in enumerate(ends)
    ]
    last = [
        InputState(stage_input("last", number, "first", durable=middle_durable), 0, 0)
        for number in range(len(ends))
    ]
    stages = [
        StageState("first", first, batch_size=2, on_error=on_error),
        StageState("last", last, batch_size=2),
    ]
    return JobState(stages, {"first": ["source"], "last": ["first"]}, unread_max=2)


def claim(state: JobState, worker: str) -> ClaimWork:
    answer = state.ask(worker)
    assert isinstance(answer, ClaimWork), answer
    return answer


def advance(state: JobState, worker: str, number: int, position: int, **more: Any) -> Go | Leave:
    answer, _ = state.advance(worker, AdvanceClaim(claim=number, position=position, **more))
    state.validate()
    return answer


def test_two_workers_get_two_inputs_and_a_third_none() -> None:
    state = job_state()
    for worker in "abc":
        assert state.join(worker, "first") == Go()
    assert {claim(state, "a").input.number, claim(state, "b").input.number} == {0, 1}
    assert state.ask("c") == NoWork()


def test_a_stage_is_over_when_its_upstream_is_and_nothing_is_left() -> None:
    state = job_state(ends=(1,))
    state.join("a", "first")
    state.join("b", "last")
    number = claim(state, "a").number
    assert not state.is_over("last")
    assert advance(state, "a", number, 1, produced=1, end=1) == Go(0)
    assert state.is_complete("first")
    assert not state.is_over("last")
    number = claim(state, "b").number
    assert advance(state, "b", number, 1) == Go(0)
    assert isinstance(state.ask("b"), Leave)
    assert state.outcome == "done"


def test_an_end_that_was_only_a_bound_is_corrected_by_an_empty_fetch() -> None:
    state = job_state(ends=(100,))
    state.join("a", "first")
    number = claim(state, "a").number
    assert advance(state, "a", number, 7) == Go(2)
    assert advance(state, "a", number, 7, is_empty=True) == Go(0)
    assert state.is_complete("first")


def test_an_empty_fetch_says_nothing_about_messages_that_came_after_the_claim() -> None:
    state = job_state(ends=(2,))
    state.join("a", "first")
    state.join("b", "last")
    first = claim(state, "a").number
    advance(state, "a", first, 1, produced=1, end=1)
    last = claim(state, "b").number
    advance(state, "a", first, 2, produced=1, end=2)
    advance(state, "b", last, 0, is_empty=True)
    assert not state.is_complete("last")


def test_a_lost_worker_gives_its_claim_back() -> None:
    state = job_state(ends=(3,))
    state.join("a", "first")
    state.join("b", "first")
    assert claim(state, "a").position == 0
    state.lose("a")
    again = claim(state, "b")
    assert (again.position, again.isolate) == (0, False)
    with pytest.raises(ProtocolError, match="has no claim 1"):
        state.release("b", 1)


def lose_on_rows(state: JobState, rows: tuple[int, ...], times: int) -> None:
    """Lose workers that probe rows of the first message."""
    for number in range(times):
        state.join(f"p{rows}{number}", "first")
        claimed = claim(state, f"p{rows}{number}")
        assert claimed.isolate
        assert claimed.messages_max == 1
        state.probe(f"p{rows}{number}", claimed.number, "unit", rows)
        state.lose(f"p{rows}{number}")
        state.validate()


def lose_workers(state: JobState, count: int) -> None:
    for number in range(count):
        state.join(f"w{number}", "first")
        claim(state, f"w{number}")
        state.lose(f"w{number}")


def test_a_row_on_which_two_workers_are_lost_is_poison() -> None:
    state = job_state(ends=(3,), on_error="dead_letter")
    lose_workers(state, 2)
    lose_on_rows(state, (4,), 1)
    lose_on_rows(state, (5,), 2)
    state.join("z", "first")
    claimed = claim(state, "z")
    error = "the worker's process ended while it processed row 5"
    assert claimed.poison == (PoisonRow(5, error),)
    assert advance(state, "z", claimed.number, 1) == Go(2)
    state.release("z", claimed.number)
    after = claim(state, "z")
    assert (after.isolate, after.poison) == (False, ())


def test_a_poison_row_fails_a_run_without_dead_letters() -> None:
    state = job_state(ends=(3,))
    lose_workers(state, 2)
    lose_on_rows(state, (5,), 2)
    assert isinstance(state.error, UnitError)
    assert "unit unit: the worker's process ended while it processed row 5" in str(state.error)
    assert state.outcome == "failed"


def test_a_message_that_kills_every_worker_fails_the_run() -> None:
    state = job_state(ends=(3,))
    lose_workers(state, DEATHS_MAX)
    assert "lost 10 workers in a row on the message at 0 of source" in str(state.error)


def test_a_stage_on_memory_waits_for_its_readers() -> None:
    state = job_state(middle_durable=False, ends=(5,))
    state.join("a", "first")
    state.join("b", "last")
    number = claim(state, "a").number
    assert advance(state, "a", number, 2, messages=2, produced=2, end=2) == Go(0)
    assert state.ask("a") == NoWork()
    number = claim(state, "b").number
    report = AdvanceClaim(claim=number, position=1, messages=1)
    assert state.advance("b", report) == (Go(2), [TruncateTopic("first", 0, 1)])
    assert claim(state, "a").messages_max == 1


def test_when_slots_are_few_a_worker_without_work_or_without_room_leaves() -> None:
    state = job_state(middle_durable=False, ends=(5,))
    state.run_in_turn(["first", "last"])
    state.join("a", "first")
    state.join("b", "last")
    assert isinstance(state.ask("b"), Leave)
    number = claim(state, "a").number
    assert advance(state, "a", number, 2, messages=2, produced=2, end=2) == Go(0)
    assert state.ask("a") == Leave("its slot is needed")
    state.leave("a")
    number = claim(state, "b").number
    assert advance(state, "b", number, 2, messages=2) == Go(0)
    assert state.ask("b") == Leave("its slot is needed")
    state.join("a2", "first")
    assert claim(state, "a2").messages_max == 2


def test_a_pause_halts_what_is_above_and_finishes_what_is_below() -> None:
    state = job_state(ends=(5,))
    state.join("a", "first")
    state.join("b", "last")
    number = claim(state, "a").number
    advance(state, "a", number, 2, produced=2, end=2)
    state.pause("a", "the budget is spent")
    assert state.ask("a") == Leave("the budget is spent")
    assert not state.is_over("last")
    number = claim(state, "b").number
    assert advance(state, "b", number, 2) == Go(0)
    assert state.outcome == "paused"


def test_a_stop_lets_workers_leave_when_they_report() -> None:
    state = job_state(ends=(5,))
    state.join("a", "first")
    number = claim(state, "a").number
    state.stop()
    assert not state.is_over("first")
    assert isinstance(advance(state, "a", number, 2), Leave)
    assert state.outcome == "stopped"


def test_a_failure_lets_everybody_leave() -> None:
    state = job_state()
    state.join("a", "first")
    number = claim(state, "a").number
    state.join("b", "last")
    state.fail(UnitError("row 3 is wrong"))
    assert state.ask("b") == Leave("row 3 is wrong")
    assert isinstance(advance(state, "a", number, 1), Leave)
    assert isinstance(state.join("c", "first"), Leave)
    assert state.outcome == "failed"


def test_a_worker_never_goes_back() -> None:
    state = job_state()
    state.join("a", "first")
    number = claim(state, "a").number
    advance(state, "a", number, 2)
    with pytest.raises(ProtocolError, match="went back from 2 to 1"):
        advance(state, "a", number, 1)


def test_the_input_that_was_served_longest_ago_is_next() -> None:
    state = job_state(ends=(9, 9, 9))
    state.join("a", "first")
    served = []
    for _ in range(6):
        claimed = claim(state, "a")
        served.append(claimed.input.number)
        state.release("a", claimed.number)
    assert served == [0, 1, 2, 0, 1, 2]


def test_a_worker_that_leaves_gives_its_claim_back() -> None:
    state = job_state(ends=(3,))
    state.join("a", "first")
    claim(state, "a")
    state.leave("a")
    state.validate()
    state.join("b", "first")
    assert claim(state, "b").position == 0


def test_a_report_without_progress_keeps_what_is_known_of_lost_workers() -> None:
    """The next claim would else meet the poison rows, and lose another worker on them."""
    state = job_state(ends=(3,), on_error="dead_letter")
    lose_workers(state, 2)
    lose_on_rows(state, (5,), 2)
    state.join("a", "first")
    claimed = claim(state, "a")
    assert advance(state, "a", claimed.number, 0) == Go(0)
    again = claim(state, "a")
    assert (again.isolate, again.poison) == (True, claimed.poison)


def test_all_rows_of_a_message_that_kill_workers_are_poison() -> None:
    state = job_state(ends=(3,), on_error="dead_letter")
    lose_workers(state, 2)
    lose_on_rows(state, (5,), 2)
    lose_on_rows(state, (7,), 2)
    state.join("a", "first")
    assert [each.row for each in claim(state, "a").poison] == [5, 7]


def test_the_end_of_an_output_counts_even_if_its_producer_did_not_live_to_report() -> None:
    state = job_state(ends=(2,))
    state.join("a", "first")
    state.join("b", "last")
    number = claim(state, "a").number
    advance(state, "a", number, 2, end=4)
    found = claim(state, "b")
    assert (found.position, found.end) == (0, 4)


def test_an_end_that_is_reported_late_takes_nothing_back() -> None:
    state = job_state(ends=(9,))
    state.join("a", "first")
    state.join("b", "last")
    number = claim(state, "a").number
    advance(state, "a", number, 2, produced=2, end=4)
    advance(state, "a", number, 3, end=1)
    assert claim(state, "b").end == 4


def test_an_end_that_grew_under_a_claim_is_corrected_by_an_empty_fetch_too() -> None:
    state = job_state(ends=(9,))
    state.join("a", "first")
    state.join("b", "last")
    first = claim(state, "a").number
    advance(state, "a", first, 1, produced=1, end=1)
    last = claim(state, "b").number
    advance(state, "a", first, 2, end=100)
    assert advance(state, "b", last, 1, messages=1) == Go(2)
    assert advance(state, "b", last, 1, is_empty=True) == Go(0)
    assert not state.stages["last"].has_work


def long_job_state(*, middle_durable: bool = True) -> JobState:
    """Return source → first → middle → (left, right)."""

    def stage(name: str, upstream: str, end: int, *, durable: bool = True) -> StageState:
        input = InputState(stage_input(name, 0, upstream, durable=durable), 0, end)
        return StageState(name, [input], batch_size=9)

    stages = [
        stage("first", "source", 9),
        stage("middle", "first", 9),
        stage("left", "middle", 0, durable=middle_durable),
        stage("right", "middle", 0, durable=middle_durable),
    ]
    upstreams = {"first": ["source"], "middle": ["first"], "left": ["middle"], "right": ["middle"]}
    return JobState(stages, upstreams, unread_max=4)


def test_a_pause_halts_every_stage_above() -> None:
    state = long_job_state()
    for stage in ("first", "middle", "left", "right"):
        state.join(stage, stage)
    number = claim(state, "middle").number
    advance(state, "middle", number, 2, produced=2, end=2)
    claim(state, "left")
    state.pause("left", "the budget is spent")
    assert isinstance(state.ask("first"), Leave)
    assert claim(state, "right").position == 0


def test_a_stage_on_memory_waits_for_the_slowest_of_its_readers() -> None:
    state = long_job_state(middle_durable=False)
    for stage in ("middle", "left"):
        state.join(stage, stage)
    number = claim(state, "middle").number
    assert advance(state, "middle", number, 4, messages=4, produced=4, end=4) == Go(0)
    number = claim(state, "left").number
    report = AdvanceClaim(claim=number, position=4, messages=4)
    assert state.advance("left", report) == (Go(0), [])  # `right` has read nothing yet.
    assert state.ask("middle") == NoWork()
