"""One attempt at a run of a task, over members and sinks that stand for real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from headrace.errors import PeerLostError
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX
from headrace.spark.sinks.contract import CheckpointId
from headrace.spark.tasks.run_state import LATE_STARTS_MAX
from headrace.spark.tasks.task_run import RunAttempt


class LateAttempt(RunAttempt):
    """An attempt whose source never starts in time."""

    def __init__(self, name: str) -> None:
        self._task: Any = SimpleNamespace(name=name)
        self._applying_failure = self._members_failure = None
        self.queries = 0

    def _start(self, *of: Any, **options: Any) -> Any:
        self.queries += 1
        return SimpleNamespace(stop=lambda: None)

    def _watch_query(self, *of: Any) -> StreamingQueryException:
        return StreamingQueryException("Python worker failed to connect back.")


@pytest.mark.parametrize("are_gone", [False, True])
def test_a_source_that_never_starts_in_time_ends_the_run(are_gone: bool) -> None:
    """If the members are gone meanwhile, the run ends at once."""
    members: Any = SimpleNamespace(
        wait_for_end=lambda _: are_gone, failure=lambda: PeerLostError("member 0 was killed")
    )
    attempt = LateAttempt("t")
    target: Any = None
    with pytest.raises(StreamingQueryException, match="failed to connect back"):
        attempt._run_queries(target, members, once=True)
    assert attempt.queries == (1 if are_gone else LATE_STARTS_MAX)


class LostTarget:
    """A target whose owner is lost with every write."""

    def __init__(self) -> None:
        self.writes = self.openings = 0

    def is_lost(self) -> bool:
        return True

    def reopen(self) -> None:
        self.openings += 1

    def last(self) -> int | None:
        return 0

    def write(self, *of: Any) -> None:
        self.writes += 1
        raise PeerLostError("the owner is gone")

    def close(self) -> None:
        """Do nothing: nothing is open."""


def test_a_write_is_given_up_when_too_many_owners_were_lost() -> None:
    attempt, target, rows = LateAttempt("t"), LostTarget(), object()
    attempt._fence = cast(Any, SimpleNamespace(check=lambda: None))
    with pytest.raises(PeerLostError, match="the owner is gone"):
        attempt._write(target, cast(Any, rows), CheckpointId("t", "g", 1))
    assert (target.writes, target.openings) == (1 + OWNERS_LOST_MAX, OWNERS_LOST_MAX)
