"""The owner moves live frames out of old segments while readers see each frame once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import DataError, NotFoundError
from headrace.journal.contract import JournalInfo
from headrace.journal.hint_tables import HintTable
from headrace.testing.crash import chosen_seed
from tests.journal.conftest import SETTINGS
from tests.journal.local.maintained_workspace import MaintainedWorkspace, from_offset, seen

SCHEMA = "n long, text string"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[MaintainedWorkspace]:
    with MaintainedWorkspace(tmp_path / "data") as kept:
        kept.workspace.collection("gone", SCHEMA)
        kept.workspace.collection("stays", SCHEMA, key="n", journals=2)
        yield kept


def mix(kept: MaintainedWorkspace, rounds: int) -> None:
    """Write segments of which little stays live, in transactions and outside of them."""
    for n in range(rounds):
        with kept.workspace.publisher() as tx:
            tx.append("gone", [{"n": n, "text": "x" * 12_000}])
            tx.append("stays", [{"n": 2 * n}, {"n": 2 * n + 1, "text": "y" * 200}])
        kept.workspace.append("stays", [{"n": -n}])
        tx = kept.workspace.publisher().begin()
        tx.append("stays", [{"n": 1000 + n, "text": "z" * 5000}])
        tx.invite()
        tx.rollback()


# proves G1
@pytest.mark.parametrize("through_the_owner", [False, True])
@pytest.mark.parametrize("read_before", [0, 1, 7, 40])
def test_a_read_goes_on_across_rewriting(
    kept: MaintainedWorkspace, read_before: int, through_the_owner: bool
) -> None:
    mix(kept, 40)
    expected = kept.raw()["stays/0000"]
    assert len(expected) > 80
    reader = hr.open(kept.root, settings=SETTINGS) if through_the_owner else kept.workspace
    journal = reader.journals(hr.selector("stays"))[0]
    reading = reader.frames(journal, committed=False)
    found = [seen(next(reading)) for _ in range(read_before)]
    before = kept.owner.log.segments()
    kept.workspace.delete_collection("gone")
    kept.maintain()
    assert kept.owner.log.segments()[0].base > before[3].base, "nothing was rewritten"
    found += map(seen, reading)
    assert found == expected
    reader.close()


# proves G1
@pytest.mark.long
def test_readers_see_every_frame_once_while_segments_go(kept: MaintainedWorkspace) -> None:
    mix(kept, 60)
    expected = kept.raw()
    del expected["gone/0000"]
    stopped = threading.Event()
    rounds = [0, 0]
    failures: list[object] = []

    def read(which: int, workspace: hr.Workspace) -> None:
        try:
            while not stopped.is_set() or rounds[which] < 2:
                for journal in workspace.journals(hr.selector("stays")):
                    frames = list(map(seen, workspace.frames(journal, committed=False)))
                    if frames != expected[journal.name]:
                        failures.append((which, rounds[which], len(frames)))
                rounds[which] += 1
        except BaseException as error:
            failures.append(error)
            raise

    with hr.open(kept.root, settings=SETTINGS) as other:
        readers = [
            threading.Thread(target=read, args=(which, workspace))
            for which, workspace in enumerate((kept.workspace, other))
        ]
        for reader in readers:
            reader.start()
        kept.workspace.delete_collection("gone")
        for _ in range(8):
            # The owner moves a frame again when other frames of its segment are gone.
            kept.workspace.collection("gone", SCHEMA)
            kept.workspace.append("gone", [{"n": n, "text": "x" * 12_000} for n in range(8)])
            kept.workspace.delete_collection("gone")
            kept.maintain()
        stopped.set()
        for reader in readers:
            reader.join()
    assert not failures
    assert min(rounds) >= 2
    kept.reopen()
    found = kept.raw()
    assert {name: found[name] for name in expected} == expected


# proves G1
def test_copies_whose_originals_were_not_dropped_yet_do_no_harm(kept: MaintainedWorkspace) -> None:
    """A crash between copying and dropping leaves both."""
    mix(kept, 20)
    kept.workspace.delete_collection("gone")
    kept.maintain()
    mix_again = kept.workspace.collection("gone", SCHEMA)
    assert mix_again.version == 0
    mix(kept, 20)
    expected = kept.raw()
    for segment in kept.owner.log.segments()[:-1]:
        kept.maintenance._move_out(segment)
    assert kept.raw() == expected
    kept.reopen()
    assert kept.raw() == expected
    kept.maintain()
    assert kept.raw() == expected


def test_hints_of_a_moved_ack_name_what_is_still_there(kept: MaintainedWorkspace) -> None:
    mix(kept, 20)
    ids = {journal.id for journal in kept.workspace.journals(hr.selector("stays"))}
    kept.workspace.delete_collection("gone")
    kept.maintain()
    journal = kept.workspace.journals(hr.selector("stays"))[0]
    segments = kept.owner.log.segments()
    moved = 0
    for frame in kept.workspace.frames(journal, committed=False):
        if frame.hints is not None:
            own = (frame.journal, frame.offset, frame.producer, frame.clock)
            rows = frame.hints.tolist()
            assert own in rows
            moved += {row[0] for row in rows} <= ids
    assert moved > 10
    assert segments[0].base > 0


# proves G1
@pytest.mark.parametrize("way", ["owner", "files", "wire"])
def test_a_remembered_table_is_not_taken_for_the_one_that_an_ack_moved_to(
    kept: MaintainedWorkspace, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The copy has fewer rows than the original, so the same ACK is in another row."""
    ws = kept.workspace
    for name in ("wide/gone", "wide/stays"):
        ws.collection(name, "p long, text string", partition_by="p")
    for _ in range(10):
        with ws.publisher() as tx:
            tx.append("wide/gone", [{"p": p, "text": "x" * 1000} for p in range(20)])
            with ws.join(tx.invite()) as part:
                part.append("wide/stays", [{"p": p, "text": "y" * 10} for p in range(20)])
                tx.include(part.prepare())
    expected = kept.raw()
    stays = ws.journals(hr.selector("wide/stays"))
    ids = {journal.id for journal in stays}
    if way == "wire":
        monkeypatch.setattr("headrace.journal.wire.remote_journals.is_here", lambda _: False)
    reader = ws if way == "owner" else hr.open(kept.root, settings=SETTINGS)

    def read(journal: JournalInfo) -> list[HintTable]:
        fetch = reader._connection.journals().fetch
        frames = fetch(journal.id, journal.begin, journal.head, 1 << 20).result()
        assert [seen(frame) for frame in frames] == expected[journal.name]
        tables = [frame.hints for frame in frames if frame.hints is not None]
        assert len(tables) == 10
        return tables

    assert {len(table) for journal in stays[:10] for table in read(journal)} == {40}
    before = kept.owner.log.segments()
    ws.delete_collection("wide/gone")
    kept.maintain()
    assert kept.owner.log.segments()[0].base > before[2].base, "nothing was rewritten"
    found = [table for journal in stays for table in read(journal)]
    moved = [table for table in found if {row[0] for row in table.tolist()} == ids]
    assert len(moved) > 100
    assert len({id(table) for table in found}) == 10
    if reader is not ws:
        reader.close()


class Life:
    """Random work on a workspace, and what each journal must hold after it."""

    def __init__(self, kept: MaintainedWorkspace, seed: str) -> None:
        self.kept = kept
        self.chance = random.Random(seed)
        self.numbers = count()

    def step(self) -> None:
        names = [each.name for each in self.kept.workspace.collections() if "/" not in each.name]
        match self.chance.choice(
            ["write"] * 6 + ["delete", "retain", "maintain", "maintain", "reopen"]
        ):
            case "write":
                self.write(names)
            case "delete" if len(names) > 2:
                self.kept.workspace.delete_collection(self.chance.choice(names))
            case "delete":
                self.kept.workspace.collection(f"c{next(self.numbers)}", SCHEMA)
            case "retain":
                self.kept.workspace.collection(
                    name := self.chance.choice(names),
                    SCHEMA,
                    key=self.kept.workspace.collection(name).key,
                    journals=self.kept.workspace.collection(name).journals,
                    retention_bytes=self.chance.choice([None, 2_000, 40_000]),
                )
            case "maintain":
                self.check(self.kept.maintain)
            case "reopen":
                self.check(self.kept.reopen)

    def write(self, names: list[str]) -> None:
        tx = self.kept.workspace.publisher(self.chance.choice(["", "named"])).begin()
        for _ in range(self.chance.randrange(1, 6)):
            size = self.chance.choice([10, 500, 20_000])
            document = {"n": next(self.numbers), "text": "x" * size}
            tx.append(self.chance.choice(names), [document])
        tx.rollback() if self.chance.random() < 0.3 else tx.commit()

    def check(self, change: object) -> None:
        before = self.kept.raw()
        assert callable(change)
        change()
        after = self.kept.raw()
        assert after.keys() == before.keys()
        for journal in self.kept.workspace.journals():
            if journal.name in before:
                expected = from_offset(before[journal.name], journal.begin)
                assert after[journal.name] == expected
                assert journal.frames == len(expected)


# proves G1
@pytest.mark.long
def test_whatever_is_done_each_journal_holds_its_frames_from_its_begin_on(tmp_path: Path) -> None:
    seed = chosen_seed(default=5)
    dropped = 0
    for life in range(6):
        with MaintainedWorkspace(tmp_path / f"{life}") as kept:
            kept.workspace.collection("gone", SCHEMA)
            kept.workspace.collection("stays", SCHEMA, key="n", journals=2)
            working = Life(kept, f"{seed}/{life}")
            for _ in range(60):
                working.step()
            working.check(kept.maintain)
            dropped += kept.owner.log.segments()[0].base > 0
    assert dropped >= 3


@pytest.mark.long
def test_a_journal_that_is_deleted_while_it_is_read_says_so(kept: MaintainedWorkspace) -> None:
    kept.fill("stays", 0, 600)
    journal = kept.workspace.journals(hr.selector("stays"))[0]
    reading = kept.workspace.frames(journal, committed=False)
    next(reading)
    kept.workspace.delete_collection("stays")
    kept.maintain()
    with pytest.raises(NotFoundError, match=f"journal {journal.name} is gone"):
        list(reading)


# proves G4
def test_a_segment_that_somebody_removed_is_an_error_and_no_endless_search(
    kept: MaintainedWorkspace,
) -> None:
    mix(kept, 20)
    kept.maintain()
    kept.workspace.close()
    min((kept.root / "log").iterdir()).unlink()
    kept.reopen()
    with pytest.raises(DataError, match=r"gone/0000: the log has lost the frame at offset 0,"):
        kept.numbers("gone")
