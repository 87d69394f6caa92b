"""`in_order` yields documents as `sorted` would."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from headrace.clock import CLOCK_MAX, Clock, from_unix_ns
from headrace.frontier import BindingTag
from headrace.shuffle.binding import ADJUSTED_MAX
from headrace.shuffle.queue.document_order import in_order
from headrace.shuffle.queue.queue_reader import Shown
from tests.shuffle.builders import head

Document = tuple[int, int, int]
"""Binding, adjusted clock, number."""
NOW = from_unix_ns(1_700_000_000_000_000_000)
"""A float cannot hold the clocks of today exactly."""


def shown(position: int, binding: int, lane: int, clocks: list[int], delay: int) -> Shown:
    no_clocks = np.zeros(1, np.uint64)
    described = head(
        (1, 1, min(clocks), max(clocks)),
        binding=binding,
        lane=lane,
        low=adjusted(min(clocks), delay),
        high=adjusted(max(clocks), delay),
    )
    return Shown(position, described, True, no_clocks, no_clocks, ())


def adjusted(clock: int, delay: int) -> int:
    return min(clock + delay, ADJUSTED_MAX)


def batch(first: int, clocks: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(first, first + len(clocks)), pa.int64()),
            pa.array(clocks, pa.uint64()),
            pa.array([0] * len(clocks), pa.uint32()),
        ],
        names=["doc", "_clock", "_pair"],
    )


# proves G8
@pytest.mark.parametrize("seed", range(200))
def test_documents_come_by_lane_and_adjusted_clock_and_else_as_they_stand(seed: int) -> None:
    rng = Random(seed)
    first = rng.choice([0, NOW, CLOCK_MAX - 80])
    lanes = {0: 0, 1: 0, 2: 1}
    delays = {BindingTag(0): 0, BindingTag(1): rng.choice([0, 15]), BindingTag(2): 0}
    blocks: list[Shown] = []
    batches: dict[int, pa.RecordBatch] = {}
    expected: list[tuple[int, int, int, Document]] = []
    number = 0
    for position in range(rng.randint(0, 8)):
        tag = rng.randrange(3)
        start = first + rng.randrange(60)
        clocks = [start + rng.randrange(rng.choice([1, 20])) for _ in range(rng.randint(1, 9))]
        if rng.random() < 0.7:
            clocks.sort()
        delay = delays[BindingTag(tag)]
        blocks.append(shown(position, tag, lanes[tag], clocks, delay))
        batches[position] = batch(number, clocks)
        for clock in clocks:
            due = adjusted(clock, delay)
            expected.append((lanes[tag], due, position, (tag, due, number)))
            number += 1
    loaded: list[int] = []

    def load(block: Shown) -> pa.RecordBatch:
        loaded.append(block.position)
        return batches[block.position]

    found = [
        (tag, adjusted(clock, delays[tag]), n)
        for tag, run in in_order(blocks, load, delays)
        for n, clock in zip(run["doc"].to_pylist(), run["_clock"].to_pylist(), strict=True)
    ]
    assert [(lanes[tag], clock) for tag, clock, _ in found] == [
        each[:2] for each in sorted(expected)
    ]
    assert sorted(found) == sorted(document for *_, document in expected)
    assert sorted(loaded) == sorted(set(loaded)) == list(batches)
    for tag in range(3):
        mine = [(clock, n) for binding, clock, n in found if binding == tag]
        for position in batches:
            inside = set(batches[position]["doc"].to_pylist())
            own = [each for each in mine if each[1] in inside]
            assert own == sorted(own), "equal clocks of a block keep their order"


@pytest.mark.parametrize("first", [0, NOW])
def test_a_block_is_loaded_when_the_merge_reaches_it(first: Clock) -> None:
    blocks = [shown(n, 0, 0, [first + n * 10, first + n * 10 + 5], 0) for n in range(5)]
    loaded: list[int] = []

    def load(block: Shown) -> pa.RecordBatch:
        loaded.append(block.position)
        return batch(block.position * 2, [block.head.low, block.head.high])

    ordered = in_order(blocks, load, {BindingTag(0): 0})
    next(ordered)
    assert loaded == [0]
    assert sum(part.num_rows for _, part in ordered) == 8
    assert loaded == [0, 1, 2, 3, 4]
