"""Checkpoints: merging, encoding, damage."""

from __future__ import annotations

from random import Random

import pytest

from headrace.clock import Clock
from headrace.errors import DataError, UsageError
from headrace.frontier import BindingTag, Frontier, JournalProgress, JournalTag, ProducerProgress
from headrace.ids import JournalId, Offset, Producer
from headrace.shuffle.checkpoint import Checkpoint, JournalRef

Rows = dict[tuple[int, int], tuple[int, dict[int, tuple[int, int]]]]
"""By journal and binding: through, and (last commit, span) by producer."""


def checkpoint(rows: Rows, names: dict[int, str] | None = None) -> Checkpoint:
    journals = {journal for journal, _ in rows}
    return Checkpoint(
        Frontier.build(
            JournalProgress(
                JournalTag(journal),
                BindingTag(binding),
                Offset(through),
                {Producer(p): ProducerProgress(Clock(c), s) for p, (c, s) in producers.items()},
            )
            for (journal, binding), (through, producers) in rows.items()
        ),
        {JournalTag(j): JournalRef(JournalId(100 + j), f"c/{j:04d}") for j in journals},
        {BindingTag(tag): name for tag, name in (names or {}).items()},
    )


def test_merging_takes_the_later_of_everything_and_all_tags() -> None:
    before = checkpoint({(0, 0): (50, {1: (10, 20)}), (1, 0): (5, {})}, {0: "a"})
    delta = checkpoint({(0, 0): (90, {1: (30, -80)}), (2, 1): (7, {2: (3, 4)})}, {1: "b"})
    merged = before.merge(delta)
    wanted: Rows = {(0, 0): (90, {}), (1, 0): (5, {}), (2, 1): (7, {2: (3, 4)})}
    assert merged == checkpoint(wanted, {0: "a", 1: "b"})


# proves G7
def test_merging_keeps_a_settled_producer_while_another_would_have_it_read_again() -> None:
    opened = checkpoint({(0, 0): (50, {1: (0, 20)})}, {0: "a"})
    committed = checkpoint({(0, 0): (90, {2: (30, -80)})})
    merged = opened.merge(committed)
    assert merged == checkpoint({(0, 0): (90, {1: (0, 20), 2: (30, -80)})}, {0: "a"})
    closed = checkpoint({(0, 0): (100, {1: (40, -100)})})
    assert merged.merge(closed) == checkpoint({(0, 0): (100, {})}, {0: "a"})


@pytest.mark.parametrize(("before", "delta"), [(5, 3), (3, 5), (5, 0)])
def test_merging_never_frees_a_tag(before: int, delta: int) -> None:
    """A tag that is free again would be given to another journal."""
    merged = Checkpoint(tags_used=before).merge(Checkpoint(tags_used=delta))
    assert merged.tags_used == 5


def test_equal_checkpoints_are_equal_bytes() -> None:
    rows: Rows = {
        (j, b): (j + b + 1, {p: (p, -1) for p in (3, 1)}) for j in range(5) for b in (1, 0)
    }
    names = {0: "a", 1: "b"}
    one = checkpoint(rows, names)
    for seed in range(5):
        items = list(rows.items())
        Random(seed).shuffle(items)
        other = checkpoint(dict(items), dict(reversed(names.items())))
        assert other.encode() == one.encode()
    assert Checkpoint.decode(one.encode()) == one
    assert Checkpoint.decode(Checkpoint().encode()) == Checkpoint()


@pytest.mark.parametrize(
    ("other", "error"),
    [
        (
            Checkpoint(journals={JournalTag(0): JournalRef(JournalId(7), "c/0000")}),
            "journal tag 0 stands for JournalRef(id=100, name='c/0000') and for"
            " JournalRef(id=7, name='c/0000')",
        ),
        (Checkpoint(bindings={BindingTag(0): "b"}), "binding tag 0 stands for a and for b"),
    ],
)
def test_tags_that_mean_two_things_are_refused(other: Checkpoint, error: str) -> None:
    with pytest.raises(UsageError) as refused:
        checkpoint({(0, 0): (1, {})}, {0: "a"}).merge(other)
    assert refused.value.what == error
    assert refused.value.do.startswith("merge each delta of a task")


# proves G13
def test_damaged_bytes_are_an_error_and_never_another_checkpoint() -> None:
    data = checkpoint({(0, 0): (50, {1: (10, 20)})}, {0: "name"}).encode()
    for cut in range(len(data)):
        with pytest.raises(DataError):
            Checkpoint.decode(data[:cut])
    rng = Random(1)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with pytest.raises(DataError):
            Checkpoint.decode(bytes(damaged))
