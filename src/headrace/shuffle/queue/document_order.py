"""Merges the documents of a checkpoint into the order of lanes, then adjusted clocks. Pure.

The clocks of blocks overlap a little, since Slices read at the same time. The merge loads a block
when it reaches the block's least clock, and drops it when it has passed the greatest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.arrow_numbers import arrow_numbers, numpy_numbers
from headrace.frontier import BindingTag
from headrace.shuffle.binding import ADJUSTED_MAX
from headrace.shuffle.queue.queue_reader import Shown

Load = Callable[[Shown], pa.RecordBatch]
"""Loads the shown rows of a block, with `_clock` and `_pair`."""


@dataclass(slots=True)
class _Rest:
    """The rows of a block that are not yet merged, with their clocks ascending."""

    binding: BindingTag
    batch: pa.RecordBatch
    clocks: NDArray[np.uint64]


def in_order(
    shown: Iterable[Shown], load: Load, delays: dict[BindingTag, int]
) -> Iterator[tuple[BindingTag, pa.RecordBatch]]:
    """Yield runs of documents, each of one binding.

    Equal adjusted clocks of a binding keep the order of their blocks; those of several bindings
    come in any order.
    """
    by_lane = sorted(shown, key=lambda each: (each.head.lane, each.head.low))
    for _, lane in groupby(by_lane, key=lambda each: each.head.lane):
        blocks = list(lane)
        rests: list[_Rest] = []
        for block, following in zip_longest(blocks, blocks[1:]):
            rests.append(_rest(block, load(block), delays))
            yield from _merge(rests, following.head.low if following else None)
            rests = [rest for rest in rests if len(rest.clocks)]


def _rest(block: Shown, batch: pa.RecordBatch, delays: dict[BindingTag, int]) -> _Rest:
    delay = delays[block.head.binding]
    clocks = numpy_numbers(batch.column(batch.num_columns - 2))
    clocks = np.minimum(clocks, np.uint64(ADJUSTED_MAX - delay)) + np.uint64(delay)
    if len(clocks) > 1 and (clocks[1:] < clocks[:-1]).any():
        order = np.argsort(clocks, kind="stable")
        batch, clocks = batch.take(arrow_numbers(order)), clocks[order]
    return _Rest(block.head.binding, batch, clocks)


def _merge(rests: list[_Rest], below: int | None) -> Iterator[tuple[BindingTag, pa.RecordBatch]]:
    """Yield the rows below a clock, or all rows, in order, and take them off the rests."""
    counts = [
        # With another type, numpy would compare both as floats.
        len(rest.clocks) if below is None else int(np.searchsorted(rest.clocks, np.uint64(below)))
        for rest in rests
    ]
    taken = [(rest, count) for rest, count in zip(rests, counts, strict=True) if count]
    if len(taken) == 1:
        [(rest, count)] = taken
        yield rest.binding, rest.batch.slice(0, count)
    elif taken:
        yield from _interleave(taken)
    for rest, count in taken:
        rest.batch, rest.clocks = rest.batch.slice(count), rest.clocks[count:]


def _interleave(taken: list[tuple[_Rest, int]]) -> Iterator[tuple[BindingTag, pa.RecordBatch]]:
    """Yield the first rows of several blocks, in order, so many of each.

    It joins the rows of each binding first, so that runs are long.
    """
    bindings = list(dict.fromkeys(rest.binding for rest, _ in taken))
    joined: list[pa.RecordBatch] = []
    clocks: list[Any] = []
    for binding in bindings:
        mine = [(rest, count) for rest, count in taken if rest.binding == binding]
        joined.append(pa.concat_batches([rest.batch.slice(0, count) for rest, count in mine]))
        clocks.append(np.concatenate([rest.clocks[:count] for rest, count in mine]))
    which = np.repeat(np.arange(len(bindings)), [len(each) for each in clocks])
    rows = np.concatenate([np.arange(len(each)) for each in clocks])
    order = np.argsort(np.concatenate(clocks), kind="stable")
    which, rows = which[order], rows[order]
    starts = np.flatnonzero(np.diff(which, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(which)], strict=True):
        index = int(which[start])
        yield bindings[index], joined[index].take(arrow_numbers(rows[start:end]))
