"""What becomes of a run: every decision about restarts and ends, as tables."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from headrace.errors import DataError, HeadraceError, PeerLostError, PublishError, UsageError
from headrace.spark.query_failure import GONE
from headrace.spark.tasks.run_state import (
    LATE_STARTS_MAX,
    RecordedState,
    Restart,
    RunState,
    is_killed,
    may_query_again,
    root_failure,
    run_end,
)

LOST = PeerLostError("member 1 was killed")
LATE = StreamingQueryException("Python worker failed to connect back.")


def test_a_run_fails_after_too_many_restarts_without_progress() -> None:
    state = RunState(2)
    assert state.fail(LOST) == Restart(0.5, 1, 2)
    assert state.fail(LOST) == Restart(1.0, 2, 2)
    assert state.fail(LOST) is None
    assert state.restarts == 2


def test_progress_lets_a_run_restart_as_often_again() -> None:
    state = RunState(1)
    for checkpoint in range(1, 5):
        state.apply(checkpoint)
        assert state.fail(LOST) == Restart(0.5, 1, 1)
    assert state.fail(LOST) is None
    assert state.restarts == 4


def test_to_apply_a_checkpoint_again_is_no_progress() -> None:
    """The sink may hold it from another attempt or from another run."""
    state = RunState(1)
    state.open_sink(7)
    state.apply(7)
    assert state.fail(LOST)
    state.open_sink(None)
    assert state.reached == 7
    state.apply(7)
    assert state.fail(LOST) is None


@pytest.mark.parametrize(
    "failure", [UsageError("no"), DataError("no"), GONE, KeyError("no"), ValueError("no")]
)
def test_a_failure_that_would_come_again_ends_the_run(failure: BaseException) -> None:
    state = RunState(5)
    state.apply(1)
    assert state.fail(failure) is None
    assert state.restarts == 0


FINAL, REFUSED = UsageError("no such column"), PublishError("rolled back")


@pytest.mark.parametrize(
    ("applying", "members", "is_jvm_gone", "root"),
    [
        (None, None, False, "Python worker failed"),
        (REFUSED, None, False, "rolled back"),
        (REFUSED, LOST, False, "member 1 was killed"),
        (FINAL, LOST, False, "no such column"),
        (None, LOST, False, "member 1 was killed"),
        (FINAL, LOST, True, "the JVM of Spark is gone"),
    ],
)
def test_the_failure_that_explains_the_others_is_the_root(
    applying: HeadraceError | None, members: HeadraceError | None, is_jvm_gone: bool, root: str
) -> None:
    found = root_failure(LATE, applying=applying, members=members, is_jvm_gone=is_jvm_gone)
    assert root in str(found)


def test_only_a_source_that_starts_late_gets_another_query() -> None:
    assert may_query_again(LATE, None, 1)
    assert may_query_again(LATE, None, LATE_STARTS_MAX - 1)
    assert not may_query_again(LATE, None, LATE_STARTS_MAX)
    assert not may_query_again(LATE, LOST, 1)
    assert not may_query_again(LOST, None, 1)
    assert not may_query_again(StreamingQueryException("something else"), None, 1)


@pytest.mark.parametrize(
    ("error", "is_stopping", "end"),
    [
        (None, False, "done"),
        (None, True, "stopped"),
        (LOST, False, "failed"),
        (LOST, True, "failed"),
        (KeyboardInterrupt(), False, "stopped"),
        (SystemExit(), False, "stopped"),
    ],
)
def test_a_run_ends_as_done_stopped_or_failed(
    error: BaseException | None, is_stopping: bool, end: str
) -> None:
    assert run_end(error, is_stopping=is_stopping) == end


@pytest.mark.parametrize(
    ("recorded", "is_locked", "is_here", "killed"),
    [
        ("running", True, True, False),
        ("running", False, True, True),
        ("running", False, False, False),
        ("stopped", False, True, False),
        ("failed", False, True, False),
    ],
)
def test_a_run_that_holds_no_lock_was_killed(
    recorded: RecordedState, is_locked: bool, is_here: bool, killed: bool
) -> None:
    assert is_killed(recorded, is_locked=is_locked, is_here=is_here) is killed
