"""How far a task is behind: what its sources have beyond a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.frontier import JOURNAL_ROW, PRODUCER_ROW, BindingTag, Frontier, JournalTag, place
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, JournalInfo
from headrace.shuffle import Checkpoint, History
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import JournalRef
from headrace.shuffle.checkpoints.checkpoint_feed import Feed
from headrace.shuffle.lag import Lag
from headrace.shuffle.member.local_members import LocalMembers
from tests.shuffle.builders import source

A, B = JournalId(1), JournalId(2)


def info(id: JournalId, name: str, head: int, begin: int = 0) -> JournalInfo:
    return JournalInfo(id, name, Offset(begin), Offset(head), 1)


def read(*places: tuple[int, int, int]) -> Checkpoint:
    """Journal tag, binding tag, and through which offset."""
    rows = [(place(journal, binding), through) for journal, binding, through in places]
    return Checkpoint(
        Frontier.from_rows(np.array(rows, JOURNAL_ROW), np.zeros(0, PRODUCER_ROW)),
        {JournalTag(0): JournalRef(A, "a/0000"), JournalTag(1): JournalRef(B, "b/0000")},
        {BindingTag(0): "a.0", BindingTag(1): "b.1", BindingTag(2): "a.2"},
    )


def test_each_place_counts_from_where_it_is_read_to_its_head() -> None:
    lag = Lag(Sources([source(0, "a"), source(1, "b")]), read((0, 0, 40)))
    assert lag.bytes == 0
    lag.change(Changes([info(A, "a/0000", 100), info(B, "b/0000", 70, begin=20)], [], {}))
    assert lag.bytes == 60 + 50
    lag.change(Changes([], [], {A: Offset(110), JournalId(9): Offset(5)}))
    assert lag.bytes == 70 + 50
    lag.apply(read((0, 0, 110), (1, 1, 30)))
    assert lag.bytes == 40
    lag.change(Changes([], [B], {}))
    assert lag.bytes == 0


def test_a_journal_of_two_bindings_counts_twice_and_others_not_at_all() -> None:
    lag = Lag(Sources([source(0, "a"), source(2, "a")]), read((0, 0, 40)))
    lag.change(Changes([info(A, "a/0000", 100), info(B, "b/0000", 70)], [], {}))
    assert lag.bytes == 60 + 100
    lag.forget_journals()
    assert lag.bytes == 0
    lag.change(Changes([info(A, "a/0000", 100)], [], {}))
    assert lag.bytes == 60 + 100


# -- real journals -----------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "workspace") as opened:
        for name in "ab":
            opened.collection(name, "n long", key="n", journals=2)
        yield opened


BINDINGS = [hr.Binding(collection="a"), hr.Binding(collection="b")]


def oracle(journals: Sequence[JournalInfo], checkpoint: Checkpoint) -> int:
    """By the definition, from what is stored alone."""
    through = {checkpoint.journals[each.journal].id: each.through for each in checkpoint.frontier}
    return sum(each.head - max(each.begin, through.get(each.id, 0)) for each in journals)


@pytest.mark.long
def test_after_every_checkpoint_it_is_what_journals_have_beyond_it_and_none_at_the_end(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    publisher = workspace.publisher()
    for number in range(100):
        with publisher as transaction:
            for collection in "ab":
                transaction.append(collection, [{"n": 10 * number + n} for n in range(4)])
    with LocalMembers(2, tmp_path) as members:
        settings = hr.ShuffleSettings(report_documents=25)

        def open(last: Checkpoint, through: Checkpoint | None) -> hr.Shuffle:
            return hr.Shuffle(
                workspace,
                BINDINGS,
                members.addresses,
                last_commit=last,
                read_through=through,
                settings=settings,
                service=members.service,
            )

        history = History(workspace.objects, "t")
        feed = Feed(history, open)
        found: list[int] = []
        number = 0
        while not found or found[-1]:
            number = feed.after(number, 60.0, documents_max=50)
            found.append(feed.behind())
            assert found[-1] == oracle(workspace.journals(), history.load(number))
        feed.close()
    assert len(found) > 5
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found), "it falls with every checkpoint"
