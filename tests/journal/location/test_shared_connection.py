"""Many connections and threads use a workspace at once."""

from __future__ import annotations

import threading

import pytest

import headrace as hr
from headrace.errors import (
    NotFoundError,
    UsageError,
)
from tests.journal.conftest import SETTINGS, column, documents, mixture


def test_what_one_writes_all_see(owner: hr.Workspace, workspace: hr.Workspace) -> None:
    with hr.open(owner.location, settings=SETTINGS) as third:
        third.collection("c", "n long")
        for n, each in enumerate((owner, workspace, third)):
            each.append("c", [{"n": n}])
            for reader in (owner, workspace, third):
                assert column(reader, "c", "n") == list(range(n + 1))


def test_everything_is_there_when_it_is_opened_again(
    owner: hr.Workspace, workspace: hr.Workspace
) -> None:
    mixture(workspace)
    seen = documents(workspace, "c")
    definitions = [each.definition for each in workspace.collections()]
    assert len(seen) == 6 + 4 * 60
    workspace.close()
    owner.close()
    with hr.open(owner.location, settings=SETTINGS) as again:
        assert documents(again, "c") == seen
        assert [each.definition for each in again.collections()] == definitions


def test_many_threads_may_use_one_workspace(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(10):
                with workspace.publisher() as tx:
                    tx.append("c", [{"n": number * 100 + n}])
                column(workspace, "c", "n")
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = column(workspace, "c", "n")
    for number in range(4):
        mine = [n for n in found if n // 100 == number]
        assert mine == [number * 100 + n for n in range(10)]
    assert len(found) == 40


def test_an_empty_name_of_a_collection_is_refused(workspace: hr.Workspace) -> None:
    with pytest.raises(UsageError, match="'' cannot name a collection"):
        workspace.collection("", "n long")
    with pytest.raises(NotFoundError, match="no collection ''"):
        workspace.table("")
