"""The scenarios that a suite of this kind must hold, over real services; those of order are apart.

Where a scenario needs frames that no publisher writes, the state machines are driven instead.
"""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.clock import Clock
from headrace.errors import ProtocolError
from headrace.frontier import BindingTag, Frontier, JournalTag, place
from headrace.ids import format_producer
from headrace.journal.names import selector
from headrace.journal.sequencer import Flags
from headrace.shuffle import Binding, Checkpoint
from tests.shuffle.builders import source
from tests.shuffle.memory_session import MemorySession
from tests.shuffle.real_task import Begin, Task, rows


def one_journal(begin: Begin, members: int = 2) -> Task:
    """With the journals a/0000 and b/0000."""
    task = begin(members, journals=1)
    for name in ("a", "b"):
        with task.workspace.publisher() as transaction:
            transaction.append(name, rows(0, 1))
    return task


# proves G5
def test_documents_outside_of_transactions_are_visible_at_once(begin: Begin) -> None:
    """Scenario 1."""
    task = begin()
    task.open("a")
    for n in range(3):
        task.workspace.append("a", rows(n, 1))
        (shown,) = task.take(1)
        assert shown.column("n") == [n]


# proves G6
def test_a_transaction_becomes_visible_at_the_clock_of_its_ack(begin: Begin) -> None:
    """Scenario 2."""
    task = one_journal(begin)
    task.open("a")
    task.take(1)
    writer = task.writer("p")
    writer.docs("a/0000", 1000, {"n": 1})
    writer.docs("a/0000", 1001, {"n": 2})
    task.workspace.append("a", rows(100, 1))
    (marker,) = task.take(1)
    assert marker.column("n") == [100]
    writer.commit(1005)
    (shown,) = task.take(2)
    assert shown.column("n") == [1, 2]
    (progress,) = list(shown.checkpoint.delta.frontier)
    assert progress.producers[writer.lease.producer].last_commit == 1005


# proves G5
def test_every_document_reaches_one_of_three_members(begin: Begin) -> None:
    """Scenario 3."""
    task = begin(3, journals=5)
    task.open("a", "b")
    for name in ("a", "b"):
        with task.workspace.publisher() as transaction:
            transaction.append(name, rows(0, 300))
    taken = task.take(600)
    documents = [document for shown in taken for document in shown.documents]
    for name in ("a", "b"):
        mine = [d for d in documents if d.binding == name]
        assert sorted(d.fields["n"] for d in mine) == list(range(300))
        assert {d.member for d in mine} == {0, 1, 2}
    owner = {d.fields["n"]: d.member for d in documents if d.binding == "a"}
    assert all(owner[d.fields["n"]] == d.member for d in documents), "equal keys, one member"


# proves G6, G7, G11
def test_an_open_transaction_delays_nobody_and_is_shown_once_after_a_restart(begin: Begin) -> None:
    """Scenario 4."""
    task = begin(journals=1)
    late = task.workspace.publisher("late").begin()
    late.append("a", rows(0, 5, "x" * 10))
    late.invite()
    send(late)
    with task.workspace.publisher("early") as early:
        early.append("a", rows(100, 3))
    task.open("a")
    (shown,) = task.take(3)
    assert shown.column("n") == [100, 101, 102]
    task.open("a")
    late.commit()
    (shown,) = task.take(5)
    assert shown.column("n") == [0, 1, 2, 3, 4]


def send(transaction: hr.Transaction) -> None:
    """What the transaction has buffered, as it does when that is large."""
    transaction._buffer.send(transaction._buffer.seal()).result()


# proves G7, G10
@pytest.mark.long
@pytest.mark.parametrize("members", [2, 3])
def test_a_resumed_task_repeats_its_last_checkpoint_exactly_then_reads_on(
    begin: Begin, members: int
) -> None:
    """Scenario 5; with the same topology on the same members, else the same set."""
    task = begin(3)
    task.open("a", "b", members=task.addresses[:2])
    transact(task, 0)
    task.take(40)
    transact(task, 100)
    prepared = task.look()
    assert prepared is not None
    transact(task, 200)
    task.open("a", "b", read_through=prepared.checkpoint.delta, members=task.addresses[:members])
    again = task.look()
    assert again is not None
    assert again.checkpoint.delta.encode() == prepared.checkpoint.delta.encode()
    one, other = (
        {(d.binding, d.fields["n"], d.member) for d in s.documents} for s in (prepared, again)
    )
    if members == 2:
        assert one == other
    assert {each[:2] for each in one} == {each[:2] for each in other}
    task.commit(again)
    rest = task.take(120 - 40 - len(again.documents))
    assert len({(d.binding, d.fields["n"]) for s in rest for d in s.documents}) == 80 - len(one)


def transact(task: Task, first: int) -> None:
    with task.workspace.publisher() as transaction:
        transaction.append("a", rows(first, 20))
        transaction.append("b", rows(first, 20))


# proves G9
@pytest.mark.long
def test_a_transaction_over_two_collections_is_one_checkpoint(begin: Begin) -> None:
    """Scenario 6."""
    task = begin(3, journals=4)
    task.open("a", "b")
    for n in range(10):
        transact(task, n * 20)
    seen: dict[int, set[int]] = {}
    for number, shown in enumerate(task.take(400)):
        for document in shown.documents:
            seen.setdefault(document.fields["n"] // 20, set()).add(number)
    assert len(seen) == 10
    assert all(len(checkpoints) == 1 for checkpoints in seen.values())


def test_hints_to_partitions_that_are_not_read_never_block(begin: Begin) -> None:
    """Scenario 7."""
    task = begin()
    task.workspace.collection("parts", "region string, n long", key="n", partition_by="region")
    task.open(Binding(collection="parts", selector=selector("parts", {"region": ["eu"]})))
    with task.workspace.publisher() as transaction:
        transaction.append("parts", [{"region": r, "n": n} for n in range(9) for r in ("eu", "us")])
        transaction.append("a", rows(0, 5))
    (shown,) = task.take(9)
    assert {document.fields["region"] for document in shown.documents} == {"eu"}


def test_documents_outside_of_the_clock_window_are_absent_and_their_commit_is_not(
    begin: Begin,
) -> None:
    """Scenario 8."""
    task = one_journal(begin)
    writer = task.writer("p")
    for clock in (1000, 2000, 3000, 4000):
        writer.docs("a/0000", clock, {"n": clock}, {"n": clock + 1})
        writer.commit(clock + 5)
    task.open(Binding(collection="a", not_before=Clock(2001), not_after=Clock(3000)))
    taken = task.take(2)
    assert sorted(n for shown in taken for n in shown.column("n")) == [2001, 3000]
    task.workspace.append("b", rows(5, 1))
    moved = [s.checkpoint.delta.frontier for s in taken]
    while max(commit_of(f, writer.lease.producer) for f in moved) < 4005:
        shown = task.look()
        assert shown is not None
        assert shown.documents == []
        moved.append(shown.checkpoint.delta.frontier)


def commit_of(frontier: Frontier, producer: int) -> int:
    rows = frontier.producers
    return max(rows["last_commit"][rows["producer"] == producer].tolist(), default=0)


# proves G6
def test_rollbacks_keep_the_last_commit(begin: Begin) -> None:
    """Scenario 9, with the rollbacks that a publisher makes: ACKs of clock 0."""
    task = one_journal(begin)
    task.open("a")
    task.take(1)
    writer = task.writer("p")
    writer.docs("a/0000", 1000, {"n": 1})
    writer.commit(1001)
    task.take(1)
    for clock in (2000, 3000):
        writer.docs("a/0000", clock, {"n": 2}, {"n": 3})
        writer.rollback()
        task.workspace.append("a", rows(100, 1))
        (shown,) = task.take(1)
        assert shown.column("n") == [100]
        assert commit_of(shown.checkpoint.delta.frontier, writer.lease.producer) in (0, 1001)
    writer.docs("a/0000", 4000, {"n": 4})
    writer.commit(4001)
    (shown,) = task.take(1)
    assert shown.column("n") == [4]


# proves G6
def test_clean_and_deep_rollbacks_keep_the_last_commit() -> None:
    """Scenario 9, with ACKs that no publisher of ours writes."""
    session = MemorySession("a", [source(0, "a")])
    session.write(1, 10)
    session.ack(1, 12)
    assert session.next() == [(0, 10)]
    session.write(1, 20)
    session.ack(1, 12)
    session.outside(1, 21, producer=2)
    assert session.next() == [(0, 21)]
    session.write(1, 30)
    session.ack(1, 5)
    session.outside(1, 31, producer=2)
    delta = session.poll()
    assert delta is not None
    assert session.shown(delta) == [(0, 31)]
    shown = session.run.session.frontier.places[place(session.tag(1), 0)].producers[1].shown
    assert shown is not None
    assert shown[0] == 12
    session.write(1, 40)
    session.ack(1, 40)
    assert session.next() == [(0, 40)]


# proves G7
@pytest.mark.long
@pytest.mark.parametrize("continued", [False, True], ids=["scenario 10", "scenario 11"])
def test_a_span_that_began_below_the_checkpoint_is_shown_once_after_a_restart(
    begin: Begin, continued: bool
) -> None:
    """Scenarios 10 and 11."""
    task = one_journal(begin)
    task.open("a")
    writer = task.writer("p")
    writer.docs("a/0000", 1000, {"n": 1}, {"n": 2})
    task.workspace.append("a", rows(100, 2))
    task.take(3)
    assert task.checkpoint.frontier.resume_offsets().tolist()[0] < head_of(task, "a/0000")
    task.open("a")
    if continued:
        writer.docs("a/0000", 1002, {"n": 3})
    writer.commit(1010)
    (shown,) = task.take(3 if continued else 2)
    assert shown.column("n") == [1, 2, 3][: 3 if continued else 2]
    task.open("a")
    task.workspace.append("a", rows(200, 1))
    (shown,) = task.take(1)
    assert shown.column("n") == [200]


def head_of(task: Task, name: str) -> int:
    return next(each.head for each in task.workspace.journals() if each.name == name)


# proves G7, G9
def test_such_a_span_delays_its_transaction_in_another_journal_and_loses_nothing(
    begin: Begin,
) -> None:
    """Scenario 12."""
    task = one_journal(begin)
    task.open("a", "b")
    writer = task.writer("p")
    writer.docs("a/0000", 1000, {"n": 1})
    task.workspace.append("a", rows(100, 1))
    task.take(3)
    task.open("a", "b")
    writer.docs("b/0000", 1001, {"n": 2})
    task.workspace.append("b", rows(200, 1))
    (shown,) = task.take(1)
    assert shown.column("n") == [200]
    writer.commit(1002)
    (shown,) = task.take(2)
    assert shown.column("n") == [1, 2]


# proves G13
def test_a_document_outside_of_its_producers_open_span_fails_the_session(begin: Begin) -> None:
    """Scenario 13."""
    task = one_journal(begin)
    task.open("a")
    writer = task.writer("p")
    writer.docs("a/0000", 1000, {"n": 1})
    task.workspace.append("a", rows(100, 1))
    task.take(2)
    task.open("a")
    writer.docs_unchecked("a/0000", 1001, {"n": 2}, flags=Flags.OUTSIDE)
    with pytest.raises(ProtocolError) as failed:
        task.look()
    producer = format_producer(writer.lease.producer)
    assert f"a/0000, producer {producer}: an OUTSIDE document of clock 1001" in failed.value.what
    with pytest.raises(ProtocolError, match="an OUTSIDE document"):
        task.shuffle.status()


# proves G9, G11
def test_a_held_hint_in_a_low_lane_lets_the_high_lane_go_on() -> None:
    """Scenario 18."""
    low = [source(n, name, lane=1, cohort=1) for n, name in enumerate("ab")]
    session = MemorySession("abc", [*low, source(2, "c")])
    session.write(1, 10)
    session.write(2, 11)
    hints = session.hints(20, 1, 2)
    session.ack(1, 20, hints=hints)
    for clock in (30, 40, 50):
        session.write(3, clock)
        session.commit(clock + 1, 3)
        assert session.next() == [(2, clock)]
    assert session.waits_for() == [(1, "b/0000")]
    session.ack(2, 20, hints=hints)
    assert session.next() == [(0, 10), (1, 11)]


def test_a_checkpoint_outlives_the_order_of_bindings(begin: Begin) -> None:
    """A binding is known by its name, wherever it stands."""
    task = begin()
    transact(task, 0)
    task.open("a")
    task.take(20)
    task.open("b", "a")
    transact(task, 100)
    taken = task.take(60)
    found = [(d.binding, d.fields["n"]) for shown in taken for d in shown.documents]
    assert sorted(n for name, n in found if name == "a") == list(range(100, 120))
    assert sorted(n for name, n in found if name == "b") == [*range(20), *range(100, 120)]
    assert task.checkpoint.bindings == {BindingTag(0): "a", BindingTag(1): "b"}
    assert JournalTag(0) in task.checkpoint.journals
    assert Checkpoint.decode(task.checkpoint.encode()) == task.checkpoint
