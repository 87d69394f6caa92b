"""Plans and scans read what is committed now, or what checkpoints have shown, without members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

from headrace.errors import BehindRetentionError, NotFoundError, UsageError
from headrace.frontier import TAG_BITS
from headrace.ids import format_producer
from headrace.journal.names import Selector
from headrace.shuffle import Binding, Checkpoint, History, describe_task
from headrace.shuffle.batch import batch_read
from headrace.shuffle.batch.batch_read import (
    Plan,
    plan_between,
    plan_cut,
    read_blocks,
    read_scans,
    take_cut,
)
from headrace.shuffle.checkpoints.checkpoint_history import reset_task
from tests.shuffle.real_task import Task

BINDINGS = (
    Binding(collection="a"),
    Binding(collection="b"),
    Binding(collection="a", name="late", priority=-1),
)

Shown = Counter[tuple[str, int]]


def shown_by(task: Task, plan: Plan) -> Shown:
    return Counter(
        (source.name, n)
        for source, batch in read_scans(task.workspace, plan.sources, plan.scans)
        for n in batch["n"].to_pylist()
    )


def plan_now(task: Task, bindings: Sequence[Binding]) -> Plan:
    return plan_cut(task.workspace, bindings, take_cut(task.workspace, bindings))


class RecordedTask:
    """Stores the checkpoints of a task, and keeps what each has shown."""

    def __init__(self, task: Task, bindings: Sequence[Binding] = BINDINGS) -> None:
        self.task = task
        self.bindings = bindings
        self.history = History(task.workspace.objects, "t")
        self.shown: list[Shown] = []
        self.numbers = 0

    def begin(self) -> None:
        """Open a Session from the last checkpoint."""
        self.task.checkpoint = self.history.load(self.history.last())
        self.task.open(*self.bindings)

    def rows(self, count: int) -> list[dict[str, int]]:
        self.numbers += count
        return [{"n": n} for n in range(self.numbers - count, self.numbers)]

    def take(self, count: int) -> None:
        """Take the smallest possible checkpoints until they have shown `count` documents."""
        while count > 0:
            found = self.task.shuffle.next_checkpoint(20.0, documents_max=1)
            assert found
            documents = self.task.documents(found)
            assert self.history.append(len(self.shown) + 1, found.delta) is None
            self.shown.append(Counter((each.binding, each.fields["n"]) for each in documents))
            self.task.shuffle.release(found)
            count -= len(documents)

    def between(self, first: int | None = None, last: int | None = None) -> Shown:
        plan = plan_between(self.task.workspace, self.bindings, "t", first, last)
        return shown_by(self.task, plan)


@pytest.fixture
def recorded(task: Task) -> RecordedTask:
    task.workspace.collection("b", "n long", key="n", journals=2)
    return RecordedTask(task)


def fill(recorded: RecordedTask) -> None:
    """Publish overlapping transactions across journals, and documents outside of transactions.

    Some transactions are rolled back. Collection `a` is read under two bindings.
    """
    workspace = recorded.task.workspace
    publishers = [workspace.publisher(f"p{number}") for number in range(3)]
    recorded.begin()
    for turn in range(3):
        open = [each.begin() for each in publishers]
        for number, transaction in enumerate(open):
            for collection in ("a", "b", "a"):
                transaction.append(collection, recorded.rows(2 + number))
                transaction._buffer.send(transaction._buffer.seal()).result()
        workspace.append("a", recorded.rows(3))
        recorded.take(6)
        open[turn].rollback()
        committed = [each for each in open if each is not open[turn]]
        committed[turn % 2].commit()
        documents = {id(each): 5 * (2 + number) for number, each in enumerate(open)}
        recorded.take(documents[id(committed[turn % 2])])
        if turn == 1:
            recorded.begin()
        committed[1 - turn % 2].commit()
        workspace.append("b", recorded.rows(1))
        recorded.take(documents[id(committed[1 - turn % 2])] + 1)


# proves G7
@pytest.mark.long
def test_two_checkpoints_give_what_those_between_them_showed(
    recorded: RecordedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare each single checkpoint and some pairs; test_journal_scan compares all pairs."""
    fill(recorded)
    last = len(recorded.shown)
    assert last > 10
    marks = range(0, last, last // 5)
    pairs = [*combinations(marks, 2), *pairwise(range(last + 1))]
    for first, end in pairs:
        assert recorded.between(first, end) == sum(recorded.shown[first:end], Counter())
    # Read small journals as if they were large.
    monkeypatch.setattr(batch_read, "_SMALL_BYTES", -1)
    for first, end in combinations(marks, 2):
        assert recorded.between(first, end) == sum(recorded.shown[first:end], Counter())
    assert recorded.between() == sum(recorded.shown, Counter())


@pytest.mark.long
def test_what_is_committed_now_is_what_a_task_would_show(recorded: RecordedTask) -> None:
    fill(recorded)
    workspace = recorded.task.workspace
    pending = workspace.publisher("slow").begin()
    pending.append("a", recorded.rows(5))
    pending._buffer.send(pending._buffer.seal()).result()
    plan = plan_now(recorded.task, recorded.bindings)
    pending.commit()
    workspace.append("a", recorded.rows(1))
    assert shown_by(recorded.task, plan) == sum(recorded.shown, Counter())


def test_selectors_and_clock_windows_are_honoured(recorded: RecordedTask) -> None:
    workspace = recorded.task.workspace
    workspace.collection("c", "n long, part string", partition_by="part")
    for n, part in enumerate("xyxyx"):
        workspace.append("c", [{"n": n, "part": part}])
    clocks = workspace.table("c", meta=True).sort_by("n")["_clock"].to_pylist()
    bindings = [
        Binding(collection="c", name="x", selector=Selector(include={"part": ("x",)})),
        Binding(collection="c", name="mid", not_before=clocks[1], not_after=clocks[3]),
    ]
    wanted = Counter({("x", 0), ("x", 2), ("x", 4), ("mid", 1), ("mid", 2), ("mid", 3)})
    assert shown_by(recorded.task, plan_now(recorded.task, bindings)) == wanted
    recorded.bindings = bindings
    recorded.begin()
    recorded.take(6)
    assert recorded.between() == wanted


def test_small_frames_become_large_batches(task: Task) -> None:
    for n in range(300):
        task.append(n, 1)
    plan = plan_now(task, [Binding(collection="a")])
    assert len(plan.scans) == 2
    found = [batch for _, batch in read_scans(task.workspace, plan.sources, plan.scans)]
    assert [batch.num_rows for batch in found] == [300]


@pytest.mark.long
def test_blocks_say_where_their_documents_stand(recorded: RecordedTask) -> None:
    fill(recorded)
    workspace = recorded.task.workspace
    plan = plan_now(recorded.task, [Binding(collection="a"), Binding(collection="b")])
    found = {}
    for source, batch, pairs in read_blocks(workspace, plan.sources, plan.scans):
        rows = pairs[batch["_pair"].to_numpy()]
        for n, clock, place, producer in zip(
            batch["n"].to_pylist(),
            batch["_clock"].to_pylist(),
            rows["place"].tolist(),
            rows["producer"].tolist(),
            strict=True,
        ):
            journal = plan.scans[place >> TAG_BITS].journal.name
            found[source.name, n] = journal, format_producer(producer), clock
    assert found == {
        (name, row["n"]): (row["_journal"], row["_producer"], row["_clock"])
        for name in ("a", "b")
        for row in workspace.table(name, meta=True).to_pylist()
    }


@pytest.mark.long
def test_what_retention_removed_is_left_out_of_a_cut_and_refused_between_checkpoints(
    recorded: RecordedTask,
) -> None:
    task = recorded.task
    task.append(0, 4)
    recorded.begin()
    recorded.take(8)
    plan = plan_now(task, [Binding(collection="a")])
    task.workspace.collection("a", "n long", key="n", journals=2, retention_bytes=1)
    for n in range(4, 40):
        task.append(n, 1)
    task.workspace.maintain()
    assert any(journal.begin > 0 for journal in task.workspace.journals())
    assert sum(shown_by(task, plan).values()) < 4
    with pytest.raises(BehindRetentionError, match=r"a/000\d: the checkpoint goes on at 0"):
        recorded.between()


def test_a_journal_that_was_deleted_is_refused_where_it_was_shown(recorded: RecordedTask) -> None:
    recorded.task.append(0, 10)
    recorded.begin()
    recorded.take(20)
    shown = len(recorded.shown)
    recorded.task.workspace.delete_journals(["a/0000"])
    recorded.task.workspace.append("b", recorded.rows(1))
    recorded.take(1)
    with pytest.raises(
        NotFoundError, match="journal a/0000 was deleted, and the checkpoints have shown"
    ):
        recorded.between()
    assert recorded.between(shown) == recorded.shown[-1]


def test_checkpoints_that_are_not_there_are_refused(recorded: RecordedTask) -> None:
    workspace, bindings = recorded.task.workspace, recorded.bindings
    with pytest.raises(NotFoundError, match="there is no task 'other'"):
        plan_between(workspace, bindings, "other")
    with pytest.raises(NotFoundError, match="there is no task 'other'"):
        describe_task(workspace.objects, "other")
    recorded.task.append(0, 1)
    recorded.begin()
    recorded.take(2)
    last = len(recorded.shown)
    with pytest.raises(UsageError, match=f"checkpoint {last} of task 't' comes after checkpoint 0"):
        recorded.between(last, 0)
    with pytest.raises(NotFoundError, match=f"task 't' has no checkpoint {last + 1}"):
        recorded.between(0, last + 1)
    with pytest.raises(NotFoundError, match="task 't' has no binding 'stranger'"):
        plan_between(workspace, [Binding(collection="a", name="stranger")], "t")
    with pytest.raises(UsageError, match="binding 'a' reads 'b', and the task has read 'a'"):
        plan_between(workspace, [Binding(collection="b", name="a")], "t")
    recorded.history.release(last)
    released = History(workspace.objects, "t", full_every=1)
    released.release(last)
    with pytest.raises(NotFoundError, match="checkpoint 0 of task 't' was released"):
        recorded.between(0)
    assert recorded.between(last) == Counter()


def test_if_nothing_else_is_said_all_checkpoints_that_are_kept_are_read(
    recorded: RecordedTask,
) -> None:
    recorded.task.append(0, 4)
    recorded.begin()
    recorded.take(2)
    kept = len(recorded.shown)
    History(recorded.task.workspace.objects, "t", full_every=1).release(kept)
    recorded.task.append(4, 8)
    recorded.take(4)
    assert recorded.between() == sum(recorded.shown[kept:], Counter())
    assert describe_task(recorded.task.workspace.objects, "t").first == kept
    with pytest.raises(NotFoundError, match=f"checkpoint {kept - 1} of task 't' was released"):
        recorded.between(last=kept - 1)


def test_a_task_that_was_reset_has_no_longer_what_was_planned(recorded: RecordedTask) -> None:
    recorded.begin()
    workspace = recorded.task.workspace
    planned = describe_task(workspace.objects, "t").generation
    reset_task(workspace.objects, "t")
    with pytest.raises(UsageError, match=f"task 't' has no generation {planned}: it was reset"):
        plan_between(workspace, recorded.bindings, "t", generation=planned)


def test_a_task_that_has_shown_nothing_gives_nothing(recorded: RecordedTask) -> None:
    recorded.task.append(0, 1)
    assert recorded.history.load(0) == Checkpoint()
    assert recorded.between() == Counter()
