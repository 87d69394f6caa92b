"""Serves the journals of a workspace to other processes.

A conversation is a lease: when it ends without a word, or its peer is silent for too long, every
producer it held is fenced and what it had pending is rolled back.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from typing import Any

import msgspec

from headrace.errors import HeadraceError, UsageError, to_wire
from headrace.journal.contract import Changes, Frame, Write
from headrace.journal.local.local_journals import LocalJournals
from headrace.journal.local.owner import Owner
from headrace.journal.wire import messages
from headrace.journal.wire.fetches import Fetches
from headrace.journal.wire.frame_codec import packed
from headrace.journal.wire.messages import Answer, Ask, Changed, Refusal
from headrace.settings import MIB
from headrace.transport import Channel, Message

_FRAMES_BYTES = 1 * MIB
_FRAMES_MOST = 1024
_OBSERVE_S = 60.0

_Answer = Message[Answer | messages.Fetched | messages.PointedOut]

_NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


class JournalService:
    """`transport.Service` for any number of clients."""

    requests = messages.requests

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._clients = count(1)

    def converse(self, channel: Channel[messages.Request]) -> None:
        journals = LocalJournals(self._owner, next(self._clients))
        fetches = Fetches(self._owner)
        answers: SimpleQueue[_Answer | None] = SimpleQueue()
        answering = threading.Thread(
            target=_send_answers, args=(channel, answers), name="headrace-answers", daemon=True
        )
        answering.start()
        try:
            while (message := channel.receive()) is not None:
                self._take(journals, fetches, message, answers)
        finally:
            answers.put(None)
            journals.lost()
            answering.join()

    def _take(
        self,
        journals: LocalJournals,
        fetches: Fetches,
        message: Message[messages.Request],
        answers: SimpleQueue[Any],
    ) -> None:
        """Start or do what one message asks for; its answer goes to `answers`."""
        ask = message.control
        if not isinstance(ask, Ask):
            raise UsageError(f"{type(ask).__name__} opens a stream", do="send requests only")
        try:
            if isinstance(ask.call, messages.Fetch):
                answers.put(fetches.answer(ask.number, ask.call))
            elif isinstance(ask.call, Write):
                written = journals.write(ask.call, message.bodies)
                written.add_done_callback(lambda done: answers.put(_written(ask.number, done)))
            else:
                value = msgspec.Raw(msgspec.msgpack.encode(_call(journals, ask.call)))
                answers.put(Message(Answer(ask.number, value)))
        except HeadraceError as error:
            answers.put(_refused(ask.number, error))

    def stream(
        self, request: Any, channel: Channel[messages.Request]
    ) -> Generator[Message[Any], None, None]:
        match request:
            case messages.Read():
                frames = self._owner.read(
                    request.journal, request.offset, request.through, request.committed
                )
                yield from _batches(frames)
            case messages.Observe():
                yield from self._observe(request, channel)
            case _:
                raise UsageError(f"{type(request).__name__} is not a stream", do="converse")

    def _observe(
        self, request: messages.Observe, channel: Channel[messages.Request]
    ) -> Generator[Message[Any], None, None]:
        watch = self._owner.watch(*request.selectors)
        channel.on_end(watch.close)
        try:
            first = True
            while not channel.ended:
                changes: Changes = watch.next(0 if first else _OBSERVE_S)
                if changes or first:
                    yield Message(Changed(changes.created, changes.deleted, changes.heads))
                first = False
        except UsageError:
            if not channel.ended:
                raise
        finally:
            watch.close()


def _call(journals: LocalJournals, call: messages.AnyCall) -> Any:
    match call:
        case messages.PutCollection():
            return journals.put_collection(call.collection)
        case messages.DeleteCollection():
            return journals.delete_collection(call.name)
        case messages.ListCollections():
            return journals.collections()
        case messages.CreateJournals():
            return journals.create_journals(call.collection, call.incarnation, call.partitions)
        case messages.DeleteJournals():
            return journals.delete_journals(call.names)
        case messages.ListJournals():
            return journals.journals(call.selector)
        case messages.OpenPublisher():
            return journals.open_publisher(call.name)
        case messages.ClosePublisher():
            return journals.close_publisher(call.producer, call.holder)
        case messages.Rollback():
            return journals.rollback(call.producer, call.holder)
        case messages.Begin():
            return journals.begin(call.producer, call.holder)
        case messages.Join():
            return journals.join(call.transaction)
        case messages.Prepare():
            return journals.prepare(call.prepared)
        case messages.JournalNames():
            return journals.journal_names(call.journals)
        case messages.AskOutcome():
            return journals.outcome(call.asked, call.fence)


def _written(number: int, done: Future[None]) -> _Answer:
    error = done.exception()
    return _refused(number, error) if error else Message(Answer(number, _NOTHING))


def _refused(number: int, error: BaseException) -> _Answer:
    return Message(Answer(number, _NOTHING, Refusal(*to_wire(error))))


def _send_answers(channel: Channel[Any], answers: SimpleQueue[_Answer | None]) -> None:
    """In a thread of its own: a slow client must not hold up the log, which reports to here."""
    while (answer := answers.get()) is not None:
        try:
            channel.send(answer.control, answer.bodies)
        except UsageError as error:
            refusal = UsageError(error.what, do="ask for less at once")
            # If it is not too large but the conversation is over, nobody waits for it.
            with suppress(HeadraceError):
                channel.send(_refused(answer.control.number, refusal).control)
        except Exception as error:  # noqa: BLE001  both sides are told
            channel.fail(error)
            return


def _batches(frames: Iterable[Frame]) -> Generator[Message[Any], None, None]:
    batch: list[Frame] = []
    size = 0
    for frame in frames:
        batch.append(frame)
        size += frame.bytes
        if size > _FRAMES_BYTES or len(batch) == _FRAMES_MOST:
            yield Message(*packed(batch))
            batch, size = [], 0
    if batch:
        yield Message(*packed(batch))
