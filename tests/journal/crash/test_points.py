"""A process dies at every single change that its fixed work makes to the disk."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import NotFoundError
from headrace.journal.collection import Collection
from headrace.journal.local.owner import Owner
from headrace.journal.names import Selector, parse_journal_name
from headrace.testing.crash import Child, KillPoint, chosen_seed
from tests.journal.crash import oracle, scripted_work
from tests.journal.crash.publisher_process import documents, open_workspace
from tests.journal.crash.scripted_work import DOOMED, LABEL, SETTINGS, Rehearsal, Work

AT_ONCE = 2
WAIT_S = 60.0
SHARES = (0.01, 0.5, 0.99)
REACHED_SHARE_MIN = 0.9
LATER = 1_000_000
ONE_SEGMENT = hr.Settings(
    log=hr.LogSettings(idle_seal_s=scripted_work.NEVER_S), journal=SETTINGS.journal
)


@dataclass(frozen=True)
class Death:
    """Where to die: at a change of the disk, or at a line of saving a snapshot."""

    change: KillPoint | None = None
    line: int = -1


def deaths(rehearsal: Rehearsal) -> list[Death]:
    """Return a death at every change of the disk."""
    points = []
    for change, is_write in enumerate(rehearsal.writes):
        points += [KillPoint(change, "before"), KillPoint(change, "after")]
        if is_write:
            points += [KillPoint(change, "torn", share) for share in SHARES]
    return [Death(point) for point in points]


def late_deaths(rehearsal: Rehearsal) -> list[Death]:
    return [
        each for each in deaths(rehearsal) if each.change and each.change.change >= rehearsal.late
    ]


def deaths_while_saving(rehearsal: Rehearsal) -> list[Death]:
    return [Death(line=line) for line in range(rehearsal.lines)]


def die_and_check(root: Path, work: Work, chosen: Sequence[Death]) -> None:
    root.mkdir()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        places = [root / str(n) for n in range(len(chosen))]
        died = list(threads.map(lambda *each: _die_and_check(work, *each), places, chosen))
    print(f"{work}: {sum(died)} of {len(died)} points reached")
    assert sum(died) >= REACHED_SHARE_MIN * len(died)


def _die_and_check(work: Work, root: Path, death: Death) -> bool:
    """Return True if it died: sometimes a run makes a change less and misses the last."""
    verdicts = root.with_suffix(".verdicts")
    verdicts.touch()
    setup = "from tests.journal.crash import scripted_work"
    with Child(setup, work=work, root=root, verdicts=verdicts) as child:
        child.start(
            "scripted_work.do(work, root, verdicts, death, line)",
            death=death.change,
            line=death.line,
        )
        died = _dies(child)
    try:
        _check_reopened(root, oracle.verdicts([verdicts]))
    except BaseException as error:
        error.add_note(f"{work} with {death}")
        raise
    return died


def _dies(child: Child) -> bool:
    try:
        child.answer(WAIT_S)
    except (EOFError, ConnectionError):
        assert child.wait(WAIT_S) == -signal.SIGKILL
        return True
    return False


def _check_reopened(root: Path, reported: oracle.Verdicts) -> None:
    """Check that verdicts hold, nothing is open, and the work can continue."""
    with open_workspace(root, SETTINGS) as workspace:
        with suppress(NotFoundError):
            workspace.delete_collection(DOOMED)
        oracle.check_all_ended(workspace)
        publisher = workspace.publisher(LABEL)
        reported.opened.append((LABEL, int(publisher.payload or -1), LATER))
        visible = oracle.check(workspace, reported)
        with publisher as transaction:
            for collection, rows in documents(LABEL, LATER, 9):
                transaction.append(collection, rows)
    reported.committed.add((LABEL, LATER))
    with open_workspace(root, SETTINGS) as workspace:
        assert oracle.check(workspace, reported) == visible + 1


def rehearse(work: Work, root: Path) -> Rehearsal:
    """Rehearse the work; if nobody dies, everything is there."""
    rehearsal = scripted_work.rehearse(work, root)
    _check_reopened(root, oracle.verdicts([root.with_suffix(".verdicts")]))
    return rehearsal


# proves G1, G2, G3, G4
def test_dying_at_any_change_of_the_disk_leaves_transactions_whole_or_gone(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed(default=21))
    rehearsal = rehearse("publish", tmp_path / "rehearsal")
    chosen = chance.sample(deaths(rehearsal), 5) + chance.sample(late_deaths(rehearsal), 5)
    die_and_check(tmp_path / "deaths", "publish", chosen)


# proves G1, G2, G3, G4
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_every_change_of_the_disk_while_publishing(tmp_path: Path) -> None:
    rehearsal = rehearse("publish", tmp_path / "rehearsal")
    die_and_check(tmp_path / "deaths", "publish", deaths(rehearsal))


# proves G1, G2
def test_dying_while_snapshots_are_saved_and_segments_dropped_loses_nothing(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed(default=22))
    rehearsal = rehearse("maintain", tmp_path / "rehearsal")
    saving, maintaining = deaths_while_saving(rehearsal), late_deaths(rehearsal)
    die_and_check(
        tmp_path / "deaths", "maintain", chance.sample(saving, 5) + chance.sample(maintaining, 5)
    )


# proves G1, G2
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_every_change_while_maintaining_and_every_line_of_saving(
    tmp_path: Path,
) -> None:
    rehearsal = rehearse("maintain", tmp_path / "rehearsal")
    chosen = deaths(rehearsal) + deaths_while_saving(rehearsal)
    die_and_check(tmp_path / "deaths", "maintain", chosen)


class Tail:
    """The last group of a log of one segment, which can be cut anywhere."""

    def __init__(self, root: Path, before: int) -> None:
        self._segment = _segment(root)
        self._data = self._segment.read_bytes()
        self.before = before
        self.end = len(self._data)

    def shown(self, location: Path, cut: int) -> Counter[int]:
        """Return how many documents each transaction shows if the log ends there."""
        (location / "log").mkdir(parents=True)
        (location / "log" / self._segment.name).write_bytes(self._data[:cut])
        owner = Owner(location, ONE_SEGMENT)
        try:
            return _documents_shown(owner)
        finally:
            owner.close()


def _documents_shown(owner: Owner) -> Counter[int]:
    collections = {each.name: Collection(each) for each in owner.collections()}
    shown: Counter[int] = Counter()
    for journal in owner.journals(Selector()):
        collection = collections[parse_journal_name(journal.name).collection]
        for frame in owner.read(journal.id, journal.begin, journal.head, True):
            shown.update(collection.decode(frame.body, frame.schema).column("tx").to_pylist())
    return shown


def _segment(root: Path) -> Path:
    (segment,) = (root / "log").glob("*.log")
    return segment


# proves G2, G4
def test_no_part_of_a_commit_shows_anything_and_the_whole_of_it_shows_everything(
    tmp_path: Path,
) -> None:
    root = tmp_path / "workspace"
    with open_workspace(root, ONE_SEGMENT) as workspace:
        transaction = workspace.publisher(LABEL).begin()
        for collection, rows in documents(LABEL, 1, 60):
            transaction.append(collection, rows)
        log = scripted_work.ownership_of(workspace).owner.log
        transaction._buffer.send(transaction._buffer.seal()).result()
        before, groups = _segment(root).stat().st_size, log.syncs
        transaction.commit(b"payload")
        assert log.syncs == groups + 1, "the intent and all its ACKs are one group"
        tail = Tail(root, before)
    # Frames are padded, so a frame is whole a few bytes before its group ends.
    cuts = [*range(tail.before, tail.end - 8), tail.end]
    for cut in cuts:
        shown = tail.shown(tmp_path / str(cut), cut)
        assert shown == ({1: 60} if cut == tail.end else {}), f"cut at {cut} of {tail.end}"


# proves G2, G4
def test_part_of_a_group_shows_the_first_of_its_transactions_whole(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    sizes = {1: 9, 2: 1, 3: 12}
    with open_workspace(root, ONE_SEGMENT) as workspace:
        log = scripted_work.ownership_of(workspace).owner.log
        publisher = workspace.publisher(LABEL)
        with scripted_work.written_together(log):
            before, groups = _segment(root).stat().st_size, log.syncs
            pending = []
            for tx, parts in sizes.items():
                transaction = publisher.begin()
                for collection, rows in documents(LABEL, tx, parts):
                    transaction.append(collection, rows)
                pending.append(transaction.commit_nowait())
        for each in pending:
            each.result()
        assert log.syncs == groups + 2, "the held group, and one that holds them all"
        tail = Tail(root, before)
    counts = []
    for cut in [*range(tail.before, tail.end, 41), tail.end]:
        shown = tail.shown(tmp_path / str(cut), cut)
        assert shown == {tx: sizes[tx] for tx in list(sizes)[: len(shown)]}
        counts.append(len(shown))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}
