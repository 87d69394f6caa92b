"""Collections that change, go and come back while a Session reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import OutdatedError
from tests.shuffle.real_task import Task


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    with Task(tmp_path, members=1) as opened:
        yield opened


def fields(task: Task, count: int) -> list[dict[str, Any]]:
    """Of the next documents."""
    return [d.fields for shown in task.take(count) for d in shown.documents]


def failure(task: Task) -> Exception:
    """What ends the Session."""
    with pytest.raises(OutdatedError) as raised:
        read_on(task)
    return raised.value


def read_on(task: Task) -> None:
    while task.look() is not None:
        pass


# proves G5, G13
@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ("credit long, debit long", {"debit": 1000, "credit": 7}),
        ("debit timestamp, credit long", {"debit": None, "credit": 7}),
        ("debit long, credit long", {"debit": 1000, "credit": 7}),
        ("debit long, credit long, more long", {"debit": 1000, "credit": 7, "more": 1}),
    ],
    ids=["other order", "other type", "same", "more columns"],
)
def test_a_collection_that_is_made_again_ends_the_session_and_is_read_by_the_next(
    task: Task, schema: str, document: dict[str, Any]
) -> None:
    task.workspace.collection("a", "debit long, credit long", key="debit")
    task.workspace.append("a", [{"debit": 1, "credit": 2}])
    task.open("a")
    assert fields(task, 1) == [{"debit": 1, "credit": 2}]
    task.workspace.delete_collection("a")
    task.workspace.collection("a", schema, key="credit")
    task.workspace.append("a", [document])
    assert str(failure(task)) == (
        "member 0: collection 'a' was deleted and created again while the Session read it;"
        " open the Session again: it reads the new collection"
    )
    task.open("a")
    assert fields(task, 1) == [document]


# proves G5
def test_journals_that_come_later_are_read_under_the_same_schema(task: Task) -> None:
    task.workspace.collection("a", "n long, p long", key="n", partition_by="p")
    task.open("a")
    for n in range(5):
        task.workspace.append("a", [{"n": n, "p": n}])
        assert fields(task, 1) == [{"n": n, "p": n}]


# proves G5
def test_a_collection_that_is_deleted_and_not_made_again_ends_nothing(task: Task) -> None:
    for name in "ab":
        task.workspace.collection(name, "n long", key="n")
    task.open("a", "b")
    task.workspace.append("a", [{"n": 1}])
    assert fields(task, 1) == [{"n": 1}]
    task.workspace.delete_collection("a")
    task.workspace.append("b", [{"n": 2}])
    assert fields(task, 1) == [{"n": 2}]


# proves G5
def test_a_column_that_is_added_is_left_out_until_the_session_is_opened_again(task: Task) -> None:
    task.workspace.collection("a", "n long", key="n")
    task.open("a")
    task.workspace.append("a", [{"n": 1}])
    task.workspace.collection("a", "n long, more string", key="n")
    task.workspace.append("a", [{"n": 2, "more": "x"}])
    assert fields(task, 2) == [{"n": 1}, {"n": 2}]
    task.open("a")
    task.workspace.append("a", [{"n": 3, "more": "y"}])
    assert fields(task, 1) == [{"n": 3, "more": "y"}]


# proves G5, G13
def test_a_null_where_there_was_none_ends_the_session_and_is_read_by_the_next(task: Task) -> None:
    task.workspace.collection("a", "n long, m long not null", key="n")
    task.open("a")
    task.workspace.append("a", [{"n": 1, "m": 1}])
    task.workspace.collection("a", "n long, m long", key="n")
    # One that is not null still fits, also into a block with those that were written before.
    task.workspace.append("a", [{"n": 2, "m": 2}])
    assert fields(task, 2) == [{"n": 1, "m": 1}, {"n": 2, "m": 2}]
    task.workspace.append("a", [{"n": 3, "m": None}])
    assert str(failure(task)) == (
        "member 0: collection 'a': column 'm' is null in a document, and was NOT NULL when the"
        " Session was opened; open the Session again from its checkpoint: it reads under the"
        " newest schema"
    )
    task.open("a")
    assert fields(task, 1) == [{"n": 3, "m": None}]
