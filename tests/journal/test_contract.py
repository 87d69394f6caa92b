"""The contract of `Journals` for readers: one suite, at the owner and through it."""

from __future__ import annotations

import threading

import pytest

import headrace as hr
from headrace.errors import (
    AheadOfHeadError,
    BehindRetentionError,
    NotFoundError,
    OffsetError,
    UsageError,
)
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Frame, JournalInfo
from headrace.journal.sequencer import Flags
from tests.journal.conftest import column, mixture

PLENTY = 1 << 30


def comparable(frame: Frame) -> tuple[object, ...]:
    hints = None if frame.hints is None else frame.hints.tolist()
    return *frame[:8], type(frame.flags), bytes(frame.body), frame.skip, hints


@pytest.mark.long
def test_frames_are_the_same_at_the_owner_and_through_it_from_any_offset(
    owner: hr.Workspace, workspace: hr.Workspace
) -> None:
    mixture(workspace)
    listed = workspace.journals()
    assert listed == owner.journals()
    for journal in listed:
        every = list(owner.frames(journal, committed=False))
        assert {frame.flags for frame in every} == set(Flags)
        assert [frame.offset for frame in every] == [0, *(frame.end for frame in every[:-1])]
        starts = [frame.offset for frame in every] + [journal.head]
        for offset in starts:
            for committed in (False, True):
                there = workspace.frames(journal, offset, committed=committed)
                here = list(map(comparable, owner.frames(journal, offset, committed=committed)))
                assert list(map(comparable, there)) == here
                if not committed:
                    expected = [frame for frame in every if frame.offset >= offset]
                    assert here == list(map(comparable, expected))


def test_a_read_begins_where_it_is_told_and_ends_where_the_journal_was_listed(
    workspace: hr.Workspace,
) -> None:
    workspace.collection("c", "n long")
    workspace.append("c", [{"n": 1}])
    [early] = workspace.journals()
    workspace.append("c", [{"n": 2}])
    workspace.append("c", [{"n": 3}])
    assert column(workspace, "c", "n", start={"c/0000": early.head}) == [2, 3]
    assert [frame.documents for frame in workspace.frames(early)] == [1]
    [late] = workspace.journals()
    assert column(workspace, "c", "n", start={"c/0000": late.head}) == []
    with pytest.raises(UsageError, match="the read of 'c' has no journal 'other'"):
        column(workspace, "c", "n", start={"other": 0})


# proves G27
def test_an_offset_that_cannot_be_read_says_what_can(
    owner: hr.Workspace, workspace: hr.Workspace
) -> None:
    workspace.collection("c", "n long", retention_bytes=1)
    workspace.append("c", [{"n": 1}])
    workspace.append("c", [{"n": 2}])
    owner.maintain()
    [journal] = workspace.journals()
    assert 0 < journal.begin < journal.head
    with pytest.raises(BehindRetentionError, match=r"offset 0 was removed by retention.*read from"):
        list(workspace.frames(journal, 0))
    beyond = JournalInfo(journal.id, journal.name, journal.begin, Offset(journal.head + 1), 9)
    for committed in (True, False):
        with pytest.raises(AheadOfHeadError, match=f"offset {journal.head + 1} is beyond its head"):
            list(workspace.frames(beyond, committed=committed))
    unknown = JournalInfo(JournalId(999), "x/0000", Offset(0), Offset(0), 0)
    with pytest.raises(NotFoundError, match=r"journal of id \d+ is gone"):
        list(workspace.frames(unknown))
    with pytest.raises(OffsetError, match=f"offset {journal.begin + 1} lies inside a frame"):
        list(workspace.frames(journal, journal.begin + 1))
    assert column(workspace, "c", "n") == [2]


def test_a_watch_sees_journals_come_and_go_and_heads_move(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long, p string", partition_by="p")
    workspace.collection("d", "n long")
    workspace.append("c", [{"n": 1, "p": "x"}])
    watch = workspace.watch(hr.selector("c"))
    first = watch.next(0)
    assert first.created == workspace.journals(hr.selector("c"))
    assert (first.deleted, first.heads) == ([], {})
    assert not watch.next(0)
    workspace.append("d", [{"n": 2}])
    workspace.append("c", [{"n": 3, "p": "x"}, {"n": 4, "p": "y"}])
    created: list[JournalInfo] = []
    heads: dict[JournalId, Offset] = {}
    while len(heads) < 2:
        seen = watch.next(20)
        assert seen, "nothing was seen"
        created += seen.created
        heads |= seen.heads
    x, y = workspace.journals(hr.selector("c"))
    assert [journal.id for journal in created] == [y.id]
    assert heads == {x.id: x.head, y.id: y.head}
    workspace.delete_journals([x.name])
    assert watch.next(20).deleted == [x.id]
    watch.close()


def test_a_watch_sees_what_any_of_its_selectors_matches_and_nothing_else(
    workspace: hr.Workspace,
) -> None:
    for name in ("c", "d"):
        workspace.collection(name, "n long, p string", partition_by="p")
    workspace.collection("e", "n long")
    watch = workspace.watch(
        hr.selector("c", {"p": ["x"]}),
        hr.selector("c", {"p": ["z"]}),
        hr.selector("d", {}, {"p": ["x"]}),
    )
    assert not watch.next(0).created
    workspace.append("e", [{"n": 0}])
    for name in ("c", "d"):
        workspace.append(name, [{"n": 1, "p": value} for value in "xyz"])
    names: set[str] = set()
    heads: set[JournalId] = set()
    while len(heads) < 4:
        seen = watch.next(20)
        assert seen, "nothing was seen"
        names |= {journal.name for journal in seen.created}
        heads |= seen.heads.keys()
    assert names == {"c/p=x/0000", "c/p=z/0000", "d/p=y/0000", "d/p=z/0000"}
    assert heads == {each.id for each in workspace.journals() if each.name in names}
    watch.close()


def test_a_watch_of_nothing_begins_empty_and_waits(workspace: hr.Workspace) -> None:
    watch = workspace.watch(hr.selector("later"))
    assert not watch.next(3600), "that there is none is said at once"
    assert not watch.next(0.01)
    workspace.collection("later", "n long")
    assert [journal.name for journal in watch.next(20).created] == ["later/0000"]
    watch.close()


def test_closing_a_watch_ends_the_wait_for_it(workspace: hr.Workspace) -> None:
    watch = workspace.watch()
    watch.next(0)
    ended: list[str] = []

    def wait() -> None:
        try:
            while True:
                watch.next(60)
        except hr.HeadraceError as error:
            ended.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    watch.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert ended == ["the watch is closed; open another"]
    with pytest.raises(UsageError, match="the watch is closed"):
        watch.next(0)


def test_a_fetch_gives_the_frames_that_begin_in_its_range(
    owner: hr.Workspace, workspace: hr.Workspace
) -> None:
    mixture(workspace)
    journals = workspace._connection.journals()
    for journal in workspace.journals():
        every = list(owner.frames(journal, committed=False))
        for frame in every:
            for through in (frame.offset + 1, frame.end, frame.end + 1, journal.head):
                end = Offset(min(through, journal.head))
                found = journals.fetch(journal.id, frame.offset, end, PLENTY)
                expected = [f for f in every if frame.offset <= f.offset < through]
                assert list(map(comparable, found.result())) == list(map(comparable, expected))
        with pytest.raises(AheadOfHeadError):
            journals.fetch(journal.id, Offset(0), Offset(journal.head + 1), PLENTY).result()
    with pytest.raises(NotFoundError):
        journals.fetch(JournalId(99), Offset(0), Offset(1), PLENTY).result()


@pytest.mark.parametrize("sees_files", [True, False])
def test_a_fetch_stops_when_it_is_full_and_the_next_goes_on_where_it_ended(
    owner: hr.Workspace,
    workspace: hr.Workspace,
    monkeypatch: pytest.MonkeyPatch,
    sees_files: bool,
) -> None:
    mixture(workspace)
    if not sees_files:
        monkeypatch.setattr("headrace.journal.wire.remote_journals.is_here", lambda _: False)
    journals = workspace._connection.journals()
    for journal in workspace.journals():
        every = list(owner.frames(journal, committed=False))
        for bytes_max in (0, 1, every[0].bytes, 5000, 20_000, PLENTY):
            found: list[Frame] = []
            fetches = 0
            offset = Offset(0)
            while more := journals.fetch(journal.id, offset, journal.head, bytes_max).result():
                held = [frame.bytes for frame in more]
                assert sum(held[:-1]) <= bytes_max, "it stops at the one that fills it"
                assert all(len(frame.body) < frame.bytes for frame in more)
                found += more
                offset = more[-1].end
                fetches += 1
            assert list(map(comparable, found)) == list(map(comparable, every))
            assert offset == journal.head
            held_bytes = sum(frame.bytes for frame in found)
            assert (
                fetches <= len(every) if bytes_max < 2 else fetches <= held_bytes // bytes_max + 1
            )
        assert journals.fetch(journal.id, journal.head, journal.head, PLENTY).result() == []


def test_journals_are_named_by_their_ids(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long", journals=2)
    first, second = workspace.journals()
    workspace.delete_journals([second.name])
    journals = workspace._connection.journals()
    assert journals.journal_names([second.id, first.id, JournalId(99)]) == ["", "c/0000", ""]


def fetched(workspace: hr.Workspace, journal: JournalInfo) -> list[tuple[object, ...]]:
    journals = workspace._connection.journals()
    frames = journals.fetch(journal.id, Offset(0), journal.head, PLENTY).result()
    return list(map(comparable, frames))


@pytest.mark.parametrize("sees_files", [True, False])
def test_what_is_fetched_is_what_is_read_wherever_the_reader_is(
    owner: hr.Workspace,
    workspace: hr.Workspace,
    monkeypatch: pytest.MonkeyPatch,
    sees_files: bool,
) -> None:
    mixture(workspace)
    if not sees_files:
        monkeypatch.setattr("headrace.journal.wire.remote_journals.is_here", lambda _: False)
    for journal in workspace.journals():
        frames = list(map(comparable, owner.frames(journal, committed=False)))
        assert fetched(workspace, journal) == frames
        assert fetched(workspace, journal) == frames
