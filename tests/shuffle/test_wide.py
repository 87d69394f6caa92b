"""Transactions over many journals, read by members that see the log's files, and by others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shuffle.real_task import Task

pytestmark = pytest.mark.long

JOURNALS = 150
TRANSACTIONS = 4


# proves G9
@pytest.mark.parametrize("sees_files", [True, False])
def test_a_transaction_over_many_journals_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sees_files: bool
) -> None:
    if not sees_files:
        monkeypatch.setattr("headrace.journal.wire.remote_journals.is_here", lambda _: False)
    with Task(tmp_path) as task:
        task.workspace.collection("a", "n long, p long", key="p", partition_by="p")

        def publish(n: int) -> None:
            with task.workspace.publisher() as tx:
                tx.append("a", [{"n": n, "p": p} for p in range(JOURNALS)])

        for n in range(TRANSACTIONS):
            publish(n)
        task.open("a")
        shown = task.take(TRANSACTIONS * JOURNALS)
        for n in range(TRANSACTIONS, 2 * TRANSACTIONS):
            publish(n)
        shown += task.take(TRANSACTIONS * JOURNALS)
    seen: set[int] = set()
    for each in shown:
        numbers = set(each.column("n"))
        documents = {(d.fields["n"], d.fields["p"]) for d in each.documents}
        assert documents == {(n, p) for n in numbers for p in range(JOURNALS)}
        assert not seen & numbers
        seen |= numbers
    assert seen == set(range(2 * TRANSACTIONS))
