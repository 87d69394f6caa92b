"""Scenarios 14 to 17: what comes before what, over real services."""

from __future__ import annotations

from itertools import product

import pytest

import headrace as hr
from headrace.clock import COUNTER_BITS, TICKS_PER_SECOND
from headrace.journal.sequencer import Flags
from headrace.shuffle import Binding
from headrace.testing.crash import eventually
from tests.shuffle.real_task import POLL_S, Begin, Task, rows


# proves G8
@pytest.mark.parametrize("members", [1, 3])
def test_due_documents_of_low_priority_precede_delayed_ones_of_high(
    begin: Begin, members: int
) -> None:
    """Scenario 14."""
    task = begin(members)
    task.open(
        Binding(collection="a", name="high", priority=1, read_delay_s=0.5),
        Binding(collection="b", name="low"),
    )
    task.workspace.append("a", rows(0, 30))
    task.workspace.append("b", rows(0, 30))
    bindings = [d.binding for shown in task.take(60) for d in shown.documents]
    assert bindings == ["low"] * 30 + ["high"] * 30


# proves G8
@pytest.mark.long
@pytest.mark.parametrize(("count", "text_bytes"), [(2000, 2 << 10), (96, 512 << 10)])
def test_small_and_large_documents_of_several_slices_come_in_the_order_of_their_clocks(
    begin: Begin, count: int, text_bytes: int
) -> None:
    """Scenario 15; without a key, so that every member gets documents of every journal."""
    task = begin(3, journals=6)
    with task.workspace.publisher() as transaction:
        for first in range(0, count, 16):
            transaction.append("a", rows(first, 16, "x" * text_bytes))
    task.open(Binding(collection="a", key=()))
    while (shown := task.look(ordered=True)) and not shown.documents:
        task.commit(shown)
    assert shown is not None
    assert len(shown.documents) == count
    for member in range(3):
        clocks = [d.clock for d in shown.documents if d.member == member]
        assert len(clocks) > count / 10
        assert clocks == sorted(set(clocks))
        lows = lows_of_blocks(task, member, shown.checkpoint)
        assert len(lows) > 1, "of several Slices"
        assert lows == sorted(lows)


def lows_of_blocks(task: Task, member: int, checkpoint: hr.NextCheckpoint) -> list[int]:
    """The least adjusted clock of each block, as they lie in the Queue: nobody sorts them."""
    return [
        source.adjusted(min(batch["_clock"].to_pylist()))
        for source, batch in task.shuffle.read(member, checkpoint)
    ]


# proves G8
@pytest.mark.long
def test_documents_with_read_delays_come_in_the_order_of_their_adjusted_clocks(
    begin: Begin,
) -> None:
    """Scenario 16."""
    task = begin(3)
    delays = {"a": 0.2, "b": 0.1}
    for n in range(0, 200, 4):
        for name in ("a", "b"):
            task.workspace.append(name, rows(n, 4))
    task.open(*(Binding(collection=name, read_delay_s=s) for name, s in delays.items()))
    for shown in task.take(400, ordered=True):
        for member in range(3):
            mine = [d for d in shown.documents if d.member == member]
            adjusted = [
                d.clock + (int(delays[d.binding] * TICKS_PER_SECOND) << COUNTER_BITS) for d in mine
            ]
            assert adjusted == sorted(adjusted)


# proves G8
@pytest.mark.long
def test_blocks_with_read_delays_lie_in_the_order_of_their_adjusted_clocks(begin: Begin) -> None:
    """Scenario 16, before any reader sorts. Everything is due: the clocks are long past."""
    task = begin(3, journals=4)
    for name in ("a", "b"):
        task.workspace.append(name, rows(0, 64))
    task.open("a", "b")
    task.take(128)
    delays = {"a": 0.2, "b": 0.1}
    for name, journal in product(delays, range(4)):
        writer = task.writer(f"{name} {journal}")
        for n in range(10):
            clock = (1 << 40) + (4 * n + journal) * (TICKS_PER_SECOND // 100 << COUNTER_BITS)
            fields = {"n": n, "text": ""}, {"n": 10 + n, "text": ""}
            writer.docs(f"{name}/{journal:04d}", clock, *fields, flags=Flags.OUTSIDE)
    task.open(*(Binding(collection=n, key=(), read_delay_s=s) for n, s in delays.items()))
    eventually(lambda: task.shuffle.status().settled, POLL_S, "everything is read")
    shown = task.look()
    assert shown is not None
    assert len(shown.documents) == 160
    for member in range(3):
        lows = lows_of_blocks(task, member, shown.checkpoint)
        assert len(lows) > 3, "of both bindings, and of several Slices"
        assert lows == sorted(lows)


# proves G8
def test_a_backlog_of_high_priority_comes_before_one_of_low(begin: Begin) -> None:
    """Scenario 17."""
    task = begin(1, journals=4)
    task.workspace.append("b", rows(0, 200))
    for first in range(0, 3000, 500):
        task.workspace.append("a", rows(first, 500))
    task.open(Binding(collection="b", name="low"), Binding(collection="a", name="high", priority=9))
    bindings = [d.binding for shown in task.take(3200) for d in shown.documents]
    assert bindings == ["high"] * 3000 + ["low"] * 200
