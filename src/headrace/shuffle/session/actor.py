"""Runs one Session: one thread decides; Slices, the watch and the client report to it."""

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
from headrace.shuffle.progress_delta import Delta
from headrace.shuffle.session.effects import AnswerPoll, Effect, SendAllSlices, SendSlice
from headrace.shuffle.session.report_check import unreadable
from headrace.shuffle.session.state import SessionState
from headrace.shuffle.session.status import SessionStatus, session_status

_WATCH_S = 60.0
_EVENTS_MAX = 64
"""The thread handles up to this many events before the state decides what follows from them: the
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


class _Ask(NamedTuple):
    answer: Future[SessionStatus]


class _Failed(NamedTuple):
    error: HeadraceError


class SessionActor:
    """Any failure ends it, once and for all: every later poll raises the cause."""

    def __init__(self, state: SessionState, slices: Sequence[Peer], watch: Watch) -> None:
        self._state = state
        self._slices = slices
        self._watch = watch
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._poll: Future[NextCheckpoint | None] | None = None
        """The poll that is open in the state."""
        self._asked: dict[int, tuple[_Ask, dict[int, messages.SliceStatus]]] = {}
        self._asks = 0
        self._closing = False
        self._error: HeadraceError | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="headrace-session", daemon=True)
        self._others = [
            threading.Thread(target=self._listen, args=(at,), name="headrace-session-slice")
            for at in range(len(slices))
        ]
        self._others.append(threading.Thread(target=self._observe, name="headrace-session-watch"))
        for thread in (self._thread, *self._others):
            thread.daemon = True
            thread.start()

    def poll(
        self, documents_max: int | None, *, may_be_empty: bool = False
    ) -> Future[NextCheckpoint | None]:
        """The next checkpoint, once there is one; None at the end of a cut. One poll at a time."""
        answer: Future[NextCheckpoint | None] = Future()
        self._ask(_Poll(answer, documents_max, may_be_empty))
        return answer

    def give_up(self, answer: Future[NextCheckpoint | None]) -> None:
        """A poll is answered at once: None unless there is a checkpoint by now."""
        self._inbox.put(_GiveUp(answer))

    def status(self) -> Future[SessionStatus]:
        """How all members stand."""
        answer: Future[SessionStatus] = Future()
        self._ask(_Ask(answer))
        return answer

    def _ask(self, asked: _Poll | _Ask) -> None:
        with self._lock:
            if self._error is None:
                self._inbox.put(asked)
                return
        asked.answer.set_exception(self._error)

    def cause(self, timeout_s: float) -> HeadraceError | None:
        """What ended the Session, if it ends within the time."""
        self._ended.wait(timeout_s)
        return self._error

    def close(self) -> None:
        """Every Slice is told to end; returns when they have heard."""
        self._closing = True
        self._inbox.put(None)
        self._watch.close()
        self._thread.join()

    # -- what is said ----------------------------------------------------------------------

    def _listen(self, member: int) -> None:
        error: HeadraceError = PeerLostError(f"member {member} ended its Slice", do="open again")
        try:
            while (message := self._slices[member].receive()) is not None:
                self._inbox.put(_FromSlice(member, message.control, message.bodies))
        except HeadraceError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001  it ends the Session
            error = bug(f"member {member}", raised)
        self._inbox.put(_Failed(error))

    def _observe(self) -> None:
        listed = False
        try:
            while not self._closing:
                changes = self._watch.next(_WATCH_S)
                # The first says which journals there are, and there may be none.
                if changes or not listed:
                    self._inbox.put(changes)
                listed = True
        except HeadraceError as error:
            self._inbox.put(_Failed(error))
        except Exception as error:  # noqa: BLE001  it ends the Session
            self._inbox.put(_Failed(bug("the watch", error)))

    def _run(self) -> None:
        error: HeadraceError = UsageError("the Session is closed", do="open another")
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
        except Exception as raised:  # noqa: BLE001  told to everybody, as any failure is
            error = bug("the Session", raised)
        self._end(error)

    def _handle(self, event: Any) -> None:
        match event:
            case _FromSlice(member, messages.ProgressDelta(documents), bodies):
                self._take_progress(member, documents, bodies)
            case _FromSlice(member, messages.Finished()):
                self._state.finished(member)
            case _FromSlice(member, messages.SliceStatus(number) as status) if (
                number in self._asked
            ):
                self._take_status(member, status)
            case _FromSlice(member, control):
                raise ProtocolError(
                    f"member {member} sent {type(control).__name__}, not asked for",
                    do=REPORT,
                )
            case _Ask():
                self._asks += 1
                self._asked[self._asks] = event, {}
                self._send_all(messages.AskStatus(self._asks))
            case Changes():
                self._carry_out(self._state.journals_changed(event))
            case _Poll():
                self._open_poll(event)
            case _GiveUp(answer) if answer is self._poll:
                self._carry_out(self._state.give_up())
            case _GiveUp():
                pass  # It was answered before.
            case _Failed(error):
                raise error
            case _:
                raise ProtocolError(f"a Session was told {event!r}", do=REPORT)

    def _take_progress(self, member: int, documents: int, bodies: tuple[Any, ...]) -> None:
        try:
            delta = Delta.from_bodies([memoryview(body) for body in bodies], documents)
        except ValueError as error:
            raise unreadable(member, error) from error
        self._state.progress(member, delta)

    def _take_status(self, member: int, status: messages.SliceStatus) -> None:
        ask, answers = self._asked[status.number]
        answers[member] = status
        if len(answers) == len(self._slices):
            del self._asked[status.number]
            members = [answers[at] for at in range(len(answers))]
            ask.answer.set_result(session_status(self._state, members))

    def _open_poll(self, poll: _Poll) -> None:
        try:
            self._state.poll(poll.documents_max, may_be_empty=poll.may_be_empty)
        except UsageError as refusal:
            poll.answer.set_exception(refusal)
        else:
            self._poll = poll.answer

    # -- what the state decides ------------------------------------------------------------

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
        for channel in self._slices:
            channel.send(control)

    def _end(self, error: HeadraceError) -> None:
        with self._lock:
            self._error = error
        self._ended.set()
        self._watch.close()
        for channel in self._slices:
            if self._closing:
                channel.leave()
            else:
                channel.fail(error)
        unanswered: list[Future[Any]] = [ask.answer for ask, _ in self._asked.values()]
        unanswered += [self._poll] if self._poll else []
        while not self._inbox.empty():
            event = self._inbox.get()
            if isinstance(event, _Poll | _Ask):
                unanswered.append(event.answer)
        for answer in unanswered:
            answer.set_exception(error)
