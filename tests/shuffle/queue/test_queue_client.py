"""A reader takes documents from the files on the member's machine, elsewhere from the member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import PeerLostError, StorageError
from headrace.files import running_kernel
from headrace.frontier import TAG_BITS
from headrace.ids import format_producer
from headrace.log import LogFiles
from headrace.log.segments import Extent
from headrace.settings import ServiceSettings
from headrace.shuffle import messages
from headrace.shuffle.queue import queue_client
from headrace.transport import Message
from tests.shuffle.real_task import Document, Shown, Task

pytestmark = pytest.mark.skipif(not running_kernel(), reason="this system does not say which it is")


def answers(task: Task, shown: Shown, kernel: str) -> list[Message[Any]]:
    """Return what the first member answers to a reader that runs on this kernel."""
    reader = task.shuffle._consumers[0]
    delta = shown.checkpoint.delta.encode()
    request = messages.ReadCheckpoint(
        task.shuffle.session, shown.checkpoint.number, delta, kernel=kernel
    )
    with reader._client.stream(messages.READER, request, queue_client._replies) as stream:
        return list(stream)


def controls(found: list[Message[Any]]) -> set[type]:
    return {type(message.control) for message in found}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process unable to see the files of members and owners."""
    monkeypatch.setattr("headrace.shuffle.queue.queue_client.is_here", lambda _: False)
    monkeypatch.setattr("headrace.journal.wire.remote_journals.is_here", lambda _: False)


def half_shown(task: Task) -> tuple[Shown, list[Document]]:
    """Make a checkpoint that shows some blocks whole and one in part."""
    task.append(0, 100)
    task.open("a")
    first = task.take(100)
    slow = task.workspace.publisher("slow").begin()
    slow.append("a", [{"n": n} for n in range(1000, 1050)])
    slow._buffer.send(slow._buffer.seal()).result()
    with task.workspace.publisher("swift") as transaction:
        transaction.append("a", [{"n": n} for n in range(2000, 2050)])
    while (shown := task.look()) and not shown.documents:
        task.commit(shown)
    assert shown is not None
    slow.rollback()
    return shown, [document for each in first for document in each.documents]


# proves G8
def test_documents_are_the_same_from_files_and_through_the_member(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, _ = half_shown(task)
    assert shown.column("n") == list(range(2000, 2050))
    from_files = task.documents(shown.checkpoint)
    monkeypatch.setattr(queue_client, "is_here", lambda _: False)
    assert sorted(task.documents(shown.checkpoint)) == sorted(from_files)
    assert all(each._kernel == "" for each in task.shuffle._consumers), "it does not ask again"
    assert sorted(task.documents(shown.checkpoint)) == sorted(from_files)
    assert sorted(task.documents(shown.checkpoint, ordered=True)) == sorted(from_files)


def origins_of(task: Task, shown: Shown) -> dict[int, tuple[str, str, int]]:
    """Return the journal, the producer and the clock of each document, as its block has them."""
    found: dict[int, tuple[str, str, int]] = {}
    for share in task.shuffle.shares(shown.checkpoint, names=True):
        for _, batch, pairs in share.blocks(ServiceSettings()):
            rows = pairs[batch["_pair"].to_numpy()]
            journals = [share.journals[place >> TAG_BITS] for place in rows["place"].tolist()]
            producers = map(format_producer, rows["producer"].tolist())
            origins = zip(journals, producers, batch["_clock"].to_pylist(), strict=True)
            found |= dict(zip(batch["n"].to_pylist(), origins, strict=True))
    return found


def test_blocks_say_where_their_documents_stand(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, _ = half_shown(task)
    rows = task.workspace.table("a", meta=True).to_pylist()
    expected = {
        row["n"]: (row["_journal"], row["_producer"], row["_clock"])
        for row in rows
        if row["n"] >= 2000
    }
    assert len(expected) == 50
    assert origins_of(task, shown) == expected
    monkeypatch.setattr(queue_client, "is_here", lambda _: False)
    assert origins_of(task, shown) == expected


def test_shares_name_the_journals_that_they_show_and_no_others(task: Task) -> None:
    task.append(0, 100)
    task.open("a")
    task.take(100)
    task.open("a")
    (name,) = {
        batch["_journal"][0].as_py()
        for batch in task.workspace.read("a", meta=True)
        if 7 in batch["n"].to_pylist()
    }
    task.append(7, 1)
    while (shown := task.look()) and not shown.documents:
        task.commit(shown)
    assert shown
    shares = task.shuffle.shares(shown.checkpoint, names=True)
    assert {tuple(share.journals.values()) for share in shares} == {(name,)}
    assert all(not share.journals for share in task.shuffle.shares(shown.checkpoint))
    assert [batch.num_rows for share in shares for _, batch in share.read(ServiceSettings())] == [1]


class TooManyFiles(LogFiles):
    """Reads `readable` blocks, then fails to open a file."""

    readable = 0

    def read(self, extents: Iterable[Extent]) -> Iterator[memoryview]:
        for extent in extents:
            if TooManyFiles.readable == 0:
                raise StorageError("too many open files", do="close some")
            TooManyFiles.readable -= 1
            yield from super().read([extent])


# proves G8
def test_files_that_cannot_be_read_are_read_through_the_member_and_nothing_comes_twice(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.workspace.collection("b", "n long", key="n")
    with task.workspace.publisher() as transaction:
        for collection in ("a", "b"):
            transaction.append(collection, [{"n": n} for n in range(100)])
    task.open("a", "b")
    while not (shown := task.look()) or not shown.documents:
        assert shown is not None
        task.commit(shown)
    monkeypatch.setattr(queue_client, "LogFiles", TooManyFiles)
    assert sorted(task.documents(shown.checkpoint)) == sorted(shown.documents)
    assert all(each._kernel for each in task.shuffle._consumers), "it may be for a moment only"
    monkeypatch.setattr(TooManyFiles, "readable", 1)
    reading = task.shuffle.read(0, shown.checkpoint)
    next(reading)
    with pytest.raises(StorageError, match="too many open files"):
        list(reading)


def test_only_a_reader_of_the_same_machine_is_pointed_to_files(task: Task) -> None:
    task.append(0, 100)
    task.open("a")
    shown = task.look()
    assert shown is not None
    assert controls(answers(task, shown, running_kernel())) == {messages.Blocks}
    assert controls(answers(task, shown, "another")) == {messages.Documents}
    assert controls(answers(task, shown, "")) == {messages.Documents}


def test_everything_flows_between_processes_that_share_no_file(task: Task, elsewhere: None) -> None:
    _, before = half_shown(task)
    assert sorted(document.fields["n"] for document in before) == list(range(100))


def test_documents_stay_readable_when_their_checkpoint_is_released(task: Task) -> None:
    task.append(0, 5000)
    task.open("a")
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < 5000:
        checkpoint = task.shuffle.next_checkpoint()
        assert checkpoint
        for member in range(2):
            batches += [batch for _, batch in task.shuffle.read(member, checkpoint)]
        task.shuffle.release(checkpoint)
    numbers = sorted(n for batch in batches for n in batch["n"].to_pylist())
    assert numbers == list(range(5000))


# proves G13
def test_a_reader_of_files_is_told_what_ended_the_session(task: Task) -> None:
    task.append(0, 100)
    task.open("a")
    checkpoint = task.shuffle.next_checkpoint()
    assert checkpoint
    reading = task.shuffle.read(0, checkpoint)
    task.members[0].close()
    task.members[1].close()
    with pytest.raises(PeerLostError, match="closing"):
        list(reading)
