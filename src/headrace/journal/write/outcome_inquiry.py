"""Asks whoever owns the workspace now what became of a commit, for as long as somebody waits."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from headrace.errors import CommitOutcome, HeadraceError, InDoubtError, UsageError
from headrace.journal.location.workspace_connection import WorkspaceConnection
from headrace.journal.write.commit_id import CommitId

_ASK_AGAIN_S = 0.1


class OutcomeInquiry:
    """Asks about one commit or one append outside of transactions. Any thread may use it."""

    def __init__(self, connection: WorkspaceConnection, id: CommitId) -> None:
        self.id = id
        self._connection = connection
        self._lock = threading.Lock()
        self._answer: Future[CommitOutcome] | None = None
        self._deadline_s = 0.0
        self._failure: HeadraceError | None = None

    def ask(self, *, fence: bool = True) -> CommitOutcome:
        """Ask once. The connection's time-outs bound how long that takes."""
        return self._connection.call(lambda journals: journals.outcome(self.id, fence))

    def outcome(self, timeout_s: float) -> CommitOutcome:
        """Ask until it is known. Raises InDoubtError after `timeout_s`, or if nobody can tell."""
        with self._lock:
            self._deadline_s = max(self._deadline_s, time.monotonic() + timeout_s)
            if self._answer is None:
                self._answer = Future()
                # Asking a stopped owner can take longer than the caller wants to wait.
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
        """The error for what is not known because of `cause`."""
        thing = "transaction" if self.id.first is None else "append"
        why = f": {cause.what}" if cause else ""
        if isinstance(cause, InDoubtError):
            # The owner has answered: it cannot tell any more.
            do = cause.do
        else:
            first = f"{cause.do}, then " if cause and cause.do else ""
            do = f"{first}ask with ws.outcome('{self.id}') before you repeat it"
        return InDoubtError(
            f"whether {thing} {self.id} committed is not known{why}", do=do, ask=self.outcome
        )

    def _is_given_up(self) -> bool:
        """Whether nobody waits any more; whoever asks later begins anew."""
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
        except BaseException as error:  # noqa: BLE001  raised by whoever waits
            with self._lock:
                if self._answer is answer:
                    self._answer = None
            answer.set_exception(error)
