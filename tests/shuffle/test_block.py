"""BlockMaker makes the blocks that a loop over the documents would make."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.clock import CLOCK_MAX, Clock
from headrace.shuffle.binding import ADJUSTED_MAX, document_schema
from headrace.shuffle.block import (
    BlockHead,
    BlockMaker,
    Piece,
    Routed,
    block_bytes,
    block_schema,
    decode_block,
    document_columns,
)
from headrace.shuffle.routing import Router, split_evenly
from tests.shuffle.builders import documents, source

EVERYTHING = (0, CLOCK_MAX)


class Row(NamedTuple):
    document: int
    place: int
    producer: int
    clock: int


def random_pieces(rng: Random) -> list[Piece]:
    """Return pieces of some producers. After a rollback, the clocks of one may begin again."""
    pieces = []
    clocks = dict.fromkeys([(place, producer) for place in (3, 9) for producer in (1, 2)], 10)
    for _ in range(rng.randint(1, 8)):
        place, producer = rng.choice(list(clocks))
        clock = max(1, clocks[place, producer] + rng.randint(-8, 20))
        count = rng.randint(1, 6)
        clocks[place, producer] = clock + count
        first = rng.randrange(10_000)
        pieces.append(Piece(place, producer, Clock(clock), documents(first, count)))
    return pieces


def rows_of(pieces: list[Piece], window: tuple[int, int]) -> list[Row]:
    return [
        Row(number, piece.place, piece.producer, clock)
        for piece in pieces
        for clock, number in enumerate(piece.batch.column(0).to_pylist(), piece.clock)
        if window[0] <= clock <= window[1]
    ]


def decoded(head: BlockHead, batch: pa.RecordBatch) -> list[Row]:
    table = head.pair_rows()
    return [
        Row(number, int(table[pair]["place"]), int(table[pair]["producer"]), clock)
        for number, clock, pair in zip(
            batch["doc"].to_pylist(),
            batch["_clock"].to_pylist(),
            batch["_pair"].to_pylist(),
            strict=True,
        )
    ]


# proves G5, G8
@pytest.mark.parametrize("seed", range(60))
def test_blocks_hold_every_document_in_its_order_at_its_member(seed: int) -> None:
    rng = Random(seed)
    window = rng.choice([EVERYTHING, (20, 45), (0, 30), (30, CLOCK_MAX), (1 << 40, CLOCK_MAX)])
    read = source(4, lane=1, delay=rng.choice([0, 1000]), window=window)
    router = Router(split_evenly(rng.choice([1, 2, 3])))
    pieces = random_pieces(rng)
    expected = rows_of(pieces, window)
    keys = pa.RecordBatch.from_pylist(
        [{"doc": row.document, "key": row.document % 7} for row in expected], document_schema(read)
    )
    owners = router.route(keys, read.key, np.array([r.clock for r in expected], np.uint64)).tolist()

    documents_max = rng.choice([1, 3, 100])
    blocks = made(BlockMaker(read, router), pieces, rng.randint(1, len(pieces)), documents_max)

    assert [block.member for block in blocks] == [
        member
        for member in sorted(set(owners))
        for _ in range(-(-owners.count(member) // documents_max))
    ]
    begins = dict.fromkeys(owners, 0)
    for member, head, body in blocks:
        owned = [row for row, owner in zip(expected, owners, strict=True) if owner == member]
        mine = owned[begins[member] :][:documents_max]
        begins[member] += documents_max
        batch = decode_block(body, block_schema(read))
        assert decoded(head, batch) == mine
        assert document_columns(batch, document_schema(read)).to_pylist() == [
            {"doc": row.document, "key": row.document % 7} for row in mine
        ]
        clocks = [row.clock for row in mine]
        assert (head.binding, head.lane, head.rows) == (4, 1, len(mine))
        assert (head.low, head.high) == (min(clocks) + read.delay, max(clocks) + read.delay)
        assert sorted(head.pair_rows().tolist()) == pair_table(mine)


def made(
    maker: BlockMaker, pieces: list[Piece], portions: int = 1, documents_max: int = 100
) -> list[Routed]:
    """Make pieces into blocks after they were routed in so many portions."""
    per_portion = -(-len(pieces) // portions)
    routed = [
        maker.route(pieces[begin : begin + per_portion])
        for begin in range(0, len(pieces), per_portion)
    ]
    return maker.make(routed, documents_max)


def pair_table(rows: list[Row]) -> list[tuple[int, int, int, int, int]]:
    clocks: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        clocks.setdefault((row.place, row.producer), []).append(row.clock)
    return sorted((*pair, min(mine), max(mine), len(mine)) for pair, mine in clocks.items())


# proves G8
def test_no_adjusted_clock_lies_beyond_the_last_one() -> None:
    read = source(delay=1000)
    (routed,) = made(
        BlockMaker(read, Router(split_evenly(1))),
        [Piece(1, 1, Clock(CLOCK_MAX - 9), documents(7, 5))],
    )
    assert (routed.head.low, routed.head.high) == (ADJUSTED_MAX, ADJUSTED_MAX)
    encoded = msgspec.msgpack.encode(routed.head)
    assert msgspec.msgpack.decode(encoded, type=BlockHead) == routed.head
    batch = decode_block(routed.body, block_schema(read))
    assert batch["_clock"].to_pylist() == list(range(CLOCK_MAX - 9, CLOCK_MAX - 4))


def test_documents_outside_of_the_window_leave_no_block() -> None:
    maker = BlockMaker(source(window=(100, 200)), Router(split_evenly(2)))
    assert made(maker, [Piece(1, 1, Clock(10), documents(10, 5))]) == []
    (routed,) = made(maker, [Piece(1, 1, Clock(199), documents(7, 1))])
    assert routed.head.pair_rows().tolist() == [(1, 1, 199, 199, 1)]


def test_a_portion_counts_for_the_members_that_get_it_and_never_for_nothing() -> None:
    """Documents of a few bits take more in blocks, where each has its clock and its pair."""
    maker = BlockMaker(source(), Router(split_evenly(3)))
    routed = maker.route([Piece(1, 1, Clock(1), documents(1, 5000))])
    sizes = [0, 0, 0]
    for block in maker.make([routed], 5000):
        sizes[block.member] = block_bytes(block.head, block.body)
    about = routed.bytes_by_member()
    assert all(0.9 * size <= each <= size for each, size in zip(about, sizes, strict=True))
    outside = BlockMaker(source(window=(10_000, 20_000)), Router(split_evenly(3)))
    assert outside.route([Piece(1, 1, Clock(1), documents(1, 5))]).bytes_by_member() == []
