"""Messages and reports that make no sense end what they came to, and say why."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.errors import (
    DataError,
    HeadraceError,
    PeerLostError,
    ProtocolError,
    TransportError,
)
from headrace.frontier import JOURNAL_ROW, place
from headrace.ids import Offset
from headrace.settings import ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.messages import MemberAt, ReadStart
from headrace.shuffle.progress_delta import ProgressReport
from headrace.shuffle.routing import Range
from headrace.testing.crash import eventually
from headrace.transport import Channel, Client
from tests.shuffle.builders import head, source
from tests.shuffle.fake_member import Nonsense, fake_member, linger, open_well
from tests.shuffle.real_task import SOON_S, Task, soon, swift, threads_of_sessions


def opening(task: Task, member: int = 0, session: str = "s") -> messages.OpenSlice:
    """Of a Session with one member."""
    return messages.OpenSlice(
        session,
        member,
        (MemberAt(task.addresses[0], Range()),),
        (source(0, "a", key=("n",), schema=task.workspace.collection("a").schema),),
        task.workspace.reach(),
        ShuffleSettings(),
    )


def open_queue(session: str = "q", slice: int = 0) -> messages.OpenQueue:
    return messages.OpenQueue(session, 0, slice, 2, (source(0, "a"),), ShuffleSettings())


@contextmanager
def talking(task: Task, kind: str) -> Iterator[Channel[Any]]:
    with Client(task.addresses[0], swift()) as client:
        yield client.converse(kind, msgspec.msgpack.Decoder())


APPEND = messages.Append(head((1, 1, 1, 1)))
UNKNOWN_READ = ReadStart(place(0, 9), 1, "a/0000", Offset(0), Offset(10))  # type: ignore[arg-type]
NO_BINDING = f"the task has no binding for place {place(0, 9)}; report it to"


# proves G13
@pytest.mark.parametrize(
    ("kind", "said", "error"),
    [
        (messages.SLICE, [messages.Tags([])], "a Slice got Tags before it was opened"),
        (messages.SLICE, [Nonsense()], "sent a malformed message"),
        (messages.SLICE, ["open", "open"], "a Slice got OpenSlice after it was opened"),
        (messages.SLICE, ["open", messages.StartRead([UNKNOWN_READ])], NO_BINDING),
        (messages.SLICE, ["open", messages.StopRead([place(0, 9)], 0)], NO_BINDING),
        (messages.QUEUE, [messages.Flush(1, 0)], "a Queue got Flush before it was opened"),
        (messages.QUEUE, [open_queue(), open_queue()], "Slice 0 sent a Queue OpenQueue"),
        (messages.QUEUE, [open_queue(), APPEND], "Slice 0 sent a Queue Append with 0 bodies"),
        (messages.QUEUE, [open_queue(), messages.Acks(7, ())], "sent lane 7 of 1; report it to"),
        (messages.QUEUE, [open_queue(), messages.Flush(1, 7)], "sent lane 7 of 1; report it to"),
        (messages.QUEUE, [open_queue(), messages.Bounds((1, 1))], "sent bounds of 2 lanes, not 1"),
        (messages.QUEUE, [open_queue(), Nonsense()], "sent a malformed message"),
    ],
)
def test_messages_that_make_no_sense_end_the_conversation_and_say_why(
    task: Task, kind: str, said: list[Any], error: str
) -> None:
    with soon(), talking(task, kind) as channel:
        for each in said:
            channel.send(opening(task) if each == "open" else each)
        with pytest.raises(HeadraceError, match=error):
            deque(iter(lambda: channel.receive(SOON_S), None))
    task.append(0, 4)
    task.open("a")
    assert sum(len(shown.documents) for shown in task.take(4)) == 4


# proves G13
def test_a_queue_serves_each_slice_once(task: Task) -> None:
    with talking(task, messages.QUEUE) as first, talking(task, messages.QUEUE) as second:
        first.send(open_queue())
        assert first.receive(SOON_S) is not None
        second.send(open_queue())
        with pytest.raises(ProtocolError, match="Slice 0 opened this Queue twice"):
            second.receive(SOON_S)


# proves G13
@pytest.mark.parametrize(
    ("request_of", "error", "text"),
    [
        (lambda s: messages.ReadCheckpoint("other", 1, b""), PeerLostError, "has no Queue here"),
        (lambda s: messages.ReadCheckpoint(s, 1, b"?"), DataError, "a checkpoint is damaged"),
        (lambda s: Nonsense(), TransportError, "sent a malformed request"),
    ],
)
def test_readers_that_ask_for_nonsense_are_told(
    task: Task, request_of: Callable[[str], object], error: type[HeadraceError], text: str
) -> None:
    shuffle = task.open("a")
    with Client(task.addresses[0], swift()) as client, pytest.raises(error, match=text):
        list(client.stream(messages.READER, request_of(shuffle.session), msgspec.msgpack.Decoder()))
    task.append(0, 4)
    assert sum(len(shown.documents) for shown in task.take(4)) == 4


Said = tuple[object, list[bytes]]
"""A message and its bodies."""

MANY = [b""] * 4
NOWHERE = ProgressReport(np.array([(place(0, 9), 10)], JOURNAL_ROW)).bodies()
BEYOND = ProgressReport(np.array([(place(0, 0), 1 << 62)], JOURNAL_ROW)).bodies()
STATUS = messages.SliceStatus(7, {}, [], 0, "", [], True)


def say(channel: Channel[Any], opened: Any, said: Said) -> None:
    """Open well, and when told to read, say this."""
    channel.send(messages.Opened(opened.session))
    while (message := channel.receive()) is not None:
        if isinstance(message.control, messages.StartRead):
            channel.send(*said)


UNREADABLE = "^member 0 sent a ProgressDelta that cannot be read: "


# proves G13
@pytest.mark.parametrize(
    ("said", "kind", "error"),
    [
        ((messages.ProgressDelta(1), []), ProtocolError, UNREADABLE + "it has 0 tables, not 4"),
        ((messages.ProgressDelta(1), [b""]), ProtocolError, UNREADABLE + "it has 1 tables, not 4"),
        ((messages.ProgressDelta(1), [b"123", *MANY[1:]]), ProtocolError, UNREADABLE + "table 1"),
        ((messages.ProgressDelta(-1), MANY), ProtocolError, UNREADABLE + "it counts -1 documents"),
        (
            (messages.ProgressDelta(1), NOWHERE),
            ProtocolError,
            UNREADABLE + "it is about journal a/0000 of binding '9', which it does not read",
        ),
        (
            (messages.ProgressDelta(1), BEYOND),
            ProtocolError,
            UNREADABLE + "journal a/0000 of binding 'a' is read through 4611686018427387904, and",
        ),
        (
            (messages.Opened("s"), []),
            ProtocolError,
            "^member 0 sent Opened, which nobody asked for",
        ),
        (
            (STATUS, []),
            ProtocolError,
            "^member 0 sent SliceStatus, which nobody asked for",
        ),
        ((Nonsense(), []), TransportError, "^member 0: shuffle-slice at .* sent a malformed"),
        ((7, []), TransportError, "^member 0: shuffle-slice at .* sent a malformed"),
    ],
)
def test_a_slice_that_makes_no_sense_ends_the_session_and_is_named(
    task: Task, said: Said, kind: type[HeadraceError], error: str
) -> None:
    task.append(0, 4)
    with fake_member(slice=lambda c, o: say(c, o, said)) as fake, soon():
        task.open("a", members=[fake.address], service=swift())
        for _ in range(2):
            with pytest.raises(kind, match=error):
                task.shuffle.next_checkpoint(SOON_S)
        task.leave()
    eventually(lambda: not threads_of_sessions(), SOON_S, "nothing is left")


def answer(channel: Channel[Any], opened: Any, said: object) -> None:
    """Open well, and answer the first bounds with this."""
    channel.send(messages.QueueOpened(opened.session))
    while not isinstance(channel.receive().control, messages.Bounds):  # type: ignore[union-attr]
        pass
    channel.send(said)
    linger(channel)


# proves G13
@pytest.mark.parametrize(
    ("said", "kind", "error"),
    [
        (
            messages.Flushed(7),
            ProtocolError,
            "the Queue of member 1 answered Flush 7, which does not",
        ),
        (
            messages.Grant(9, 1),
            ProtocolError,
            "the Queue of member 1 gave credit for the unknown lane",
        ),
        (
            messages.Grant(-1, 1),
            ProtocolError,
            "the Queue of member 1 gave credit for the unknown lane",
        ),
        (messages.QueueOpened("s"), ProtocolError, "the Queue of member 1 sent QueueOpened"),
        (Nonsense(), TransportError, "the Queue of member 1: shuffle-queue .* sent a malformed"),
        (7, TransportError, "the Queue of member 1: shuffle-queue .* sent a malformed"),
    ],
)
def test_a_queue_that_makes_no_sense_ends_the_session_and_is_named(
    task: Task, said: object, kind: type[HeadraceError], error: str
) -> None:
    task.append(0, 4)
    with fake_member(slice=open_well, queue=lambda c, o: answer(c, o, said)) as fake, soon():
        task.open("a", members=[task.addresses[0], fake.address], service=swift())
        with pytest.raises(kind, match=f"^member 0: {error}"):
            task.shuffle.next_checkpoint(SOON_S)
        task.leave()
    eventually(lambda: not threads_of_sessions(), SOON_S, "nothing is left")
