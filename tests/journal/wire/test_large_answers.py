"""Answers that do not fit a message are refused or sent as several."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.journal.wire import journal_service
from headrace.settings import KIB
from headrace.transport import message
from tests.journal.conftest import SETTINGS, column

WIDE = 200


@pytest.fixture(autouse=True)
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "MESSAGE_BYTES_MAX", 256 * KIB)
    monkeypatch.setattr(journal_service, "_FRAMES_BYTES", 64 * KIB)


# proves G27
def test_an_answer_that_is_too_large_is_refused_and_the_conversation_goes_on(
    owner: hr.Workspace,
) -> None:
    owner.collection("many/" + "x" * 100, "n long", journals=3000, key="n")
    owner.collection("few", "n long")
    with hr.open(owner.location, settings=SETTINGS) as workspace:
        tx = workspace.publisher("job").begin()
        tx.append("few", [{"n": 1}])
        tx.invite()
        for _ in range(2):
            with pytest.raises(UsageError, match="ask for less at once"):
                workspace.journals()
        assert len(workspace.journals(hr.selector("few"))) == 1
        tx.commit()
        assert column(workspace, "few", "n") == [1]


@pytest.mark.long
def test_acks_of_wide_transactions_are_read_through_the_owner(owner: hr.Workspace) -> None:
    """Each ACK carries a row for every journal of its transaction."""
    owner.collection("c", "n long, p long", partition_by="p")
    for n in range(60):
        with owner.publisher() as tx:
            tx.append("c", [{"n": n, "p": p} for p in range(WIDE)])
    journal = owner.journals()[WIDE // 2]
    with hr.open(owner.location, settings=SETTINGS) as workspace:
        there = list(workspace.frames(journal, committed=False))
        here = list(owner.frames(journal, committed=False))
    hints = [frame.hints for frame in there if frame.hints is not None]
    assert [rows.shape for rows in hints] == [(WIDE,)] * 60
    assert sum(rows.nbytes for rows in hints) > message.MESSAGE_BYTES_MAX
    assert [frame.offset for frame in there] == [frame.offset for frame in here]
    assert [rows.tolist() for rows in hints] == [
        frame.hints.tolist() for frame in here if frame.hints is not None
    ]
