"""What becomes of a run of a task when something ends. Pure.

A run makes one attempt after the other. An attempt has members and a query over them.

    the query ends                             the run is done
    somebody asks the task to stop             the run is stopped
    the query's source starts too late         the attempt starts another query, with its members
    a failure that another attempt may mend    the run makes another attempt, after a delay
    any other failure                          the run fails
    the process is killed                      whoever looks next finds that the run has failed
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from headrace.backoff import Backoff
from headrace.spark.query_failure import GONE, explain, is_final, is_late_start

RunEnd = Literal["done", "stopped", "failed"]
RecordedState = Literal["running", "stopped", "failed", "never run"]

LATE_STARTS_MAX = 6
"""Queries of an attempt. Spark waits ten seconds for each: a busy machine has a minute."""

_RESTART_S = 0.5
_RESTART_S_MAX = 30.0


class Restart(NamedTuple):
    """Another attempt, after a delay."""

    delay_s: float
    number: int
    """Restarts since the last progress, this one included."""
    number_max: int


class RunState:
    """Decides, for one run, whether an attempt that failed is followed by another."""

    def __init__(self, restarts_max: int) -> None:
        """`restarts_max`: how many restarts in a row may make no progress."""
        self._backoff = Backoff(restarts_max, first_s=_RESTART_S, longest_s=_RESTART_S_MAX)
        self._has_progressed = False
        self.reached = 0
        """The highest checkpoint that the sink is known to hold."""

    @property
    def restarts(self) -> int:
        """Restarts since the run began."""
        return self._backoff.retries_total

    def open_sink(self, last: int | None) -> None:
        """An attempt begins, and the sink says which checkpoint it holds; None if it cannot."""
        self.reached = max(self.reached, last or 0)

    def apply(self, checkpoint: int) -> None:
        """The sink holds the checkpoint. To apply one again is no progress."""
        self._has_progressed |= checkpoint > self.reached
        self.reached = max(self.reached, checkpoint)

    def fail(self, failure: BaseException) -> Restart | None:
        """An attempt failed. Return the restart that follows; None if the run has failed."""
        if self._has_progressed:
            self._backoff.reset()
            self._has_progressed = False
        delay_s = None if is_final(failure) else self._backoff.next_delay_s()
        if delay_s is None:
            return None
        return Restart(delay_s, self._backoff.retries, self._backoff.retries_max)


def root_failure(
    raised: BaseException,
    *,
    applying: BaseException | None,
    members: BaseException | None,
    is_jvm_gone: bool,
) -> BaseException:
    """Return what made an attempt fail, of all that failed with it.

    An attempt raised `raised`. `applying` is what the function or the sink raised: Spark passes on
    no more than its text. `members` is why the members ended.
    """
    if is_jvm_gone:
        return GONE
    if applying and is_final(applying):
        return applying
    return members or applying or explain(raised)


def may_query_again(raised: BaseException, members: BaseException | None, late_starts: int) -> bool:
    """Return True if an attempt may start another query after its query raised an error.

    It may if only the start of the query's source was too late: then nothing was done, and the
    members are alive. `late_starts` counts the queries of the attempt that ended like this.
    """
    return members is None and is_late_start(raised) and late_starts < LATE_STARTS_MAX


def run_end(error: BaseException | None, *, is_stopping: bool) -> RunEnd:
    """Return how a run ended that raised an error, or none. An interruption stops it."""
    if error is None:
        return "stopped" if is_stopping else "done"
    return "failed" if isinstance(error, Exception) else "stopped"


def is_killed(recorded: RecordedState, *, is_locked: bool, is_here: bool) -> bool:
    """Return True if the process of a run was killed.

    Its record says that it runs, but it does not hold its lock. Only a process on the same machine
    sees locks, so a run on another machine counts as running.
    """
    return recorded == "running" and is_here and not is_locked
