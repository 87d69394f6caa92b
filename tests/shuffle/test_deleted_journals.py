"""A journal that is deleted while it is read: what a checkpoint has is shown, the rest is gone."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.settings import KIB, ShuffleSettings
from headrace.testing.crash import eventually
from tests.shuffle.real_task import POLL_S, Task

CLOCK = 1 << 40
SMALL = ShuffleSettings(
    queue_soft_bytes=64 * KIB, queue_hard_bytes=512 * KIB, credit_bytes=16 * KIB
)


@pytest.fixture
def kept_and_doomed(task: Task) -> Task:
    """Two collections; one of them has four journals."""
    task.workspace.collection("kept", "n long, s string", key="n")
    task.workspace.collection("doomed", "n long, s string", key="n", journals=4)
    return task


def documents(first: int, count: int, size: int = 0) -> list[dict[str, Any]]:
    return [{"n": n, "s": "x" * size} for n in range(first, first + count)]


def held_bytes(task: Task) -> int:
    return sum(member.queue_bytes for member in task.shuffle.status().members)


def await_settled(task: Task) -> None:
    """All that was published is read, and reported where it is committed."""
    eventually(lambda: task.shuffle.status().settled, POLL_S, "everything is read")


def delete(task: Task, *journals: str) -> None:
    """And wait until the Session knows."""
    left = task.shuffle.status().places - len(journals)
    task.workspace.delete_journals(list(journals))
    eventually(lambda: task.shuffle.status().places == left, POLL_S, "the Session knows")


# proves G12
def test_what_a_deleted_journal_had_open_takes_no_room(kept_and_doomed: Task) -> None:
    """Nothing else has to happen."""
    task = kept_and_doomed
    task.open("kept", "doomed")
    writer = task.writer("writer")
    writer.docs("doomed/0000", CLOCK, *documents(0, 20, 10 * KIB))
    eventually(lambda: held_bytes(task) > 200 * KIB, POLL_S, "what is open")
    delete(task, "doomed/0000")
    eventually(lambda: held_bytes(task) == 0, POLL_S, "its room")


# proves G12, G13
@pytest.mark.long
def test_transactions_in_journals_that_are_deleted_one_after_the_other_each_have_the_room(
    kept_and_doomed: Task,
) -> None:
    """Of a consumer that starves; no checkpoint comes in between."""
    task = kept_and_doomed
    task.open("kept", "doomed", settings=SMALL)
    for journal in range(4):
        writer = task.writer(f"writer {journal}")
        for part in range(10):
            writer.docs(f"doomed/{journal:04d}", CLOCK + 100 * part, *documents(0, 60, KIB))
        eventually(lambda: is_read(task, 600 * KIB), POLL_S, "what is open")
        delete(task, f"doomed/{journal:04d}")
        eventually(lambda: held_bytes(task) == 0, POLL_S, "its room")


def is_read(task: Task, size: int) -> bool:
    assert task.look(0.01) is None
    return held_bytes(task) > size


# proves G5
def test_what_was_in_a_checkpoint_is_shown_though_its_journal_is_deleted_before_it_is_read(
    kept_and_doomed: Task,
) -> None:
    task = kept_and_doomed
    task.open("doomed")
    writer = task.writer("writer")
    writer.docs("doomed/0000", CLOCK, *documents(0, 10))
    writer.commit(CLOCK + 100)
    writer.docs("doomed/0000", CLOCK + 200, *documents(10, 10))
    found = task.shuffle.next_checkpoint(POLL_S)
    assert found
    delete(task, "doomed/0000")
    assert sorted(d.fields["n"] for d in task.documents(found)) == list(range(10))
    assert sorted(d.fields["n"] for d in task.documents(found)) == list(range(10))
    task.shuffle.release(found)
    eventually(lambda: held_bytes(task) == 0, POLL_S, "its room")


# proves G5
def test_what_was_in_no_checkpoint_is_gone_with_its_journal(kept_and_doomed: Task) -> None:
    """Also of a transaction whose other documents are shown."""
    task = kept_and_doomed
    task.open("kept", "doomed")
    with task.workspace.publisher() as transaction:
        transaction.append("kept", documents(0, 10))
        transaction.append("doomed", documents(100, 50))
    await_settled(task)
    delete(task, *(f"doomed/{journal:04d}" for journal in range(4)))
    (shown,) = task.take(10)
    assert shown.column("n") == list(range(10))
    eventually(lambda: held_bytes(task) == 0, POLL_S, "their room")
