"""A commit that was sent: waits for its answer, and asks the next owner if the answer is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from headrace.errors import (
    CommitOutcome,
    HeadraceError,
    InDoubtError,
    PublishError,
    TransportError,
    UsageError,
)
from headrace.ids import JournalId, Offset
from headrace.journal.contract import DocsHead, Written
from headrace.journal.location.workspace_connection import WorkspaceConnection
from headrace.journal.write.commit_id import AppendedFrame, CommitId

_ASK_AGAIN_S = 0.1


class OutcomeInquiry:
    """Asks the owner what became of one commit or append. Any thread may use it."""

    def __init__(self, connection: WorkspaceConnection, id: CommitId) -> None:
        self.id = id
        self._connection = connection
        self._lock = threading.Lock()
        self._answer: Future[CommitOutcome] | None = None
        self._deadline_s = 0.0
        self._failure: HeadraceError | None = None

    def ask(self, *, fence: bool = True) -> CommitOutcome:
        """Ask once. The time-outs of the connection bound how long this takes."""
        return self._connection.call(lambda journals: journals.outcome(self.id, fence))

    def frame_offsets(self, frames: Sequence[AppendedFrame]) -> list[Offset]:
        """Return the offsets of frames that the commit's producer has written."""
        return self._connection.call(lambda j: j.frame_offsets(self.id.producer, frames))

    def outcome(self, timeout_s: float) -> CommitOutcome:
        """Ask until an owner tells. Raises InDoubtError after `timeout_s`, or if none can tell."""
        with self._lock:
            self._deadline_s = max(self._deadline_s, time.monotonic() + timeout_s)
            if self._answer is None:
                self._answer = Future()
                # A stopped owner can take longer to answer than the caller wants to wait.
                threading.Thread(
                    target=self._ask_until_known,
                    args=(self._answer,),
                    name=f"headrace-outcome-{self.id}",
                    daemon=True,
                ).start()
            answer = self._answer
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            raise self.in_doubt(self._failure) from self._failure

    def in_doubt(self, cause: HeadraceError | None) -> InDoubtError:
        """Return the error that says that nobody knows the outcome because of `cause`."""
        thing = "transaction" if self.id.first is None else "append"
        why = f": {cause.what}" if cause else ""
        if isinstance(cause, InDoubtError):
            # The owner has answered that it can no longer tell.
            do = cause.do
        else:
            first = f"{cause.do}, then " if cause and cause.do else ""
            do = f"{first}ask with ws.outcome('{self.id}') before you repeat it"
        return InDoubtError(
            f"nobody knows yet whether {thing} {self.id} committed{why}", do=do, ask=self.outcome
        )

    def _is_given_up(self) -> bool:
        """Return True if nobody waits any more; the next caller then starts a new thread."""
        with self._lock:
            is_late = time.monotonic() > self._deadline_s
            if is_late:
                self._answer = None
            return is_late

    def _ask_until_known(self, answer: Future[CommitOutcome]) -> None:
        try:
            while True:
                try:
                    answer.set_result(self.ask())
                    return
                except InDoubtError as error:
                    raise self.in_doubt(error) from error
                except UsageError:
                    raise
                except HeadraceError as error:
                    self._failure = error
                    if self._is_given_up():
                        raise self.in_doubt(error) from error
                time.sleep(_ASK_AGAIN_S)
        except BaseException as error:  # noqa: BLE001  the callers raise it
            with self._lock:
                if self._answer is answer:
                    self._answer = None
            answer.set_exception(error)


class PendingCommit:
    """A commit that was sent and may not be answered yet."""

    def __init__(
        self, inquiry: OutcomeInquiry, sent: Written, heads: Sequence[DocsHead] = ()
    ) -> None:
        self._inquiry = inquiry
        self._sent = sent
        self._heads = heads
        self._outcome: CommitOutcome | None = None

    @property
    def id(self) -> str:
        """The name of the commit for `ws.outcome`, in any process."""
        return str(self._inquiry.id)

    @property
    def _is_known(self) -> bool:
        """True if `result` has returned, or has raised that the commit was rolled back."""
        return self._outcome is not None

    def done(self) -> bool:
        return self._sent.done()

    def result(self) -> None:
        """Return once the commit took effect; raise InDoubtError if nobody can tell in time.

        After any other error of Headrace it was rolled back. Another call asks again.
        """
        try:
            self._sent.result()
        except (TransportError, InDoubtError, _InterruptedError) as lost:
            if self._outcome is None:
                self._outcome = self._ask(lost)
            if self._outcome is not CommitOutcome.COMMITTED:
                raise rolled_back(lost) from lost
        except HeadraceError:
            self._outcome = CommitOutcome.ROLLED_BACK
            raise
        self._outcome = CommitOutcome.COMMITTED

    def offsets(self) -> list[tuple[JournalId, int, Offset]]:
        """Return journal, number of documents and offset of each frame that went with the commit.

        Raises what `result` raises. If the answer was lost, it asks the next owner for the offsets,
        and raises InDoubtError if somebody has already removed the frames.
        """
        self.result()
        if self._sent.exception():
            frames = [AppendedFrame(head.journal, head.clock) for head in self._heads]
            offsets = self._inquiry.frame_offsets(frames)
        else:
            offsets = list(self._sent.result())
        return [
            (head.journal, head.documents, offset)
            for head, offset in zip(self._heads, offsets, strict=True)
        ]

    def _ask(self, lost: Exception) -> CommitOutcome:
        try:
            return self._inquiry.ask()
        except HeadraceError as error:
            raise self._inquiry.in_doubt(error) from lost

    def _learn(self) -> None:
        """Ask the owner that has just rolled back, so that nothing is under way any more."""
        self._outcome = self._inquiry.ask(fence=False)


class _InterruptedError(Exception):
    """Ctrl-C interrupted the sending of a commit, which may have been sent."""

    what = "sending the commit was interrupted"


def interrupted() -> Written:
    """Return a future for a commit whose sending was interrupted."""
    sent: Written = Future()
    sent.set_exception(_InterruptedError())
    return sent


def rolled_back(lost: HeadraceError | _InterruptedError) -> PublishError:
    return PublishError(
        f"the transaction was rolled back: {lost.what}",
        do="repeat it; a publisher with a name must be opened again first",
    )
