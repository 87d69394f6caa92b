"""An opening that a member spoils ends at once, names the cause, and leaves nothing behind."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    HeadraceError,
    PeerLostError,
    ProtocolError,
    StorageError,
    TransportError,
)
from headrace.settings import ShuffleSettings
from headrace.shuffle import Member
from headrace.testing.crash import eventually
from headrace.transport import Channel, Server
from tests.shuffle.fake_member import (
    answer_for_another,
    answer_nonsense,
    answer_wrongly,
    fake_member,
    leave,
    linger,
    open_well,
    refuse,
)
from tests.shuffle.real_task import SOON_S, Task, soon, swift, threads_of_sessions
from tests.sockets import sockets

OPEN_S = 3.0
"""Much longer than an opening takes, even on a busy machine."""


# proves G13
@pytest.mark.parametrize(
    ("slice", "queue", "error", "text"),
    [
        (refuse, linger, StorageError, "member 1: no space left"),
        (linger, refuse, StorageError, "the Queue of member 1: no space left"),
        (answer_for_another, linger, ProtocolError, "member 1 answered for another Session"),
        (
            linger,
            answer_for_another,
            ProtocolError,
            "the Queue of member 1 answered for another Session",
        ),
        (leave, linger, ProtocolError, "member 1 answered nothing"),
        (linger, leave, ProtocolError, "the Queue of member 1 answered nothing"),
        (answer_wrongly, linger, ProtocolError, "member 1 answered ProgressDelta"),
        (linger, answer_wrongly, ProtocolError, "the Queue of member 1 answered Flushed"),
        (answer_nonsense, linger, TransportError, "member 1: .* sent a malformed message"),
        (linger, answer_nonsense, TransportError, "the Queue of member 1: .* sent a malformed"),
    ],
)
def test_an_opening_that_one_member_spoils_ends_at_once_with_the_cause(
    task: Task,
    slice: Callable[[Channel[Any], Any], None],
    queue: Callable[[Channel[Any], Any], None],
    error: type[HeadraceError],
    text: str,
) -> None:
    """Meanwhile the other Slice waits for the Queue that never opens."""
    with fake_member(slice, queue) as fake, soon():
        with pytest.raises(error, match=text):
            task.open("a", members=[task.addresses[0], fake.address], service=swift())
        eventually(lambda: not threads_of_sessions(), SOON_S, "nothing is left")
    task.append(0, 4)
    task.open("a")
    assert sum(len(shown.documents) for shown in task.take(4)) == 4


# proves G13
def test_a_member_that_is_not_there_is_named(task: Task, tmp_path: Path) -> None:
    with Member(tmp_path / "gone") as gone:
        address = gone.address
    with soon(), pytest.raises(PeerLostError, match=address):
        task.open("a", members=[task.addresses[0], address], service=swift())
    eventually(lambda: not threads_of_sessions(), SOON_S, "nothing is left")


# proves G13
def test_a_member_that_dies_while_it_opens_is_named(task: Task) -> None:
    closing: list[Server] = []

    def die(channel: Channel[Any], _: Any) -> None:
        threading.Thread(target=closing[0].close, args=(0.0,)).start()
        linger(channel)

    with fake_member(slice=die) as fake, soon():
        closing.append(fake)
        with pytest.raises(TransportError) as lost:
            task.open("a", members=[task.addresses[0], fake.address], service=swift())
        assert fake.address in lost.value.what
        eventually(lambda: not threads_of_sessions(), SOON_S, "nothing is left")


# proves G13
@pytest.mark.parametrize(
    ("slice", "queue", "late"),
    [
        (linger, open_well, "member 1 at {} did not open within 3 s; see what it waits for"),
        (open_well, linger, "the Queue of member 1 at {} did not open within 1.5 s; see what"),
        (linger, linger, "the Queue of member 1 at {} did not open within 1.5 s; see what"),
    ],
)
def test_a_member_that_lives_and_does_not_open_is_given_up_in_time_and_named(
    task: Task,
    slice: Callable[[Channel[Any], Any], None],
    queue: Callable[[Channel[Any], Any], None],
    late: str,
) -> None:
    with fake_member(slice, queue) as fake, soon():
        threads, connections = own_threads(), sockets()
        with pytest.raises(PeerLostError) as given_up:
            task.open(
                "a",
                members=[task.addresses[0], fake.address],
                settings=ShuffleSettings(open_s=OPEN_S),
                service=swift(),
            )
        assert late.format(fake.address) in str(given_up.value)
        eventually(lambda: own_threads() <= threads, SOON_S, "no thread is left")
        eventually(lambda: sockets() <= connections, SOON_S, "no socket is left")
        eventually(
            lambda: fake.conversations == task.members[0].streams == 0, SOON_S, "no stream is left"
        )
    task.append(0, 4)
    task.open("a")
    assert sum(len(shown.documents) for shown in task.take(4)) == 4


# proves G13
@pytest.mark.long
@pytest.mark.usefixtures("interruptible")
def test_an_opening_that_is_interrupted_ends_at_once(task: Task) -> None:
    ended = threading.Event()

    def interrupt(channel: Channel[Any], _: Any) -> None:
        channel.on_end(ended.set)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ended.wait(2 * SOON_S)

    with fake_member(slice=interrupt) as fake, soon():
        threads, connections = own_threads(), sockets()
        with pytest.raises(KeyboardInterrupt):
            task.open("a", members=[task.addresses[0], fake.address])
        assert ended.wait(SOON_S)
        eventually(lambda: own_threads() <= threads, SOON_S, "no thread is left")
        # Flight disconnects when nothing refers to a call any more. Tracebacks that wait for the
        # garbage collector may still refer to one.
        gc.collect()
        eventually(lambda: sockets() <= connections, SOON_S, "no socket is left")
    task.append(0, 4)
    task.open("a")
    assert sum(len(shown.documents) for shown in task.take(4)) == 4


def own_threads() -> set[threading.Thread]:
    """Return all threads but those of gRPC's pool, which Python lists once they have called it."""
    return {each for each in threading.enumerate() if not each.name.startswith("Dummy-")}
