"""Retention, snapshots and deletion, end to end; each test reopens the workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.clock import to_unix_ns
from headrace.errors import BehindRetentionError
from headrace.ids import Offset
from headrace.journal.contract import Frame, JournalInfo
from headrace.journal.hint_tables import HintTableCache
from headrace.journal.local.log_frames import encode_locations
from headrace.journal.wire.messages import Located
from headrace.journal.wire.remote_journals import _stored_frames
from headrace.testing.crash import eventually
from tests.journal.conftest import SETTINGS
from tests.journal.local.maintained_workspace import MaintainedWorkspace, from_offset, seen

SCHEMA = "n long, text string"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[MaintainedWorkspace]:
    with MaintainedWorkspace(tmp_path / "data") as kept:
        yield kept


def only(workspace: hr.Workspace, name: str) -> JournalInfo:
    [journal] = workspace.journals(hr.selector(name))
    return journal


def test_documents_older_than_their_retention_go(kept: MaintainedWorkspace) -> None:
    ws = kept.workspace
    ws.collection("c", SCHEMA, retention_s=1000.0)
    ws.collection("d", SCHEMA)
    for n in range(4):
        ws.append("c", [{"n": n}])
        ws.append("d", [{"n": n}])
    kept.maintenance.run_round()
    assert kept.numbers("c") == [0, 1, 2, 3]
    third = list(ws.frames(only(ws, "c")))[2]
    now_ns = to_unix_ns(third.clock) + 1000 * 10**9
    kept.maintenance._now_ns = lambda: now_ns
    kept.maintenance.run_round()
    assert kept.numbers("c") == [2, 3]
    assert only(ws, "c").begin == third.offset
    assert kept.numbers("d") == [0, 1, 2, 3]
    kept.reopen()
    assert kept.numbers("c") == [2, 3]
    kept.ahead_ns = 2000 * 10**9
    kept.maintenance.run_round()
    journal = only(kept.workspace, "c")
    assert (kept.numbers("c"), journal.frames, journal.begin) == ([], 0, journal.head)
    kept.workspace.append("c", [{"n": 9}])
    kept.reopen()
    assert kept.numbers("c") == [9]


def test_no_journal_holds_a_frame_more_than_its_retention_in_bytes(
    kept: MaintainedWorkspace,
) -> None:
    ws = kept.workspace
    ws.collection("c", SCHEMA, key="n", journals=2, retention_bytes=30_000)
    kept.fill("c", 0, 60)
    before = kept.raw()
    kept.maintenance.run_round()
    for _ in range(2):
        for journal in kept.workspace.journals(hr.selector("c")):
            # Retention removes whole frames, as long as enough stays without them.
            assert 30_000 <= journal.head - journal.begin < 30_000 + 4300
            assert kept.raw()[journal.name] == from_offset(before[journal.name], journal.begin)
        numbers = kept.numbers("c")
        assert len(numbers) == len(set(numbers)) < 20
        kept.reopen()
        kept.maintenance.run_round()
    kept.fill("c", 100, 4)
    kept.maintenance.run_round()
    assert set(kept.numbers("c")) > {100, 101, 102, 103}


# proves G2
def test_retention_does_not_cut_into_a_transaction_that_is_open(kept: MaintainedWorkspace) -> None:
    ws = kept.workspace
    ws.collection("c", SCHEMA, retention_bytes=1)
    ws.append("c", [{"n": 0}])
    tx = ws.publisher().begin()
    for n in range(1, 21):
        tx.append("c", [{"n": n, "text": "x" * 4000}])
    tx.invite()
    ws.append("c", [{"n": 99}])
    kept.maintenance.run_round()
    journal = only(ws, "c")
    assert 0 < journal.begin < journal.head
    assert kept.numbers("c") == [99]
    tx.commit()
    assert kept.numbers("c") == [99, *range(1, 21)]
    kept.maintenance.run_round()
    assert kept.numbers("c") == []


# proves G27
@pytest.mark.parametrize("through_the_owner", [False, True])
def test_a_reader_behind_retention_is_told_where_to_go_on(
    kept: MaintainedWorkspace, through_the_owner: bool
) -> None:
    ws = kept.workspace
    ws.collection("c", SCHEMA, retention_bytes=30_000)
    kept.fill("c", 0, 20)
    listed = only(ws, "c")
    reader = hr.open(ws.location, settings=SETTINGS) if through_the_owner else ws
    with reader:
        kept.maintenance.run_round()
        begin = only(ws, "c").begin
        with pytest.raises(BehindRetentionError) as refused:
            list(reader.frames(listed))
        assert str(refused.value) == (
            f"c/0000: offset 0 was removed by retention; it begins at {begin};"
            f" read from {begin} and accept the gap, or restore from a copy"
        )
        rest = list(reader.frames(listed, begin, committed=False))
        assert rest[0].offset == begin
        assert rest[-1].end == listed.head


# proves G27
def test_a_reader_that_retention_overtakes_gets_an_error_and_no_gap(
    kept: MaintainedWorkspace,
) -> None:
    ws = kept.workspace
    ws.collection("c", SCHEMA, retention_bytes=30_000)
    kept.fill("c", 0, 400)
    reading = ws.frames(only(ws, "c"), committed=False)
    offsets = [next(reading).offset]
    kept.maintain()

    def read_on() -> None:
        for frame in reading:
            offsets.append(frame.offset)

    with pytest.raises(BehindRetentionError):
        read_on()
    assert len(offsets) < 400
    assert offsets == sorted(set(offsets))


def test_a_changed_retention_holds_from_the_next_round(kept: MaintainedWorkspace) -> None:
    kept.workspace.collection("c", SCHEMA)
    kept.fill("c", 0, 20)
    kept.maintenance.run_round()
    assert len(kept.numbers("c")) == 20
    kept.workspace.collection("c", SCHEMA, retention_bytes=9000)
    kept.maintenance.run_round()
    assert kept.numbers("c") == [17, 18, 19]
    kept.workspace.collection("c", SCHEMA, retention_bytes=0)
    kept.fill("c", 20, 20)
    kept.maintenance.run_round()
    assert kept.numbers("c") == list(range(17, 40))


@pytest.mark.parametrize("what", ["collection", "journals", "retention"])
def test_what_is_given_up_frees_its_segments(kept: MaintainedWorkspace, what: str) -> None:
    ws = kept.workspace
    ws.collection("gone", SCHEMA)
    ws.collection("stays", SCHEMA)
    for at in range(5):
        kept.fill("gone", at * 20, 20)
        kept.fill("stays", at, 1)
    kept.maintain()
    full = kept.disk_bytes
    assert full > 400_000
    expected = kept.raw()["stays/0000"]
    if what == "collection":
        ws.delete_collection("gone")
    elif what == "journals":
        ws.delete_journals(["gone/0000"])
    else:
        ws.collection("gone", SCHEMA, retention_bytes=1)
        kept.maintenance.run_round()
    kept.maintain()
    assert kept.disk_bytes < 2 * 64 * 1024 + 5 * 4200
    for _ in range(2):
        assert kept.numbers("stays") == [0, 1, 2, 3, 4]
        assert kept.raw()["stays/0000"] == expected
        kept.reopen()


def test_a_reader_of_files_does_not_miss_what_is_moved_while_it_reads(
    kept: MaintainedWorkspace,
) -> None:
    ws = kept.workspace
    ws.collection("gone", SCHEMA)
    ws.collection("stays", SCHEMA)
    for at in range(5):
        kept.fill("stays", at, 1)
        kept.fill("gone", at * 20, 20)
    journal = only(ws, "stays")
    wanted = journal.id, Offset(0), journal.head

    def read() -> list[Frame] | None:
        located = Located(0, kept.owner.directory, encode_locations(found))
        return _stored_frames(journal.id, located, HintTableCache())

    found = list(kept.owner.locations(*wanted))
    before = read()
    assert before is not None
    assert [seen(frame) for frame in before] == kept.raw()["stays/0000"]
    ws.delete_collection("gone")
    kept.maintain()
    assert read() is None, "it asks again"
    found = list(kept.owner.locations(*wanted))
    after = read()
    assert after is not None
    assert [seen(frame) for frame in after] == [seen(frame) for frame in before]


def test_whoever_asks_where_frames_are_hears_of_all_though_they_move_meanwhile(
    kept: MaintainedWorkspace,
) -> None:
    ws = kept.workspace
    ws.collection("gone", SCHEMA)
    ws.collection("stays", SCHEMA)
    for at in range(5):
        kept.fill("stays", at, 1)
        kept.fill("gone", at * 20, 20)
    journal = only(ws, "stays")
    wanted = journal.id, Offset(0), journal.head
    before = [each.offset for each in kept.owner.locations(*wanted)]
    reading = kept.owner.locations(*wanted)
    first = next(reading)
    ws.delete_collection("gone")
    kept.maintain()
    assert kept.owner.log.segments()[0].base > first.extent.segment, "its segment is gone"
    assert [each.offset for each in (first, *reading)] == before


def test_nothing_is_dropped_that_is_not_in_two_snapshots(kept: MaintainedWorkspace) -> None:
    ws = kept.workspace
    ws.collection("gone", SCHEMA)
    kept.fill("gone", 0, 50)
    ws.delete_collection("gone")
    full = kept.disk_bytes
    kept.maintenance.run_round()
    assert kept.disk_bytes >= full
    kept.maintenance.save_snapshot()
    kept.maintenance.run_round()
    assert kept.disk_bytes >= full
    ws.append("kept/marks", [{"n": 1}])
    kept.maintenance.save_snapshot()
    kept.maintenance.run_round()
    assert kept.disk_bytes < full / 2


# proves G4
@pytest.mark.parametrize("damaged", [0, 1])
def test_either_snapshot_and_the_log_after_it_say_everything(
    kept: MaintainedWorkspace, damaged: int
) -> None:
    ws = kept.workspace
    ws.collection("c", SCHEMA)
    ws.collection("gone", SCHEMA)
    kept.fill("gone", 0, 60)
    ws.publisher("job").begin().commit(b"kept")
    ws.delete_collection("gone")
    kept.fill("c", 0, 3)
    kept.maintain()
    kept.fill("c", 3, 3)
    expected = kept.raw()
    ws.close()
    snapshots = sorted((kept.root / "index").glob("*.snapshot"))
    assert len(snapshots) == 2
    content = bytearray(snapshots[damaged].read_bytes())
    content[len(content) // 2] ^= 1
    snapshots[damaged].write_bytes(content)
    kept.reopen()
    assert kept.raw() == expected
    assert kept.workspace.publisher("job").payload == b"kept"
    assert [each.name for each in kept.workspace.collections()] == ["c", "kept/marks"]
    kept.maintain()
    kept.reopen()
    assert kept.raw() == expected


def test_a_close_after_much_writing_leaves_a_snapshot(kept: MaintainedWorkspace) -> None:
    kept.workspace.collection("c", SCHEMA)
    kept.reopen()
    assert not list((kept.root / "index").iterdir())
    kept.workspace.append("c", [{"n": n, "text": "x" * 90_000} for n in range(50)])
    kept.reopen()
    assert len(list((kept.root / "index").iterdir())) == 1
    assert kept.numbers("c") == list(range(50))


def test_an_owner_keeps_house_by_itself(tmp_path: Path) -> None:
    busy = msgspec.structs.replace(SETTINGS, journal=hr.JournalSettings(keeper_interval_s=0.02))
    with hr.open(tmp_path / "data", settings=busy) as ws:
        ws.collection("c", SCHEMA, retention_bytes=1)
        ws.append("c", [{"n": 1}])
        ws.append("c", [{"n": 2}])
        eventually(lambda: only(ws, "c").frames == 1, 20, "retention")
