"""Blocks: what moves from Slices to Queues to readers. Pure.

A block holds documents of one binding for one member: a record batch of the documents' own columns
and two of ours. `_clock` is the document's clock; `_pair` its row in the block's table of pairs,
one for each (journal, producer) in it, with the least and greatest clock found there. A reader
decides from that table alone whether a block is visible as a whole, which it nearly always is.
The Queue moves blocks as bytes and never decodes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.clock import Clock
from headrace.frontier import BindingTag
from headrace.shuffle.binding import Source, document_schema
from headrace.shuffle.routing import Router

PAIR_ROW = np.dtype(
    [
        ("place", np.uint64),
        ("producer", np.uint64),
        ("first", np.uint64),
        ("last", np.uint64),
        ("rows", np.uint32),
    ]
)
CLOCK_FIELD = pa.field("_clock", pa.uint64(), nullable=False)
PAIR_FIELD = pa.field("_pair", pa.uint32(), nullable=False)

Pairs = NDArray[np.void]


class BlockHead(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a block without its documents."""

    binding: BindingTag
    lane: int
    low: int
    high: int
    """The least and greatest adjusted clock in it."""
    rows: int
    pairs: bytes

    def pair_rows(self) -> Pairs:
        return np.frombuffer(self.pairs, PAIR_ROW)


class Piece(NamedTuple):
    """The documents of one frame that go into a block."""

    place: int
    producer: int
    clock: Clock
    """Of the first row; the rows' clocks are consecutive."""
    batch: pa.RecordBatch


class Routed(NamedTuple):
    member: int
    head: BlockHead
    body: Any


class BlockMaker:
    """Makes the pieces of one binding into one block for each member that gets any of it."""

    def __init__(self, source: Source, router: Router) -> None:
        self._source = source
        self._router = router
        self._schema = block_schema(source)
        self._windowed = source.not_before > 0 or source.not_after < (1 << 64) - 1

    def make(self, pieces: Sequence[Piece]) -> list[Routed]:
        counts = [piece.batch.num_rows for piece in pieces]
        batch = (
            pa.concat_batches([piece.batch for piece in pieces])
            if len(pieces) > 1
            else pieces[0].batch
        )
        clocks = np.concatenate(
            [
                np.arange(p.clock, p.clock + n, dtype=np.uint64)
                for p, n in zip(pieces, counts, strict=True)
            ]
        )
        names: dict[tuple[int, int], int] = {}
        numbers = [names.setdefault((p.place, p.producer), len(names)) for p in pieces]
        pairs = np.repeat(np.array(numbers, np.uint32), counts)
        if self._windowed:
            inside = (clocks >= self._source.not_before) & (clocks <= self._source.not_after)
            if not inside.all():
                batch = batch.filter(pa.array(inside))
                clocks, pairs = clocks[inside], pairs[inside]
        keys = np.array(list(names), np.uint64).reshape(-1, 2)
        members = self._router.route(batch, self._source.key, clocks)
        return [
            self._block(member, batch, clocks, pairs, keys, rows)
            for member, rows in _rows_by_member(members)
        ]

    def _block(
        self,
        member: int,
        batch: pa.RecordBatch,
        clocks: NDArray[np.uint64],
        pairs: NDArray[np.uint32],
        keys: NDArray[np.uint64],
        rows: NDArray[np.intp] | None,
    ) -> Routed:
        if rows is not None:
            batch, clocks, pairs = batch.take(pa.array(rows)), clocks[rows], pairs[rows]
        table, pairs = _pair_table(keys, clocks, pairs)
        block = pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(clocks), pa.array(pairs)], schema=self._schema
        )
        head = BlockHead(
            self._source.tag,
            self._source.lane,
            int(clocks.min()) + self._source.delay,
            int(clocks.max()) + self._source.delay,
            len(clocks),
            table.tobytes(),
        )
        return Routed(member, head, block.serialize())


def block_schema(source: Source) -> pa.Schema:
    return pa.schema([*document_schema(source), CLOCK_FIELD, PAIR_FIELD])


def decode_block(body: Any, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(body), schema)


def _rows_by_member(members: NDArray[np.intp]) -> Iterator[tuple[int, NDArray[np.intp] | None]]:
    """Each member with its rows, in their order; None for all of them."""
    if not len(members):
        return
    first = int(members[0])
    if (members == first).all():
        yield first, None
        return
    order = np.argsort(members, kind="stable")
    found, starts = np.unique(members[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)


def _pair_table(
    keys: NDArray[np.uint64], clocks: NDArray[np.uint64], pairs: NDArray[np.uint32]
) -> tuple[Pairs, NDArray[np.uint32]]:
    """The pairs that occur, and each row's number among them."""
    counts = np.bincount(pairs, minlength=len(keys))
    present = np.flatnonzero(counts)
    table = np.zeros(len(present), PAIR_ROW)
    table["place"], table["producer"] = keys[present, 0], keys[present, 1]
    table["rows"] = counts[present]
    if len(present) < len(keys):
        renumbered = np.zeros(len(keys), np.uint32)
        renumbered[present] = np.arange(len(present), dtype=np.uint32)
        pairs = renumbered[pairs]
    table["first"] = np.iinfo(np.uint64).max
    np.minimum.at(table["first"], pairs, clocks)
    np.maximum.at(table["last"], pairs, clocks)
    return table, pairs


def without_ours(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The documents' own columns."""
    return pa.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)
