"""The documents of a checkpoint in order: lanes, then adjusted clocks. Pure.

Blocks overlap in clocks, since Slices read side by side, but little: a block is loaded when the
merge reaches its least clock and let go when it has passed its greatest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.frontier import BindingTag
from headrace.shuffle.binding import ADJUSTED_MAX
from headrace.shuffle.queue.queue_reader import Shown

Load = Callable[[Shown], pa.RecordBatch]
"""The rows of a block that are shown, with our columns."""


@dataclass(slots=True)
class _Rest:
    """What is left of a block, its clocks ascending."""

    binding: BindingTag
    batch: pa.RecordBatch
    clocks: NDArray[np.uint64]


def in_order(
    shown: Iterable[Shown], load: Load, delays: dict[BindingTag, int]
) -> Iterator[tuple[BindingTag, pa.RecordBatch]]:
    """Runs of documents, each of one binding; equal clocks keep the Queue's order."""
    by_lane = sorted(shown, key=lambda each: (each.head.lane, each.head.low))
    for _, lane in groupby(by_lane, key=lambda each: each.head.lane):
        blocks = list(lane)
        rests: list[_Rest] = []
        for at, block in enumerate(blocks):
            rests.append(_rest(block, load(block), delays))
            if at + 1 < len(blocks):
                yield from _merge(rests, blocks[at + 1].head.low)
                rests = [rest for rest in rests if len(rest.clocks)]
        yield from _merge(rests, None)


def _rest(block: Shown, batch: pa.RecordBatch, delays: dict[BindingTag, int]) -> _Rest:
    delay = delays[block.head.binding]
    clocks = batch.column(batch.num_columns - 2).to_numpy()
    clocks = np.minimum(clocks, np.uint64(ADJUSTED_MAX - delay)) + np.uint64(delay)
    if len(clocks) > 1 and (clocks[1:] < clocks[:-1]).any():
        order = np.argsort(clocks, kind="stable")
        batch, clocks = batch.take(pa.array(order)), clocks[order]
    return _Rest(block.head.binding, batch, clocks)


def _merge(rests: list[_Rest], below: int | None) -> Iterator[tuple[BindingTag, pa.RecordBatch]]:
    """What lies below a clock, in order; it is taken off the rests."""
    counts = [
        # Of another type, both would be compared as floats.
        len(rest.clocks) if below is None else int(np.searchsorted(rest.clocks, np.uint64(below)))
        for rest in rests
    ]
    parts = [rest for rest, count in zip(rests, counts, strict=True) if count]
    taken = [count for count in counts if count]
    if len(parts) == 1:
        yield parts[0].binding, parts[0].batch.slice(0, taken[0])
    elif parts:
        yield from _interleave(parts, taken)
    for rest, count in zip(parts, taken, strict=True):
        rest.batch, rest.clocks = rest.batch.slice(count), rest.clocks[count:]


def _interleave(
    parts: list[_Rest], taken: list[int]
) -> Iterator[tuple[BindingTag, pa.RecordBatch]]:
    """Rows of several blocks; those of one binding are joined first, so that runs are long."""
    bindings = list(dict.fromkeys(part.binding for part in parts))
    joined: list[pa.RecordBatch] = []
    clocks: list[Any] = []
    for binding in bindings:
        mine = [(p, n) for p, n in zip(parts, taken, strict=True) if p.binding == binding]
        joined.append(pa.concat_batches([part.batch.slice(0, n) for part, n in mine]))
        clocks.append(np.concatenate([part.clocks[:n] for part, n in mine]))
    which = np.repeat(np.arange(len(bindings)), [len(each) for each in clocks])
    rows = np.concatenate([np.arange(len(each)) for each in clocks])
    order = np.argsort(np.concatenate(clocks), kind="stable")
    which, rows = which[order], rows[order]
    starts = np.flatnonzero(np.diff(which, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(which)], strict=True):
        at = int(which[start])
        yield bindings[at], joined[at].take(pa.array(rows[start:end]))
