"""What a consumer tells the members: of a checkpoint, and that nobody will read it again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.errors import DataError, PeerLostError, UsageError
from headrace.shuffle import NextCheckpoint, messages
from headrace.shuffle.queue.actor import QueueActor
from headrace.shuffle.queue.queue_client import Consumer
from headrace.testing.crash import eventually
from headrace.transport import RequestClient
from tests.shuffle.real_task import SOON_S, Begin, Task, soon, swift

COUNT = 50


def queue_of(task: Task, member: int) -> QueueActor:
    service: Any = task.members[member]._server._services[messages.CONSUMER]
    found: QueueActor = service._queues.of(task.shuffle.session)
    return found


def shown_to(task: Task, member: int) -> set[int]:
    """Return the numbers of the checkpoints that readers may ask this member for."""
    return set(queue_of(task, member)._reading._shown)


@contextmanager
def busy(task: Task, member: int) -> Iterator[None]:
    """Keep a member from answering its consumer."""
    with queue_of(task, member)._reading._scanning:
        yield


def publish(task: Task, count: int) -> None:
    """Publish documents that one checkpoint shows."""
    with task.workspace.publisher() as transaction:
        transaction.append("a", [{"n": n} for n in range(count)])


def first_checkpoint(task: Task) -> NextCheckpoint:
    """Return a checkpoint that shows all documents."""
    publish(task, COUNT)
    task.open("a")
    found = task.shuffle.next_checkpoint(SOON_S)
    assert found
    return found


def await_release(task: Task, member: int) -> None:
    eventually(lambda: not shown_to(task, member), SOON_S, "nothing can be read any more")


def rows(task: Task, checkpoint: NextCheckpoint) -> int:
    shares = task.shuffle.shares(checkpoint)
    return sum(batch.num_rows for share in shares for _, batch in share.read(swift()))


# proves G13
@pytest.mark.parametrize("slow", [0, 1])
def test_every_member_is_told_of_a_checkpoint_while_another_has_not_answered(
    task: Task, slow: int
) -> None:
    found = first_checkpoint(task)
    with ThreadPoolExecutor(1) as caller:
        with busy(task, slow):
            asked = caller.submit(task.shuffle.shares, found)
            eventually(lambda: shown_to(task, 1 - slow) == {1}, SOON_S, "the other member knows")
            assert not asked.done(), "nobody reads before every member knows the checkpoint"
        assert len(asked.result(SOON_S)) == 2
    assert shown_to(task, slow) == {1}


# proves G12
def test_a_release_waits_for_no_member_and_reaches_each(task: Task) -> None:
    found = first_checkpoint(task)
    assert rows(task, found) == COUNT
    deciding = [queue_of(task, member)._deciding for member in range(2)]
    with deciding[0], deciding[1]:
        task.shuffle.release(found)
        assert [shown_to(task, member) for member in range(2)] == [{1}, {1}]
    for member in range(2):
        await_release(task, member)
    publish(task, 7)
    later = task.shuffle.next_checkpoint(SOON_S)
    assert later
    assert rows(task, later) == 7


# proves G13
def test_a_release_of_what_members_were_not_told_of_is_refused_at_once(task: Task) -> None:
    found = first_checkpoint(task)
    with pytest.raises(UsageError, match="checkpoint 1 cannot be released: the last one read is 0"):
        task.shuffle.release(found)
    list(task.shuffle.read(0, found))
    with pytest.raises(UsageError, match="checkpoint 1 cannot be released: the last one read is 0"):
        task.shuffle.release(found)
    assert sum(batch.num_rows for _, batch in task.shuffle.read(1, found)) > 0
    task.shuffle.release(found)


# proves G13
def test_a_release_that_fails_is_raised_by_the_next_call(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: QueueActor, number: int) -> None:
        raise DataError(f"release {number}", do="mend it")

    found = first_checkpoint(task)
    task.shuffle.shares(found)
    with monkeypatch.context() as patch:
        patch.setattr(QueueActor, "release", fail)
        task.shuffle.release(found)
        with pytest.raises(DataError, match="release 1; mend it"):
            task.shuffle.release(found)
    task.shuffle.release(found)


# proves G10
def test_no_checkpoint_is_lost_when_ctrl_c_comes_between_two_members(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Consumer.advance
    calls = 0

    def interrupted(consumer: Consumer, number: int, checkpoint: bytes) -> Future[None]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return advance(consumer, number, checkpoint)

    found = first_checkpoint(task)
    monkeypatch.setattr(Consumer, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        task.shuffle.shares(found)
    eventually(lambda: shown_to(task, 0) == {1}, SOON_S, "the first member knows")
    assert shown_to(task, 1) == set()
    assert rows(task, found) == COUNT
    task.shuffle.release(found)
    publish(task, 7)
    later = task.shuffle.next_checkpoint(SOON_S)
    assert later
    assert later.number == 2
    assert rows(task, later) == 7


# proves G13
def test_a_member_that_is_lost_while_it_is_told_ends_the_session_with_its_cause(
    task: Task,
) -> None:
    found = first_checkpoint(task)
    with soon(), ThreadPoolExecutor(1) as caller:
        with busy(task, 1):
            asked = caller.submit(task.shuffle.shares, found)
            eventually(lambda: shown_to(task, 0) == {1}, SOON_S, "the other member knows")
            task.members[1]._server.close()
        with pytest.raises(PeerLostError) as lost:
            asked.result(SOON_S)
    for _ in range(2):
        with pytest.raises(PeerLostError) as again:
            task.shuffle.shares(found)
        assert again.value.what == lost.value.what
    with pytest.raises(PeerLostError) as polled:
        task.shuffle.next_checkpoint(1)
    assert polled.value.what == lost.value.what


# proves G13
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (messages.Release("other", 1), PeerLostError, "has no Queue here"),
        (messages.Advance("other", 1, b""), PeerLostError, "has no Queue here"),
        (messages.Advance("", 1, b"?"), DataError, "a checkpoint is damaged"),
    ],
)
def test_a_consumer_that_asks_for_nonsense_is_told_and_may_go_on(
    task: Task, call: Any, error: type[Exception], text: str
) -> None:
    found = first_checkpoint(task)
    if not call.session:
        call = messages.Advance(task.shuffle.session, call.number, call.checkpoint)
    client = RequestClient(task.addresses[0], messages.CONSUMER, swift())
    client.connect()
    try:
        for _ in range(2):
            with pytest.raises(error, match=text):
                client.submit(call).result(SOON_S)
        delta = found.delta.encode()
        client.submit(messages.Advance(task.shuffle.session, 1, delta)).result(SOON_S)
        assert shown_to(task, 0) == {1}
    finally:
        client.close()


def test_a_consumer_holds_one_conversation_with_each_member(begin: Begin) -> None:
    task = begin(3, 2)
    first = first_checkpoint(task)
    for number in range(3):
        assert rows(task, first) == COUNT, number
    servers = [member._server for member in task.members]
    assert [server.conversations_of(messages.CONSUMER) for server in servers] == [1, 1, 1]
    assert [each.streams for each in task.members] == [1 + 2] * 3
    assert [server.conversations for server in servers] == [1 + 2 + 1] * 3
    task.leave()
    eventually(lambda: not any(each.conversations for each in servers), SOON_S, "nothing is left")
