"""Appends to a deleted journal create it anew."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import NotFoundError
from tests.journal.conftest import SETTINGS, column

BUFFER_BYTES = SETTINGS.journal.transaction_buffer_bytes
LARGE = "x" * (BUFFER_BYTES // 10)


@pytest.fixture(autouse=True)
def collections(owner: hr.Workspace) -> None:
    owner.collection("c", "n long, p string, text string", key="n", partition_by="p", journals=2)
    owner.collection("d", "n long")


def some(*numbers: int, p: str = "x", text: str = "") -> list[dict[str, Any]]:
    return [{"n": n, "p": p, "text": text} for n in numbers]


def delete(owner: hr.Workspace, selector: hr.Selector | None = None) -> None:
    """Delete journals from another connection, so that the publisher does not notice."""
    with hr.open(owner.location, settings=SETTINGS) as other:
        other.delete_journals([each.name for each in other.journals(selector)])


def numbers(workspace: hr.Workspace, collection: str = "c") -> list[int]:
    return sorted(column(workspace, collection, "n"))


def test_the_next_append_makes_the_journal_anew(
    workspace: hr.Workspace, owner: hr.Workspace
) -> None:
    for n in range(3):
        workspace.append("c", some(n, n + 10))
        workspace.append("d", [{"n": n}])
        assert (numbers(workspace), numbers(workspace, "d")) == ([n, n + 10], [n])
        delete(owner)
        assert workspace.journals() == []


@pytest.mark.parametrize("name", ["", "etl"])
def test_the_next_transaction_makes_the_journal_anew(
    workspace: hr.Workspace, owner: hr.Workspace, name: str
) -> None:
    publisher = workspace.publisher(name)
    for n in range(3):
        with publisher as tx:
            tx.append("c", some(n))
        delete(owner)
        with publisher as tx:
            tx.append("c", some(n, p="y"))
            tx.append("c", some(n + 10))
        assert numbers(workspace) == [n, n + 10]
        delete(owner)


@pytest.mark.parametrize("text", ["", LARGE])
def test_a_journal_that_is_deleted_before_a_transaction_sends_to_it_is_made_anew(
    workspace: hr.Workspace, owner: hr.Workspace, text: str
) -> None:
    workspace.append("c", some(0))
    with workspace.publisher() as tx:
        tx.append("c", some(1))
        delete(owner)
        tx.append("c", some(*range(2, 30), text=text))
    assert numbers(workspace) == list(range(1, 30))


def test_a_journal_that_is_deleted_under_an_open_transaction_is_named(
    workspace: hr.Workspace, owner: hr.Workspace
) -> None:
    # proves G2
    tx = workspace.publisher("etl").begin()
    tx.append("c", some(*range(30), text=LARGE))
    tx.append("d", [{"n": 1}])
    delete(owner, hr.selector("c"))
    tx.append("c", some(*range(30, 40)))
    why = r"somebody deleted journal c/p=x/000[01] after this transaction wrote to it; repeat the"
    with pytest.raises(NotFoundError, match=why):
        tx.commit()
    assert (numbers(workspace), numbers(workspace, "d")) == ([], [])
    with workspace.publisher("etl") as tx:
        tx.append("c", some(*range(40)))
        tx.append("d", [{"n": 1}])
    assert (numbers(workspace), numbers(workspace, "d")) == (list(range(40)), [1])


def test_a_journal_that_was_made_anew_by_others_is_not_written_to_by_half_a_transaction(
    owner: hr.Workspace,
) -> None:
    # proves G2
    tx = owner.publisher().begin()
    tx.append("c", some(*range(30), text=LARGE))
    delete(owner)
    with hr.open(owner.location, settings=SETTINGS) as other:
        other.append("c", some(100))
    tx.append("c", some(*range(30, 40)))
    with pytest.raises(
        NotFoundError, match=r"somebody deleted journal .* after this transaction wrote to it"
    ):
        tx.commit()
    assert numbers(owner) == [100]


@pytest.mark.long
def test_commits_under_way_all_reach_the_new_journal(
    workspace: hr.Workspace, owner: hr.Workspace
) -> None:
    workspace.append("d", [{"n": -1}])
    delete(owner)
    publisher = workspace.publisher()
    pending = []
    for n in range(20):
        tx = publisher.begin()
        tx.append("d", [{"n": n}])
        pending.append(tx.commit_nowait())
    for commit in pending:
        commit.result()
    assert column(workspace, "d", "n") == list(range(20))
    assert len(workspace.journals(hr.selector("d"))) == 1


def test_a_participant_writes_to_the_new_journal_too(
    workspace: hr.Workspace, owner: hr.Workspace
) -> None:
    workspace.append("c", some(0))
    delete(owner)
    tx = owner.publisher().begin()
    part = workspace.join(tx.invite())
    part.append("c", some(1))
    tx.include(part.prepare())
    tx.commit()
    assert numbers(workspace) == [1]


@pytest.mark.parametrize("second", ["participant", "coordinator", "coordinator, at the end"])
def test_a_journal_that_is_deleted_between_the_parts_of_a_transaction_is_named(
    workspace: hr.Workspace, owner: hr.Workspace, second: str
) -> None:
    # proves G2
    tx = owner.publisher().begin()
    first = workspace.join(tx.invite())
    first.append("c", some(*range(30)))
    first.append("d", [{"n": 1}])
    tx.include(first.prepare())
    delete(owner, hr.selector("c"))
    if second == "participant":
        part = workspace.join(tx.invite())
        part.append("c", some(*range(30, 60)))
        tx.include(part.prepare())
    else:
        text = "" if second.endswith("end") else LARGE
        tx.append("c", some(*range(30, 60), text=text))
    with pytest.raises(
        NotFoundError, match=r"somebody deleted journal .* after this transaction wrote to it"
    ):
        tx.commit()
    assert (numbers(workspace), numbers(workspace, "d")) == ([], [])


def test_a_collection_that_was_deleted_is_named(
    workspace: hr.Workspace, owner: hr.Workspace
) -> None:
    # proves G27
    tx = workspace.publisher().begin()
    tx.append("d", [{"n": 1}])
    with hr.open(owner.location, settings=SETTINGS) as other:
        other.delete_collection("d")
        other.collection("d", "n long")
    with pytest.raises(
        NotFoundError, match="somebody deleted collection 'd' while it was written to"
    ):
        tx.commit()
    assert numbers(workspace, "d") == []


def test_new_journals_survive_a_restart(owner: hr.Workspace) -> None:
    # proves G1
    owner.append("d", [{"n": 1}])
    delete(owner)
    owner.append("d", [{"n": 2}])
    owner.close()
    with hr.open(owner.location, settings=SETTINGS) as again:
        assert numbers(again, "d") == [2]
        again.append("d", [{"n": 3}])
        assert numbers(again, "d") == [2, 3]
