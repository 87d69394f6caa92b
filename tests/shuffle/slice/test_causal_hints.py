"""How a Slice uses causal hints, and how much it reports at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.ids import JournalId
from headrace.journal.local.records import ACK_ROW
from headrace.shuffle.slice.effects import Report, SendBlock
from headrace.shuffle.slice.state import Limits
from tests.shuffle.builders import FRAME_BYTES, frames
from tests.shuffle.slice.scripted_slice import ScriptedSlice, only

JOURNALS = 40


class Table(np.ndarray):
    """Counts how often somebody walks it."""

    walks = 0

    def __getitem__(self, key: Any) -> Any:
        self.walks += key == "journal"
        return super().__getitem__(key)

    def tolist(self) -> Any:
        self.walks += 1
        return super().tolist()


def wide_table() -> Table:
    rows = [(1 + at, FRAME_BYTES, 1, 20) for at in range(JOURNALS)]
    return np.array(rows, ACK_ROW).view(Table)


def test_journals_are_looked_for_once_in_a_table_that_acks_share() -> None:
    slice = ScriptedSlice()
    table = wide_table()
    ack = frames("A20")[0]._replace(hints=table)
    unknown = slice.state.unknown_journals([ack] * 100)
    assert unknown == set(range(1, JOURNALS + 1))
    for journal in unknown:
        slice.state.learned(JournalId(journal), [])
    for _ in range(JOURNALS):
        assert slice.state.unknown_journals([ack]) == set()
    assert table.walks == 2, "once before the Slice learned the journals, and once after"


def test_a_table_is_forgotten_with_its_acks() -> None:
    """Another table may get its address in memory."""
    slice = ScriptedSlice()
    for journal in range(1, 200):
        rows = np.array([(journal, 0, 1, 20), (journal + 1, 0, 1, 20)], ACK_ROW)
        ack = frames("A20")[0]._replace(hints=rows)
        unknown = slice.state.unknown_journals([ack])
        assert unknown == ({1, 2} if journal == 1 else {journal + 1})
        for each in unknown:
            slice.state.learned(JournalId(each), [])
        assert slice.state.unknown_journals([ack]) == set()
        del rows, ack
    assert len(slice.state._hints._known) == 0


def test_a_wide_transaction_is_reported_in_full_and_its_table_walked_once() -> None:
    """Its ACKs come over many reports."""
    slice = ScriptedSlice(limits=Limits(patience=0))
    table = wide_table()
    places = []
    for tag in range(JOURNALS):
        pending, ack = frames("C10 A20", journal=1 + tag)
        places.append(slice.start([pending, ack._replace(hints=table)], tag=tag))
    slice.held = set(places)
    for done, at in enumerate(places, 1):
        slice.held.remove(at)
        (report,) = only(slice.run(), Report)
        parts = [journal for *_, journal, _, _, _, _ in report.delta.parts.tolist()]
        assert parts == list(range(done + 1, JOURNALS + 1)), "the journals that are not read yet"
        # The last ACK leaves nothing to wait for, so the report does not mention the transaction.
        assert [row[3] for row in report.delta.commits.tolist()] == [at] * (done < JOURNALS)
    assert table.walks == 1


# proves G12
def test_a_report_has_no_more_documents_than_the_limit() -> None:
    """It may exceed the limit by one frame, since the Slice never divides frames."""
    slice = ScriptedSlice(limits=Limits(report_documents=3))
    slice.start(frames(" ".join(f"O{10 + at}" for at in range(20))))
    counts = [report.delta.documents for report in only(slice.run(), Report)]
    assert sum(counts) == 20
    assert max(counts) == 3
    assert len(counts) == 7


# proves G12
def test_a_slice_that_is_held_takes_nothing_until_it_is_let_go() -> None:
    slice = ScriptedSlice()
    slice.state.hold([0])
    slice.start(frames("O10 O11 O12"))
    assert only(slice.run(), SendBlock) == []
    slice.state.hold([])
    assert sum(report.delta.documents for report in only(slice.run(), Report)) == 3
