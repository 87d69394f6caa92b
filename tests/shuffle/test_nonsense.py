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
    NotFoundError,
    ProtocolError,
    TransportError,
)
from headrace.frontier import JOURNAL_ROW, place
from headrace.ids import Offset
from headrace.settings import ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.delta import Delta
from headrace.shuffle.messages import MemberAt
from headrace.shuffle.routing import Range
from headrace.shuffle.slice.read import Start
from headrace.transport import Channel, Client
from tests.shuffle.made import head, source
from tests.shuffle.odd import odd_member
from tests.shuffle.running import SOON_S, Task, soon, swift


def opening(task: Task, member: int = 0, session: str = "s") -> messages.OpenSlice:
    """Of a Session with one member."""
    return messages.OpenSlice(
        session,
        member,
        (MemberAt(task.addresses[0], Range()),),
        (source(0, "a", key=("n",), schema=task.workspace.collection("a").schema),),
        task.workspace.place,
        "",
        ShuffleSettings(),
    )


def open_queue(session: str = "q", slice: int = 0) -> messages.OpenQueue:
    return messages.OpenQueue(session, 0, slice, 2, (source(0, "a"),), ShuffleSettings())


@contextmanager
def talking(task: Task, kind: str) -> Iterator[Channel[Any]]:
    with Client(task.addresses[0], swift()) as client:
        yield client.converse(kind, msgspec.msgpack.Decoder())


class Nonsense(msgspec.Struct, tag="nonsense"):
    number: int = 0


UNKNOWN_READ = Start(place(0, 9), 1, "a/0000", 9, Offset(0), Offset(10))  # type: ignore[arg-type]


# proves G13
@pytest.mark.parametrize(
    ("kind", "said", "error"),
    [
        (messages.SLICE, [messages.Tags([])], "a Slice was told Tags before it was opened"),
        (messages.SLICE, [Nonsense()], "malformed message"),
        (messages.SLICE, ["open", "open"], "a Slice was told OpenSlice after its opening"),
        (messages.SLICE, ["open", messages.StartRead([UNKNOWN_READ])], "KeyError: 9"),
        (messages.QUEUE, [messages.Flush(1)], "a Queue was told Flush before it was opened"),
        (messages.QUEUE, [open_queue(), open_queue()], "a Queue was told"),
        (messages.QUEUE, [open_queue(), messages.Append(head((1, 1, 1, 1)))], "a Queue was told"),
        (messages.QUEUE, [open_queue(), messages.Acks(7, ())], "IndexError"),
        (messages.QUEUE, [open_queue(), Nonsense()], "malformed message"),
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
        (lambda s: messages.ReadCheckpoint("other", 1, b""), NotFoundError, "has no Queue here"),
        (lambda s: messages.Release("other", 1), NotFoundError, "has no Queue here"),
        (lambda s: messages.ReadCheckpoint(s, 1, b"?"), DataError, "a checkpoint is damaged"),
        (lambda s: Nonsense(), TransportError, "malformed request"),
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


def report(channel: Channel[Any], opened: Any, bodies: list[bytes]) -> None:
    """Open well, then report this."""
    channel.send(messages.Opened(opened.session))
    while (message := channel.receive()) is not None:
        if isinstance(message.control, messages.StartRead):
            channel.send(messages.ProgressDelta(1), bodies)


UNKNOWN_BINDING = Delta(np.array([(place(0, 9), 10)], JOURNAL_ROW)).bodies()
UNKNOWN_JOURNAL = Delta(np.array([(place(7, 0), 10)], JOURNAL_ROW)).bodies()


# proves G13
@pytest.mark.parametrize(
    ("bodies", "error"),
    [
        ([b""], "the Session failed: ValidationError"),
        ([b"123", b"", b"", b""], "the Session failed: ValidationError"),
        (UNKNOWN_BINDING, "member 0 reports a/0000, which it does not read"),
        (UNKNOWN_JOURNAL, "member 0 reports journal 7, which it does not read"),
    ],
)
def test_reports_that_make_no_sense_end_the_session_and_say_why(
    task: Task, bodies: list[bytes], error: str
) -> None:
    task.append(0, 4)
    with odd_member(slice=lambda c, o: report(c, o, bodies)) as odd, soon():
        task.open("a", members=[odd.address], service=swift())
        with pytest.raises(HeadraceError, match=error):
            task.shuffle.next_checkpoint(SOON_S)
        task.leave()
