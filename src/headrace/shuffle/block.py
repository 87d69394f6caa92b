"""Blocks and the ends of spans: what moves from Slices to Queues to readers. Pure.

A block holds documents of one binding for one member. It is a record batch of the documents' own
columns and two that Headrace adds: `_clock` is the document's clock, and `_pair` is its row in the
block's table of pairs. That table has a row for each (place, producer) in the block, with the least
and the greatest clock. From the table alone, a reader can tell whether a block is visible as a
whole, which it nearly always is. A Queue moves blocks as bytes and never decodes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.arrow_numbers import arrow_numbers
from headrace.clock import Clock
from headrace.frontier import BindingTag
from headrace.shuffle.binding import Source, document_schema
from headrace.shuffle.routing import Members, Router

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
_ADDED_BYTES = 12
"""What the added columns take of each document."""

Pairs = NDArray[np.void]


class BlockHead(msgspec.Struct, frozen=True, array_like=True):
    """What a Queue knows of a block without decoding it."""

    binding: BindingTag
    lane: int
    low: int
    high: int
    """The least and the greatest adjusted clock in the block."""
    rows: int
    pairs: bytes

    def pair_rows(self) -> Pairs:
        return np.frombuffer(self.pairs, PAIR_ROW)


class SpanEnd(NamedTuple):
    """An ACK: it commits the documents that a producer has pending in a place, or rolls them back.

    A rollback retracts the documents with clocks from `first` to `last`.
    """

    place: int
    producer: int
    first: int
    last: int
    committed: bool
    last_commit: int
    """The producer's last commit in the place, after this ACK."""


class Piece(NamedTuple):
    """The documents of one frame that go into blocks."""

    place: int
    producer: int
    clock: Clock
    """The clock of the first row; the clocks of the rows are consecutive."""
    batch: pa.RecordBatch


class Block(NamedTuple):
    """Documents of one binding, with the added columns, and their table of pairs."""

    source: Source
    batch: pa.RecordBatch
    pairs: Pairs


class Routed(NamedTuple):
    """A block as bytes, and the member that owns its documents."""

    member: int
    head: BlockHead
    body: Any


class RoutedPieces(NamedTuple):
    """The documents of some pieces, and who owns each of them."""

    pieces: Sequence[Piece]
    batch: pa.RecordBatch
    clocks: NDArray[np.uint64]
    piece_of: NDArray[np.uint32]
    """For each document, the number of its piece."""
    members: Members

    def bytes_by_member(self) -> list[int]:
        """Return about how many bytes each member gets; members after the last one get none."""
        documents = len(self.members)
        size = self.batch.nbytes + documents * _ADDED_BYTES
        counts: list[int] = np.bincount(self.members).tolist()
        return [count * size // documents for count in counts]


class BlockMaker:
    """Makes pieces of one binding into blocks for the members that own the documents."""

    def __init__(self, source: Source, router: Router) -> None:
        self.lane = source.lane
        self._source = source
        self._router = router
        self._schema = block_schema(source)
        self._windowed = source.not_before > 0 or source.not_after < (1 << 64) - 1

    def route(self, pieces: Sequence[Piece]) -> RoutedPieces:
        """Find the owner of each document in the clock window."""
        batch, clocks, piece_of = join_pieces(pieces), *_clocks(pieces)
        if self._windowed:
            inside = (clocks >= self._source.not_before) & (clocks <= self._source.not_after)
            if not inside.all():
                batch = batch.filter(arrow_numbers(inside))
                clocks, piece_of = clocks[inside], piece_of[inside]
        members = self._router.route(batch, self._source.key, clocks)
        return RoutedPieces(pieces, batch, clocks, piece_of, members)

    def make(self, routed: Sequence[RoutedPieces], documents_max: int) -> list[Routed]:
        """Return blocks of up to `documents_max`; those of a member are in order."""
        pieces, batch, clocks, piece_of, members = _joined(routed)
        counts = np.bincount(members)
        if np.count_nonzero(counts) > 1:
            # Put the documents of each member together. Short numbers are sorted much faster.
            short = members.astype(np.min_scalar_type(len(counts)))
            order = np.argsort(short, kind="stable")
            batch = batch.take(arrow_numbers(order))
            clocks, piece_of = clocks[order], piece_of[order]
        blocks = []
        for member, (begin, end) in enumerate(pairwise([0, *np.cumsum(counts).tolist()])):
            for first in range(begin, end, documents_max):
                rows = slice(first, min(first + documents_max, end))
                part = batch.slice(first, rows.stop - first)
                blocks.append(self._block(member, pieces, part, clocks[rows], piece_of[rows]))
        return blocks

    def _block(
        self,
        member: int,
        pieces: Sequence[Piece],
        batch: pa.RecordBatch,
        clocks: NDArray[np.uint64],
        piece_of: NDArray[np.uint32],
    ) -> Routed:
        block, table = _add_columns(self._schema, pieces, batch, clocks, piece_of)
        head = BlockHead(
            self._source.tag,
            self._source.lane,
            self._source.adjusted(int(table["first"].min())),
            self._source.adjusted(int(table["last"].max())),
            len(clocks),
            table.tobytes(),
        )
        return Routed(member, head, block.serialize())


def _joined(routed: Sequence[RoutedPieces]) -> RoutedPieces:
    if len(routed) == 1:
        return routed[0]
    begins = accumulate((len(each.pieces) for each in routed[:-1]), initial=0)
    return RoutedPieces(
        [piece for each in routed for piece in each.pieces],
        pa.concat_batches([each.batch for each in routed]),
        np.concatenate([each.clocks for each in routed]),
        np.concatenate(
            [each.piece_of + np.uint32(begin) for each, begin in zip(routed, begins, strict=True)]
        ),
        np.concatenate([each.members for each in routed]),
    )


def join_pieces(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Return the documents of the pieces in one batch."""
    batches = [piece.batch for piece in pieces]
    return pa.concat_batches(batches) if len(batches) > 1 else batches[0]


def block_of(source: Source, pieces: Sequence[Piece]) -> Block:
    """Return one block with all documents of the pieces."""
    schema, batch = block_schema(source), join_pieces(pieces)
    return Block(source, *_add_columns(schema, pieces, batch, *_clocks(pieces)))


def block_schema(source: Source) -> pa.Schema:
    return pa.schema([*document_schema(source), CLOCK_FIELD, PAIR_FIELD])


def block_bytes(head: BlockHead, body: object) -> int:
    """The bytes that a block counts for, in credit and on disk."""
    return len(head.pairs) + memoryview(body).nbytes  # type: ignore[arg-type]


def decode_block(body: Any, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(body), schema)


def _clocks(pieces: Sequence[Piece]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Return the clock of each row, and the number of its piece."""
    counts = [piece.batch.num_rows for piece in pieces]
    clocks = [
        np.arange(piece.clock, piece.clock + count, dtype=np.uint64)
        for piece, count in zip(pieces, counts, strict=True)
    ]
    return np.concatenate(clocks), np.repeat(np.arange(len(pieces), dtype=np.uint32), counts)


def _add_columns(
    schema: pa.Schema,
    pieces: Sequence[Piece],
    batch: pa.RecordBatch,
    clocks: NDArray[np.uint64],
    piece_of: NDArray[np.uint32],
) -> tuple[pa.RecordBatch, Pairs]:
    """Return the batch with the added columns, and its table of pairs."""
    table, pairs = _pair_table(pieces, clocks, piece_of)
    columns = [*batch.columns, arrow_numbers(clocks), arrow_numbers(pairs)]
    return pa.RecordBatch.from_arrays(columns, schema=schema), table


def _pair_table(
    pieces: Sequence[Piece], clocks: NDArray[np.uint64], piece_of: NDArray[np.uint32]
) -> tuple[Pairs, NDArray[np.uint32]]:
    """Return the table of pairs, and for each row its number in that table.

    The rows of a piece follow each other and their clocks ascend, so its first and last row have
    its least and greatest clock.
    """
    begins = np.flatnonzero(np.diff(piece_of, prepend=piece_of[:1] + np.uint32(1)))
    counts = np.diff(begins, append=len(clocks))
    found: dict[tuple[int, int], list[int]] = {}
    numbers = []
    for piece, first, last, count in zip(
        piece_of[begins].tolist(),
        clocks[begins].tolist(),
        clocks[begins + counts - 1].tolist(),
        counts.tolist(),
        strict=True,
    ):
        key = pieces[piece].place, pieces[piece].producer
        # A pair is its number, its first and last clock, and its rows.
        pair = found.setdefault(key, [len(found), first, last, 0])
        pair[1], pair[2] = min(pair[1], first), max(pair[2], last)
        pair[3] += count
        numbers.append(pair[0])
    table = np.array([(*key, *pair[1:]) for key, pair in found.items()], PAIR_ROW)
    return table, np.repeat(np.array(numbers, np.uint32), counts)


def document_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch without the added columns."""
    return pa.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)
