"""Runs one Session. One thread carries out what the state decides.

Other threads put what Slices send, journal changes and the client's calls into its inbox.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

from headrace.errors import REPORT, HeadraceError, PeerLostError, ProtocolError, UsageError, bug
from headrace.journal.contract import Changes, Watch
from headrace.shuffle import messages
from headrace.shuffle.checkpoint import NextCheckpoint
from headrace.shuffle.peer import Peer
from headrace.shuffle.progress_delta import ProgressReport
from headrace.shuffle.session.effects import AnswerPoll, Effect, SendAllSlices, SendSlice
from headrace.shuffle.session.report_check import unreadable
from headrace.shuffle.session.state import SessionState
from headrace.shuffle.session.status import SessionStatus, session_status

_WATCH_S = 60.0
_EVENTS_MAX = 64
"""The thread handles up to this many events before the state decides what follows from them. The
decision takes as long for many reports as for one."""


class _FromSlice(NamedTuple):
    member: int
    control: Any
    bodies: tuple[Any, ...]


class _Poll(NamedTuple):
    answer: Future[NextCheckpoint | None]
    documents_max: int | None
    may_be_empty: bool


class _GiveUp(NamedTuple):
    answer: Future[NextCheckpoint | None]


class _AskStatus(NamedTuple):
    answer: Future[SessionStatus]


class _Failed(NamedTuple):
    error: HeadraceError


class SessionActor:
    """One running Session. Any failure ends it for good, and every later call raises the cause."""

    def __init__(self, state: SessionState, slices: Sequence[Peer], watch: Watch) -> None:
        self._state = state
        self._slices = slices
        self._watch = watch
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        """Events, and None once the client closes the Session."""
        self._poll: Future[NextCheckpoint | None] | None = None
        """The answer to the poll that is open in the state."""
        self._status_calls: dict[int, tuple[_AskStatus, dict[int, messages.SliceStatus]]] = {}
        self._status_calls_made = 0
        self._closing = False
        self._error: HeadraceError | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="headrace-session", daemon=True)
        self._listeners = [
            threading.Thread(target=self._listen, args=(member,), name="headrace-session-slice")
            for member in range(len(slices))
        ]
        self._listeners.append(
            threading.Thread(target=self._watch_journals, name="headrace-session-watch")
        )
        for thread in (self._thread, *self._listeners):
            thread.daemon = True
            thread.start()

    def poll(
        self, documents_max: int | None, *, may_be_empty: bool = False
    ) -> Future[NextCheckpoint | None]:
        """Return a future of the next checkpoint, or of None at the end of a cut.

        The future fails if another poll is open.
        """
        answer: Future[NextCheckpoint | None] = Future()
        self._ask(_Poll(answer, documents_max, may_be_empty))
        return answer

    def give_up(self, answer: Future[NextCheckpoint | None]) -> None:
        """Answer the poll at once: with None, unless there is a checkpoint by now."""
        self._inbox.put(_GiveUp(answer))

    def status(self) -> Future[SessionStatus]:
        """Return a future of the status of all members."""
        answer: Future[SessionStatus] = Future()
        self._ask(_AskStatus(answer))
        return answer

    def _ask(self, call: _Poll | _AskStatus) -> None:
        with self._lock:
            if self._error is None:
                self._inbox.put(call)
                return
        call.answer.set_exception(self._error)

    def cause(self, timeout_s: float) -> HeadraceError | None:
        """Return what ended the Session, or None if nothing does within the time."""
        self._ended.wait(timeout_s)
        return self._error

    def close(self) -> None:
        """End the Session and its Slices; return once every Slice was sent its end."""
        self._closing = True
        self._inbox.put(None)
        self._watch.close()
        self._thread.join()

    # -- events ----------------------------------------------------------------------------

    def _listen(self, member: int) -> None:
        error: HeadraceError = PeerLostError(
            f"member {member} ended its Slice", do="open the Shuffle again"
        )
        try:
            while (message := self._slices[member].receive()) is not None:
                self._inbox.put(_FromSlice(member, message.control, message.bodies))
        except HeadraceError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001  it ends the Session
            error = bug(f"member {member}", raised)
        self._inbox.put(_Failed(error))

    def _watch_journals(self) -> None:
        is_listed = False
        try:
            while not self._closing:
                changes = self._watch.next(_WATCH_S)
                # The first changes list the journals. The state must know even if there are none.
                if changes or not is_listed:
                    self._inbox.put(changes)
                is_listed = True
        except HeadraceError as error:
            self._inbox.put(_Failed(error))
        except Exception as error:  # noqa: BLE001  it ends the Session
            self._inbox.put(_Failed(bug("the watch", error)))

    def _run(self) -> None:
        error: HeadraceError = UsageError("the Session is closed", do="open another one")
        handled = 0
        try:
            while (event := self._inbox.get()) is not None:
                self._handle(event)
                handled += 1
                if self._inbox.empty() or handled == _EVENTS_MAX:
                    self._advance()
                    handled = 0
        except HeadraceError as raised:
            error = type(raised)(self._state.assignment.with_names(raised.what), do=raised.do)
        except Exception as raised:  # noqa: BLE001  every waiting call raises it
            error = bug("the Session", raised)
        self._end(error)

    def _handle(self, event: Any) -> None:
        match event:
            case _FromSlice(member, messages.ProgressDelta(documents), bodies):
                self._take_progress(member, documents, bodies)
            case _FromSlice(member, messages.Finished()):
                self._state.finished(member)
            case _FromSlice(member, messages.SliceStatus(number) as status) if (
                number in self._status_calls
            ):
                self._take_status(member, status)
            case _FromSlice(member, control):
                raise ProtocolError(
                    f"member {member} sent {type(control).__name__}, which nobody asked for",
                    do=REPORT,
                )
            case _AskStatus():
                self._status_calls_made += 1
                self._status_calls[self._status_calls_made] = event, {}
                self._send_all(messages.AskStatus(self._status_calls_made))
            case Changes():
                self._carry_out(self._state.journals_changed(event))
            case _Poll():
                self._open_poll(event)
            case _GiveUp(answer) if answer is self._poll:
                self._carry_out(self._state.give_up())
            case _GiveUp():
                pass  # The poll is answered already.
            case _Failed(error):
                raise error
            case _:
                raise ProtocolError(f"the Session cannot handle {event!r}", do=REPORT)

    def _take_progress(self, member: int, documents: int, bodies: tuple[Any, ...]) -> None:
        try:
            delta = ProgressReport.from_bodies([memoryview(body) for body in bodies], documents)
        except ValueError as error:
            raise unreadable(member, error) from error
        self._state.progress(member, delta)

    def _take_status(self, member: int, status: messages.SliceStatus) -> None:
        call, answers = self._status_calls[status.number]
        answers[member] = status
        if len(answers) == len(self._slices):
            del self._status_calls[status.number]
            members = [answers[number] for number in range(len(answers))]
            call.answer.set_result(session_status(self._state, members))

    def _open_poll(self, poll: _Poll) -> None:
        try:
            self._state.poll(poll.documents_max, may_be_empty=poll.may_be_empty)
        except UsageError as refusal:
            poll.answer.set_exception(refusal)
        else:
            self._poll = poll.answer

    # -- effects ---------------------------------------------------------------------------

    def _advance(self) -> None:
        self._carry_out(self._state.advance())

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendSlice(member, message):
                    self._slices[member].send(message)
                case SendAllSlices(message):
                    self._send_all(message)
                case AnswerPoll(checkpoint):
                    assert self._poll is not None
                    self._poll.set_result(checkpoint)
                    self._poll = None

    def _send_all(self, control: object) -> None:
        for peer in self._slices:
            peer.send(control)

    def _end(self, error: HeadraceError) -> None:
        with self._lock:
            self._error = error
        self._ended.set()
        self._watch.close()
        for peer in self._slices:
            if self._closing:
                peer.leave()
            else:
                peer.fail(error)
        unanswered: list[Future[Any]] = [call.answer for call, _ in self._status_calls.values()]
        unanswered += [self._poll] if self._poll else []
        while not self._inbox.empty():
            event = self._inbox.get()
            if isinstance(event, _Poll | _AskStatus):
                unanswered.append(event.answer)
        for answer in unanswered:
            answer.set_exception(error)
