"""The process that holds the transactions of Spark's writes, and what ends with it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.errors import FencedError, HeadraceError, InDoubtError, PublishError
from headrace.journal.contract import Write
from headrace.journal.local.owner import Owner
from headrace.settings import ServiceSettings
from headrace.spark.source.workspace_option import WorkspaceLocation
from headrace.spark.write import transaction_process
from headrace.spark.write.commit_payload import QueryBatch
from headrace.spark.write.dataframe_transaction import take_part
from headrace.spark.write.transaction_process import BeginWrite, HeldWrite, TransactionProcess
from headrace.testing.crash import eventually
from headrace.transport import Client
from tests.spark.write.started_process import END_S, ProcessesOfWrites, start_processes

SCHEMA = pa.schema({"number": pa.int64()})


@pytest.fixture(scope="module")
def started() -> Iterator[TransactionProcess]:
    """A process for tests that leave it as it was."""
    with start_processes() as found:
        yield found.transactions


@pytest.fixture
def doomed() -> Iterator[ProcessesOfWrites]:
    with start_processes() as found:
        yield found


@pytest.fixture
def numbers(workspace: headrace.Workspace) -> headrace.Workspace:
    workspace.collection("numbers", "number long", journals=2)
    return workspace


def begin(
    started: TransactionProcess, workspace: headrace.Workspace, publisher: str = ""
) -> HeldWrite:
    schema = SCHEMA.serialize().to_pybytes()
    return started.begin(BeginWrite(WorkspaceLocation.of(workspace), "numbers", schema, publisher))


def part(workspace: headrace.Workspace, write: HeldWrite, *numbers: int) -> str:
    """Return a part as a Spark task would prepare it."""
    rows = pa.record_batch({"number": pa.array(numbers, pa.int64())})
    with (
        WorkspaceLocation.of(workspace).open() as opened,
        opened.join(write.invitation) as participant,
    ):
        participant.append("numbers", rows)
        return participant.prepare()


def seen(workspace: headrace.Workspace) -> list[int]:
    return sorted(workspace.table("numbers")["number"].to_pylist())


def test_only_the_parts_of_attempts_that_won_are_committed(
    started: TransactionProcess, numbers: headrace.Workspace
) -> None:
    write = begin(started, numbers)
    won = [part(numbers, write, 1, 2), part(numbers, write, 3)]
    part(numbers, write, 3)
    assert seen(numbers) == []
    write.commit(won)
    assert seen(numbers) == [1, 2, 3]
    with pytest.raises(FencedError, match="has ended"):
        part(numbers, write, 4)


def test_writes_at_once_share_the_workspace_that_one_of_them_opened(
    started: TransactionProcess, numbers: headrace.Workspace
) -> None:
    """The first write that ends does not end the others."""
    numbers.close()
    writes = [begin(started, numbers) for _ in range(3)]
    parts = [part(numbers, write, number) for number, write in enumerate(writes)]
    writes[0].commit(parts[:1])
    writes[1].abort()
    writes[2].commit(parts[2:])
    with WorkspaceLocation.of(numbers).open() as alone:
        assert alone.address, "nobody has it open any more"
        assert seen(alone) == [0, 2]


@pytest.mark.long
def test_it_does_not_end_while_somebody_waits_for_an_answer(doomed: ProcessesOfWrites) -> None:
    started = doomed.transactions
    with Client(started._address, ServiceSettings(token=started._token)) as client:
        channel = client.converse(transaction_process._KIND, transaction_process._replies)
        started.close()
        with pytest.raises(subprocess.TimeoutExpired):
            started.process.wait(3)
        channel.close()
        assert started.process.wait(END_S) == 0


def test_an_aborted_write_is_gone(started: TransactionProcess, numbers: headrace.Workspace) -> None:
    write = begin(started, numbers)
    prepared = part(numbers, write, 1)
    write.abort()
    write.abort()
    with pytest.raises(PublishError, match="nothing of it was committed"):
        write.commit([prepared])
    assert seen(numbers) == []


@pytest.mark.long
def test_a_write_outlives_the_process_that_planned_it(
    doomed: ProcessesOfWrites, numbers: headrace.Workspace
) -> None:
    """The transaction process ends with the last write."""
    first, second = begin(doomed.transactions, numbers), begin(doomed.transactions, numbers)
    prepared = part(numbers, first, 1)
    doomed.transactions.close()
    second.abort()
    first.commit([prepared])
    assert seen(numbers) == [1]
    assert doomed.transactions.process.wait(END_S) == 0


@pytest.mark.crash
def test_nothing_of_a_write_is_left_when_spark_is_gone(
    doomed: ProcessesOfWrites, numbers: headrace.Workspace
) -> None:
    write = begin(doomed.transactions, numbers)
    prepared = part(numbers, write, 1)
    doomed.spark.kill()
    assert doomed.transactions.process.wait(END_S) == 0
    with pytest.raises(PublishError, match="nothing of it was committed"):
        write.commit([prepared])
    write.abort()
    assert seen(numbers) == []


@pytest.mark.crash
def test_a_killed_transaction_process_commits_nothing(
    doomed: ProcessesOfWrites, numbers: headrace.Workspace
) -> None:
    write = begin(doomed.transactions, numbers)
    prepared = part(numbers, write, 1)
    doomed.transactions.process.kill()
    doomed.transactions.process.wait(END_S)
    with pytest.raises(PublishError, match="nothing of it was committed"):
        write.commit([prepared], QueryBatch("q", 0))
    assert seen(numbers) == []


# proves G29
@pytest.mark.crash
@pytest.mark.parametrize(
    ("batch", "remedy"),
    [(None, "look for its documents"), (QueryBatch("q", 0), "start the query again")],
    ids=["write", "stream"],
)
def test_a_write_whose_process_dies_over_its_commit_is_in_doubt(
    doomed: ProcessesOfWrites,
    numbers: headrace.Workspace,
    batch: QueryBatch | None,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, released = threading.Event(), threading.Event()
    write_now = Owner.write

    def write_late(owner: Owner, client: int, write: Write, bodies: Sequence[Any]) -> Any:
        if write.commit:
            asked.set()
            released.wait(END_S)
        return write_now(owner, client, write, bodies)

    monkeypatch.setattr(Owner, "write", write_late)
    write = begin(doomed.transactions, numbers, "stream/numbers" if batch else "")
    prepared = part(numbers, write, 1)
    with ThreadPoolExecutor(1) as thread:
        committing = thread.submit(write.commit, [prepared], batch)
        assert asked.wait(END_S)
        doomed.transactions.process.kill()
        with pytest.raises(
            InDoubtError, match=f"nobody knows whether the write committed: .*; {remedy}"
        ):
            committing.result()
        released.set()
    eventually(lambda: seen(numbers) == [1], END_S, "the commit that the owner had")


@pytest.mark.long
def test_a_write_whose_publisher_was_taken_over_is_given_up(
    doomed: ProcessesOfWrites, numbers: headrace.Workspace
) -> None:
    """The transaction process finds out by itself: it has no other reason to end."""
    write = begin(doomed.transactions, numbers, "stream/numbers")
    prepared = part(numbers, write, 1)
    numbers.publisher("stream/numbers").close()
    doomed.transactions.close()
    assert doomed.transactions.process.wait(END_S) == 0
    with pytest.raises(PublishError):
        write.commit([prepared], QueryBatch("q", 0))
    assert seen(numbers) == []


@pytest.mark.long
def test_a_write_ends_with_the_owner_of_the_workspace(
    started: TransactionProcess, numbers: headrace.Workspace
) -> None:
    write = begin(started, numbers)
    prepared = part(numbers, write, 1)
    numbers.close()
    with pytest.raises(PublishError, match=r"rolled back|nothing of it was committed"):
        write.commit([prepared])
    assert numbers.directory
    with headrace.open(numbers.directory) as reopened:
        assert seen(reopened) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "refusal", "seen_after"),
    [(8, "", [1]), (7, "", []), (9, "publisher 'stream/p' is at batch 7, and the query at 9", [])],
)
def test_a_batch_is_committed_once_and_in_order(
    started: TransactionProcess,
    numbers: headrace.Workspace,
    number: int,
    refusal: str,
    seen_after: list[int],
) -> None:
    """# proves G14"""
    begin(started, numbers, "stream/p").commit([], QueryBatch("q", 7))
    write = begin(started, numbers, "stream/p")
    prepared = [part(numbers, write, 1)]
    with pytest.raises(HeadraceError, match=refusal) if refusal else nullcontext():
        write.commit(prepared, QueryBatch("q", number))
    assert seen(numbers) == seen_after


@pytest.mark.long
def test_a_name_with_another_payload_is_refused(
    started: TransactionProcess, numbers: headrace.Workspace
) -> None:
    publisher = numbers.publisher("mine")
    publisher.begin().commit(b"something else")
    with pytest.raises(HeadraceError, match="publisher 'mine' was not used by a query"):
        begin(started, numbers, "mine")


@pytest.mark.long
def test_a_task_without_rows_takes_no_part(numbers: headrace.Workspace) -> None:
    nothing = pa.record_batch({"number": pa.array([], pa.int64())})
    assert take_part(numbers.reach(), "not asked", "numbers", iter([nothing])) == ""
