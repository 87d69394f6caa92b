"""Serves the journals of a workspace to other processes.

A conversation is a lease. When it ends, or its peer is silent for too long, the owner fences every
producer that the conversation held and rolls back what they have pending.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from typing import Any

import msgspec

from headrace.errors import HeadraceError, UsageError, to_wire
from headrace.journal.contract import Changes, Frame, Write, Written, until_full
from headrace.journal.hint_tables import WIDE_BYTES, HintTableCache
from headrace.journal.local.local_journals import LocalJournals
from headrace.journal.local.log_frames import DOCS_ROW, FrameLocation, encode_locations
from headrace.journal.local.owner import Owner
from headrace.journal.local.records import ACK_BYTES
from headrace.journal.wire import messages
from headrace.journal.wire.frame_codec import FrameEncoder, Frames
from headrace.journal.wire.messages import (
    Ask,
    Changed,
    Fetched,
    FetchRequest,
    JournalAnswer,
    Located,
    Refusal,
)
from headrace.settings import MIB
from headrace.transport import Channel, Message

_FRAMES_BYTES = 1 * MIB
_FRAMES_MAX = 1024
_OBSERVE_S = 60.0

_Answer = Message[JournalAnswer | Fetched | Located]

_NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


class JournalService:
    """`transport.Service` for any number of clients."""

    requests = messages.requests

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._clients = count(1)

    def converse(self, channel: Channel[messages.Request]) -> None:
        journals = LocalJournals(self._owner, next(self._clients))
        fetches = FetchAnswers(self._owner)
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
            journals.end_leases()
            answering.join()

    def _take(
        self,
        journals: LocalJournals,
        fetches: FetchAnswers,
        message: Message[messages.Request],
        answers: SimpleQueue[Any],
    ) -> None:
        """Carry out one request; its answer goes to `answers`, now or when it is known."""
        ask = message.control
        if not isinstance(ask, Ask):
            raise UsageError(
                f"{type(ask).__name__} opens a stream and is no request", do="send an Ask"
            )
        try:
            if isinstance(ask.call, FetchRequest):
                answers.put(fetches.answer(ask.number, ask.call))
            elif isinstance(ask.call, Write):
                written = journals.write(ask.call, message.bodies)
                written.add_done_callback(lambda done: answers.put(_written(ask.number, done)))
            else:
                value = msgspec.Raw(msgspec.msgpack.encode(ask.call.perform(journals)))
                answers.put(Message(JournalAnswer(ask.number, value)))
        except HeadraceError as error:
            answers.put(_refused(ask.number, error))

    def stream(
        self, request: Any, channel: Channel[messages.Request]
    ) -> Generator[Message[Any], None, None]:
        match request:
            case messages.ReadRequest():
                frames = self._owner.read(
                    request.journal, request.offset, request.through, request.committed
                )
                yield from _batches(frames)
            case messages.Observe():
                yield from self._observe(request, channel)
            case _:
                raise UsageError(
                    f"{type(request).__name__} opens no stream", do="send it in a conversation"
                )

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


class FetchAnswers:
    """Answers the fetches of one conversation.

    It sends a wide hint table once, and afterwards only its position, for as long as the reader
    remembers the table: both ends forget by the same rule. A reader that forgot a table sooner asks
    anew, and gets all tables.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._sent: HintTableCache[bool] = HintTableCache()
        self._located: HintTableCache[bool] = HintTableCache()
        """Kept apart from `_sent`: the reader may find that it cannot read the files."""

    def answer(self, number: int, fetch: FetchRequest) -> Message[Fetched | Located]:
        directory = self._owner.directory
        if not fetch.kernel or fetch.kernel != directory.kernel:
            return self._frames(number, fetch)
        found = self._owner.locations(fetch.journal, fetch.offset, fetch.through)
        locations = until_full(found, fetch.bytes_max, self._bytes_to_read)
        return Message(Located(number, directory, encode_locations(locations)))

    def _bytes_to_read(self, location: FrameLocation) -> int:
        extent = location.extent
        if location.row != DOCS_ROW and _is_known(self._located, extent.offset, extent.bytes):
            return ACK_BYTES
        return extent.bytes

    def _frames(self, number: int, fetch: FetchRequest) -> Message[Fetched | Located]:
        encoder = FrameEncoder()
        left = fetch.bytes_max
        for frame, position in self._owner.positioned(fetch.journal, fetch.offset, fetch.through):
            is_known = False
            if frame.hints is not None and position not in encoder.tables:
                is_known = _is_known(self._sent, position, frame.hints.nbytes) and not fetch.anew
            left -= encoder.add(frame, position, is_known=is_known)
            if left <= 0:
                break
        answer = Fetched(number, encoder.frames, list(encoder.tables))
        return Message(answer, tuple(encoder.bodies))


def _is_known(tables: HintTableCache[bool], position: int, table_bytes: int) -> bool:
    """Return True if the reader has a table already. A wide one it has from now on."""
    if table_bytes <= WIDE_BYTES:
        return False
    if tables.get(position):
        return True
    tables.put(position, True, table_bytes)
    return False


def _written(number: int, done: Written) -> _Answer:
    error = done.exception()
    if error:
        return _refused(number, error)
    return Message(JournalAnswer(number, msgspec.Raw(msgspec.msgpack.encode(done.result()))))


def _refused(number: int, error: BaseException) -> _Answer:
    return Message(JournalAnswer(number, _NOTHING, Refusal(*to_wire(error))))


def _send_answers(channel: Channel[Any], answers: SimpleQueue[_Answer | None]) -> None:
    """Send answers in a thread of its own: a slow client must not hold up the log's reports."""
    while (answer := answers.get()) is not None:
        try:
            channel.send(answer.control, answer.bodies)
        except UsageError as error:
            refusal = UsageError(error.what, do="ask for less at once")
            # This fails too if the conversation is over, and then nobody waits for the answer.
            with suppress(HeadraceError):
                channel.send(_refused(answer.control.number, refusal).control)
        except Exception as error:  # noqa: BLE001  both sides get it
            channel.fail(error)
            return


def _batches(frames: Iterable[Frame]) -> Generator[Message[Any], None, None]:
    batch: list[Frame] = []
    size = 0
    for frame in frames:
        batch.append(frame)
        size += frame.bytes
        if size > _FRAMES_BYTES or len(batch) == _FRAMES_MAX:
            yield _frames_message(batch)
            batch, size = [], 0
    if batch:
        yield _frames_message(batch)


def _frames_message(batch: list[Frame]) -> Message[Frames]:
    encoder = FrameEncoder()
    for frame in batch:
        # `batch` keeps every table alive, so no two of them have the same id.
        encoder.add(frame, id(frame.hints))
    return Message(encoder.frames, tuple(encoder.bodies))
