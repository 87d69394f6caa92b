"""A checkpoint shows documents; progress that shows none waits for one that does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.clock import Clock
from headrace.frontier import JOURNAL_ROW
from headrace.settings import KIB, MIB
from headrace.shuffle import Checkpoint, History
from headrace.shuffle.checkpoints.checkpoint_feed import Feed
from headrace.shuffle.member.local_members import LocalMembers
from headrace.shuffle.session.producer_row import ProducerRow, Publishable
from tests.shuffle.builders import source
from tests.shuffle.memory_session import MemorySession

A, B, C = 1, 2, 3
WAIT_S = 60.0


def ab(window: tuple[int, int] = (0, (1 << 64) - 1)) -> MemorySession:
    return MemorySession("ab", [source(n, name, window=window) for n, name in enumerate("ab")])


def roll_back(story: MemorySession, journal: int, clock: int) -> None:
    story.write(journal, clock)
    # An ACK at the last clock that is committed takes back what came after it.
    story.ack(journal, 0)


# -- the Session -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_what_is_complete_is_shown_though_its_report_has_more_that_waits(seed: int) -> None:
    """P commits A at 10 and 30, and in between B with C; no journal has the ACK in C."""
    story = MemorySession("abc", [source(n, name) for n, name in enumerate("abc")], seed=seed)
    story.outside(A, 10)
    story.write(B, 19)
    story.ack(B, 20, hints=story.hints(20, B, C))
    story.outside(A, 30)
    assert story.next() == [(0, 10)]
    assert story.poll() is None
    story.outside(C, 40, producer=2)
    assert story.next() == [(0, 30), (1, 19), (2, 40)]


def test_what_a_replay_has_shown_makes_no_other_checkpoint() -> None:
    story = MemorySession("abc", [source(n, name) for n, name in enumerate("abc")])
    story.outside(A, 10)
    story.settle()
    wanted = story.run.session.next_checkpoint()
    story.write(B, 19)
    story.ack(B, 20, hints=story.hints(20, B, C))
    story.outside(A, 30)
    story.open(wanted)
    assert story.next() == [(0, 10)]
    assert story.poll() is None


def test_what_waits_is_looked_at_again_when_it_is_reported_or_released_and_not_before() -> None:
    """Otherwise the cost of many journals that are ahead would grow with their number squared."""
    story = ab()
    session = story.run.session
    looked_at: list[int] = []
    publishable = session.frontier._publishable

    def counted(row: ProducerRow) -> Publishable:
        looked_at.append(row.producer)
        return publishable(row)

    session.frontier._publishable = counted  # type: ignore[method-assign]
    hints = {}
    for number in range(1, 21):
        story.write(A, 10 * number, producer=number)
        hints[number] = story.hints(10 * number + 1, A, producer=number)
        hints[number] += [(B, story.journal(B).head + 5 * number, number, 10 * number + 1)]
        story.ack(A, 10 * number + 1, producer=number, hints=hints[number])
        assert story.poll() is None
    assert max(map(looked_at.count, range(1, 21))) <= 2
    story.outside(A, 500, producer=30)
    assert story.next() == [(0, 500)]
    assert max(map(looked_at.count, range(1, 21))) <= 4


def test_a_rollback_is_part_of_the_next_checkpoint_that_shows_a_document() -> None:
    story = ab()
    roll_back(story, A, 10)
    assert story.poll() is None
    story.outside(B, 20, producer=2)
    delta = story.poll()
    assert delta is not None
    assert story.shown(delta) == [(1, 20)]
    throughs = dict(delta.frontier.journals.tolist())
    assert sorted(throughs.values()) == [story.journal(B).head, story.journal(A).head]
    assert delta.frontier.resume_offsets().tolist() == delta.frontier.journals["through"].tolist()


def test_whoever_asks_for_it_gets_progress_that_shows_nothing_once() -> None:
    story = ab()
    roll_back(story, A, 10)
    assert story.poll() is None
    delta = story.run.session.next_checkpoint(may_be_empty=True)
    assert delta is not None
    assert delta.frontier.journals.dtype == JOURNAL_ROW
    assert delta.frontier.journals["through"].tolist() == [story.journal(A).head]
    assert story.shown(delta) == []
    assert story.run.session.next_checkpoint(may_be_empty=True) is None


def test_documents_that_a_clock_window_leaves_out_make_no_checkpoint() -> None:
    story = ab(window=(100, 200))
    story.outside(A, 50)
    story.write(B, 60, producer=2)
    story.commit(61, B, producer=2)
    assert story.poll() is None
    story.outside(A, 150)
    delta = story.poll()
    assert delta is not None
    assert story.shown(delta) == [(0, 150)]


def test_what_waits_for_the_rest_of_its_transaction_makes_no_checkpoint() -> None:
    """With a limit, too, the Session folds as many reports as it needs to show a document."""
    story = ab()
    story.write(A, 10)
    hints = story.hints(20, A, B)
    story.ack(A, 20, hints=hints)
    assert story.poll(1) is None
    story.write(B, 11)
    story.ack(B, 20, hints=[(A, hints[0][1], 1, 20), (B, story.journal(B).head, 1, 20)])
    delta = story.poll(1)
    assert delta is not None
    assert story.shown(delta) == [(0, 10), (1, 11)]
    assert story.poll(1) is None


def test_what_a_restart_reads_again_does_not_count_as_progress_that_shows_nothing() -> None:
    story = ab()
    story.write(A, 10)
    for clock in range(20, 25):
        story.outside(A, clock, producer=2)
    assert len(story.next()) == 5
    story.open().session.frontier._kept_back_bytes_max = 20
    story.write(A, 30, producer=3)
    story.ack(A, 0, producer=3)
    assert story.poll() is None, "60 bytes are read again, and 15 are new"
    story.write(A, 40, producer=3)
    story.ack(A, 0, producer=3)
    delta = story.poll()
    assert delta is not None
    assert story.shown(delta) == []


@pytest.mark.parametrize(
    ("clock", "count", "shown"),
    [(50, 50, 0), (50, 51, 1), (100, 101, 101), (150, 1000, 51), (200, 1, 1), (201, 5, 0)],
)
def test_documents_are_counted_by_the_window(clock: int, count: int, shown: int) -> None:
    windowed = source(0, "a", window=(100, 200))
    assert windowed.documents_shown(Clock(clock), count) == shown


# -- real members ------------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    # Documents are sent at once, so that a rollback has something to take back.
    settings = hr.Settings(journal=hr.JournalSettings(transaction_buffer_bytes=1))
    with hr.open(tmp_path / "workspace", settings=settings) as opened:
        for name in "ab":
            opened.collection(name, "n long, text string", key="n", journals=2)
        yield opened


BINDINGS = [hr.Binding(collection="a"), hr.Binding(collection="b")]


def publish_backlog(workspace: hr.Workspace, transactions: int) -> int:
    """Publish transactions to both collections, and roll every third back; return the documents."""
    publisher = workspace.publisher()
    documents = 0
    for number in range(transactions):
        transaction = publisher.begin()
        for collection in "ab":
            transaction.append(collection, [{"n": number * 10 + n, "text": ""} for n in range(4)])
        if number % 3 == 2:
            transaction.rollback()
        else:
            transaction.commit()
            documents += 8
    return documents


class RestartedTask:
    """A task over a cut of the workspace that every `run` restarts."""

    def __init__(self, workspace: hr.Workspace, folder: Path, limit: int) -> None:
        self._workspace = workspace
        self._folder = folder
        self._limit = limit
        self._cut = workspace.journals()

    def run(self, number: int, checkpoints: int) -> Iterator[tuple[int, int]]:
        """Take checkpoints after `number`; yield the number and the documents of each."""
        with LocalMembers(2, self._folder) as members:

            def open(last: Checkpoint, through: Checkpoint | None) -> hr.Shuffle:
                return hr.Shuffle(
                    self._workspace,
                    BINDINGS,
                    members.addresses,
                    last_commit=last,
                    read_through=through,
                    cut=self._cut,
                    settings=hr.ShuffleSettings(report_documents=self._limit // 2),
                    service=members.service,
                )

            feed = Feed(History(self._workspace.objects, "t"), open)
            for _ in range(checkpoints):
                following = feed.after(number, documents_max=self._limit)
                if following == number:
                    break
                number = following
                shown = sum(
                    batch.num_rows
                    for share in feed.shares(number)
                    for _, batch in share.read(members.service)
                )
                yield number, shown
            feed.close()


@pytest.mark.long
def test_every_checkpoint_of_a_backlog_shows_documents_through_restarts(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    documents = publish_backlog(workspace, 300)
    lives = RestartedTask(workspace, tmp_path, limit=40)
    found: list[tuple[int, int]] = []
    while more := list(lives.run(len(found), 15)):
        found += more
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    assert 0 not in [shown for _, shown in found]
    assert sum(shown for _, shown in found) == documents


@pytest.mark.long
def test_rolled_back_documents_of_many_times_the_disk_limit_leave_room(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    limits = hr.ShuffleSettings(
        queue_soft_bytes=MIB,
        queue_hard_bytes=4 * MIB,
        credit_bytes=64 * KIB,
        fetch_bytes=32 * KIB,
        ahead_bytes=128 * KIB,
    )
    publisher = workspace.publisher()
    text = "x" * KIB
    for number in range(20):
        transaction = publisher.begin()
        transaction.append("a", [{"n": number * 1000 + n, "text": text} for n in range(600)])
        transaction.rollback()
    workspace.append("a", [{"n": n, "text": "last"} for n in range(100)])
    with (
        LocalMembers(2, tmp_path) as members,
        hr.Shuffle(
            workspace,
            BINDINGS,
            members.addresses,
            cut=workspace.journals(),
            settings=limits,
            service=members.service,
        ) as shuffle,
    ):
        shown = []
        while found := shuffle.next_checkpoint(WAIT_S):
            batches = [batch for at in range(2) for _, batch in shuffle.read(at, found)]
            shown.append(sum(batch.num_rows for batch in batches))
            shuffle.release(found)
        assert sum(shown) == 100
        assert shuffle.status().settled


@pytest.mark.long
def test_progress_that_shows_nothing_is_stored_after_a_while(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    """Otherwise retention would one day remove what follows the task's last checkpoint."""
    workspace.append("a", [{"n": 1, "text": ""}])
    with LocalMembers(2, tmp_path) as members:

        def open(last: Checkpoint, through: Checkpoint | None) -> hr.Shuffle:
            return hr.Shuffle(
                workspace,
                BINDINGS,
                members.addresses,
                last_commit=last,
                read_through=through,
                service=members.service,
            )

        history = History(workspace.objects, "t")
        feed = Feed(history, open)
        assert feed.after(0, WAIT_S) == 1
        transaction = workspace.publisher().begin()
        transaction.append("a", [{"n": 2, "text": ""}])
        transaction.rollback()
        assert feed.after(1, 1.0) == 1
        feed.close()
        feed = Feed(history, open, empty_after_s=0.0)
        assert feed.after(1, WAIT_S) == 2
        assert feed.behind() == 0
        assert [list(share.read(members.service)) for share in feed.shares(2)] == [[], []]
        feed.close()
