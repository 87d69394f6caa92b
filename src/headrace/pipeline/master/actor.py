"""The master at work: one state, any number of threads, effects on memory topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from headrace.errors import REPORT, HeadraceError, PeerLostError, ProtocolError, from_wire
from headrace.pipeline.master.messages import (
    AdvanceClaim,
    Answer,
    AskWork,
    FailWork,
    Join,
    Leave,
    NoWork,
    Pause,
    Probing,
    ReleaseWork,
    Request,
)
from headrace.pipeline.master.state import JobState, Outcome, SealReport, TruncateTopic

T = TypeVar("T")


class Master:
    """Answers the requests of all workers of a run. Any thread may use it."""

    def __init__(self, state: JobState, truncate: Callable[[TruncateTopic], None]) -> None:
        self._state = state
        self._truncate = truncate
        self._changed = threading.Condition()
        self.on_failure: Callable[[], None] = lambda: None
        """Called once, when the run fails."""
        self._has_failed = False

    def join(self, request: Join) -> Answer:
        with self._changed:
            return self._state.join(request.worker, request.stage)

    def handle(
        self, worker: str, request: Request, is_gone: Callable[[], bool] = lambda: False
    ) -> Answer:
        """Answer a request of a worker that has joined; wait if it asks for work and none is there.

        Stop waiting when `is_gone` is true: see `wake`.
        """
        if isinstance(request, AskWork):
            return self._wait_for_work(worker, request.timeout_s, is_gone)
        with self._changed:
            answer, effects = self._apply(worker, request)
            self._changed.notify_all()
        for effect in effects:
            self._truncate(effect)
        self._look_for_failure()
        return answer

    def _apply(self, worker: str, request: Request) -> tuple[Answer, list[TruncateTopic]]:
        state = self._state
        self._check_joined(worker)
        match request:
            case AdvanceClaim():
                return state.advance(worker, request)
            case ReleaseWork(claim):
                return state.release(worker, claim), []
            case Probing(claim, unit, rows):
                return state.probe(worker, claim, unit, rows), []
            case Pause(why):
                return state.pause(worker, why), []
            case FailWork(error):
                return state.fail(from_wire(*error)), []
        raise ProtocolError(f"worker {worker} sent {type(request).__name__}", do=REPORT)

    def _wait_for_work(self, worker: str, timeout_s: float, is_gone: Callable[[], bool]) -> Answer:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not is_gone():
                self._check_joined(worker)
                answer = self._state.ask(worker)
                left = deadline - time.monotonic()
                if not isinstance(answer, NoWork):
                    return answer
                if left <= 0:
                    return self._state.time_out(worker)
                self._changed.wait(left)
        return Leave("it is gone")

    def _check_joined(self, worker: str) -> None:
        if worker not in self._state.workers:
            raise PeerLostError(f"the master has given worker {worker} up", do="start another")

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def leave(self, worker: str) -> None:
        """A worker ended as it was told to."""
        with self._changed:
            self._state.leave(worker)
            self._changed.notify_all()

    def lose(self, worker: str) -> None:
        """A worker is gone without a word."""
        with self._changed:
            self._state.lose(worker)
            self._changed.notify_all()
        self._look_for_failure()

    def fail(self, error: HeadraceError) -> None:
        with self._changed:
            self._state.fail(error)
            self._changed.notify_all()
        self._look_for_failure()

    def _look_for_failure(self) -> None:
        with self._changed:
            is_new = self._state.error is not None and not self._has_failed
            self._has_failed |= is_new
        if is_new:
            self.on_failure()

    def stop(self) -> None:
        with self._changed:
            self._state.stop()
            self._changed.notify_all()

    def run_in_turn(self, stages: Collection[str]) -> None:
        with self._changed:
            self._state.run_in_turn(stages)
            self._changed.notify_all()

    def is_due(self, stage: str) -> bool:
        with self._changed:
            is_due = self._state.is_due(stage)
            self._changed.notify_all()
            return is_due

    def seal(self, stage: str, report: SealReport) -> None:
        with self._changed:
            self._state.seal(stage, report)
            self._changed.notify_all()

    def is_over(self, stage: str) -> bool:
        with self._changed:
            return self._state.is_over(stage)

    @property
    def outcome(self) -> Outcome:
        with self._changed:
            return self._state.outcome

    @property
    def error(self) -> HeadraceError | None:
        return self._state.error

    def look(self, what: Callable[[JobState], T]) -> T:
        """Return what `what` finds in the state."""
        with self._changed:
            return what(self._state)
