"""The ACKs of a transaction over many journals share a hint table, which travels once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

import headrace as hr
from headrace.ids import Offset
from headrace.journal import hint_tables
from headrace.journal.contract import Frame, JournalInfo
from headrace.journal.local.records import ACK_BYTES
from headrace.journal.wire.messages import Ask, Fetched, FetchRequest
from headrace.journal.wire.remote_journals import RemoteJournals
from headrace.log import Extent, LogFiles
from tests.journal.conftest import SETTINGS
from tests.journal.test_contract import PLENTY, comparable

WIDE = 60
TABLE_BYTES = WIDE * ACK_BYTES
TRANSACTIONS = 5

WAYS = ["files", "wire"]


@pytest.fixture(params=["owner", *WAYS])
def reader(
    request: pytest.FixtureRequest, owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[hr.Workspace]:
    if request.param == "wire":
        monkeypatch.setattr("headrace.journal.wire.remote_journals.is_here", lambda _: False)
    if request.param == "owner":
        yield owner
        return
    with hr.open(owner.location, settings=SETTINGS) as workspace:
        yield workspace


def publish(workspace: hr.Workspace, transactions: int) -> list[JournalInfo]:
    """Write transactions over all journals, with one document in each."""
    workspace.collection("c", "n long, p long", partition_by="p")
    for n in range(transactions):
        with workspace.publisher() as tx:
            tx.append("c", [{"n": n, "p": p} for p in range(WIDE)])
    return workspace.journals()


def fetched(
    workspace: hr.Workspace, journals: Iterable[JournalInfo], bytes_max: int = PLENTY
) -> list[list[Frame]]:
    """Fetch all frames of each journal, from all journals at once, as a Slice does."""
    location = workspace._connection.journals()
    frames: dict[JournalInfo, list[Frame]] = {journal: [] for journal in journals}
    unread = {journal: Offset(0) for journal in frames}
    while unread:
        asked = [
            (journal, location.fetch(journal.id, offset, journal.head, bytes_max))
            for journal, offset in unread.items()
        ]
        for journal, answer in asked:
            more = answer.result()
            frames[journal] += more
            unread[journal] = more[-1].end if more else journal.head
        unread = {j: offset for j, offset in unread.items() if offset < j.head}
    return list(frames.values())


def tables(frames: Sequence[Sequence[Frame]]) -> dict[int, int]:
    """Return how many ACKs have each table."""
    found: dict[int, int] = {}
    for of_journal in frames:
        for frame in of_journal:
            if frame.hints is not None:
                found[id(frame.hints)] = found.get(id(frame.hints), 0) + 1
    return found


def check(owner: hr.Workspace, journals: Sequence[JournalInfo], found: list[list[Frame]]) -> None:
    for journal, frames in zip(journals, found, strict=True):
        expected = owner.frames(journal, committed=False)
        assert list(map(comparable, frames)) == list(map(comparable, expected))


# proves G12
@pytest.mark.parametrize("bytes_max", [1, TABLE_BYTES, PLENTY])
def test_the_acks_of_a_transaction_share_their_table_and_it_counts_once(
    owner: hr.Workspace, reader: hr.Workspace, bytes_max: int
) -> None:
    journals = publish(owner, TRANSACTIONS)
    assert TABLE_BYTES > hint_tables.WIDE_BYTES
    found = fetched(reader, journals, bytes_max)
    check(owner, journals, found)
    assert list(tables(found).values()) == [WIDE] * TRANSACTIONS
    every = [frame for frames in found for frame in frames]
    least = sum(len(frame.body) for frame in every) + len(every) * ACK_BYTES
    counted = sum(frame.bytes for frame in every)
    assert least <= counted < least + len(every) * ACK_BYTES + TRANSACTIONS * TABLE_BYTES
    assert all(not frame.hints.flags.writeable for frame in every if frame.hints is not None)


def spied(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[Fetched], list[FetchRequest], list[Extent]]:
    """Record the answers, the fetches, and what is read from files."""
    answers: list[Fetched] = []
    asked: list[FetchRequest] = []
    extents: list[Extent] = []
    settle, read = RemoteJournals._settle, LogFiles.read

    def spy_settle(self: RemoteJournals, answer: Any, bodies: Sequence[Any]) -> None:
        if isinstance(answer, Fetched):
            answers.append(answer)
        settle(self, answer, bodies)

    def spy_read(self: LogFiles, wanted: Iterable[Extent]) -> Iterator[memoryview]:
        wanted = list(wanted)
        extents.extend(wanted)
        return read(self, wanted)

    def spy_ask(number: int, call: Any) -> Ask:
        if isinstance(call, FetchRequest):
            asked.append(call)
        return Ask(number, call)

    monkeypatch.setattr(RemoteJournals, "_settle", spy_settle)
    monkeypatch.setattr(LogFiles, "read", spy_read)
    monkeypatch.setattr("headrace.journal.wire.remote_journals.Ask", spy_ask)
    return answers, asked, extents


@pytest.mark.parametrize("reader", WAYS, indirect=True)
def test_a_table_is_sent_or_read_once(
    owner: hr.Workspace, reader: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals = publish(owner, TRANSACTIONS)
    answers, _, extents = spied(monkeypatch)
    for _ in range(2):
        check(owner, journals, fetched(reader, journals))
    sent = [rows for answer in answers for rows in answer.frames.hints if rows]
    read = [extent for extent in extents if extent.bytes > TABLE_BYTES]
    if extents:
        assert (sent, len(read)) == ([], TRANSACTIONS)
    else:
        assert [len(rows) for rows in sent] == [TABLE_BYTES] * TRANSACTIONS


@pytest.mark.parametrize("reader", ["wire"], indirect=True)
def test_small_tables_travel_with_their_acks(
    owner: hr.Workspace, reader: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.collection("c", "n long, p long", partition_by="p")
    for n in range(3):
        with owner.publisher() as tx:
            tx.append("c", [{"n": n, "p": p} for p in range(4)])
    answers, _, _ = spied(monkeypatch)
    journals = owner.journals()
    check(owner, journals, fetched(reader, journals))
    sent = [len(rows) for answer in answers for rows in answer.frames.hints]
    assert sent == [4 * ACK_BYTES] * 12


@pytest.mark.parametrize("reader", ["wire"], indirect=True)
def test_both_sides_forget_the_same_tables(
    owner: hr.Workspace, monkeypatch: pytest.MonkeyPatch, reader: hr.Workspace
) -> None:
    """When a reader goes back, both sides have forgotten the tables, so it asks once."""
    monkeypatch.setattr(hint_tables, "REMEMBERED_BYTES", 2 * TABLE_BYTES)
    journals = publish(owner, TRANSACTIONS)
    answers, asked, _ = spied(monkeypatch)
    with hr.open(owner.location, settings=SETTINGS) as other:
        for _ in range(3):
            # Journal by journal, every table is forgotten before it is needed again.
            for journal in journals[:3]:
                check(owner, [journal], fetched(other, [journal]))
    sent = [rows for answer in answers for rows in answer.frames.hints if rows]
    assert len(sent) == 3 * 3 * TRANSACTIONS
    assert [fetch for fetch in asked if fetch.anew] == []


@pytest.mark.parametrize("reader", ["wire"], indirect=True)
def test_a_reader_that_has_forgotten_a_table_asks_anew(
    owner: hr.Workspace, reader: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals = publish(owner, TRANSACTIONS)
    check(owner, journals, fetched(reader, journals))
    location = reader._connection.journals()
    assert isinstance(location, RemoteJournals)
    location._tables = hint_tables.HintTableCache()
    _, asked, _ = spied(monkeypatch)
    check(owner, journals[:1], fetched(reader, journals[:1]))
    assert [fetch.anew for fetch in asked] == [False, True]
    check(owner, journals, fetched(reader, journals))
    assert sum(fetch.anew for fetch in asked) == 1, "it has them again"


def test_acks_of_many_producers_in_one_journal_share_their_table(
    owner: hr.Workspace, reader: hr.Workspace
) -> None:
    owner.collection("c", "n long")
    with owner.publisher() as tx:
        for n in range(WIDE):
            with owner.join(tx.invite()) as part:
                part.append("c", [{"n": n}])
                tx.include(part.prepare())
    journals = owner.journals()
    found = fetched(reader, journals)
    check(owner, journals, found)
    assert list(tables(found).values()) == [WIDE]
    assert sum(f.bytes for f in found[0] if f.hints is not None) < 4 * TABLE_BYTES
