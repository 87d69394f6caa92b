"""A commit that was sent: waiting for its answer, and asking if the answer is lost."""

from __future__ import annotations

from concurrent.futures import Future

from headrace.errors import (
    CommitOutcome,
    HeadraceError,
    InDoubtError,
    PublishError,
    TransportError,
)
from headrace.journal.write.outcome_inquiry import OutcomeInquiry


class PendingCommit:
    """A commit that was sent and not yet answered."""

    def __init__(self, inquiry: OutcomeInquiry, sent: Future[None]) -> None:
        self._inquiry = inquiry
        self._sent = sent
        self._outcome: CommitOutcome | None = None

    @property
    def id(self) -> str:
        """Names the commit for `ws.outcome`, in this process and any other."""
        return str(self._inquiry.id)

    @property
    def _is_known(self) -> bool:
        """Whether `result` has returned, or said that it was rolled back."""
        return self._outcome is not None

    def done(self) -> bool:
        return self._sent.done()

    def result(self) -> None:
        """Return once committed; raise InDoubtError if that cannot be learned in time.

        Any other error of ours says that it was rolled back. Called again it asks again.
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

    def _ask(self, lost: Exception) -> CommitOutcome:
        try:
            return self._inquiry.ask()
        except HeadraceError as error:
            raise self._inquiry.in_doubt(error) from lost

    def _learn(self) -> None:
        """Ask the owner that was just told to roll back: nothing of it is under way any more."""
        self._outcome = self._inquiry.ask(fence=False)


class _InterruptedError(Exception):
    """Sending a commit was interrupted: it may have been sent."""

    what = "sending the commit was interrupted"


def interrupted() -> Future[None]:
    """Stands for an answer that nobody waits for any more."""
    sent: Future[None] = Future()
    sent.set_exception(_InterruptedError())
    return sent


def rolled_back(lost: HeadraceError | _InterruptedError) -> PublishError:
    return PublishError(
        f"the transaction was rolled back: {lost.what}",
        do="repeat it; a publisher with a name must be opened again first",
    )
