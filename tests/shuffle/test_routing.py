"""Which member owns a document, and which reads a journal."""

from __future__ import annotations

from datetime import date
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.clock import COUNTER_BITS
from headrace.errors import UsageError
from headrace.journal.documents.keyhash import key_hash
from headrace.journal.names import JournalName, escape_value, parse_journal_name
from headrace.shuffle.routing import (
    SPACE,
    Range,
    Router,
    assign,
    check_tiling,
    r_clock,
    split_evenly,
    static_hash,
)
from headrace.testing.shuffle.memory_journal import SCHEMA
from tests.shuffle.builders import source

LAST = SPACE - 1
HALF = SPACE // 2
QUARTERS = [
    Range(0, HALF - 1, 0, HALF - 1),
    Range(0, HALF - 1, HALF, LAST),
    Range(HALF, LAST, 0, HALF - 1),
    Range(HALF, LAST, HALF, LAST),
]
STRIPES = [Range(0, LAST, 0, 999), Range(0, LAST, 1000, HALF), Range(0, LAST, HALF + 1, LAST)]
LAYERS = [Range(0, LAST, r.key_begin, r.key_end) for r in split_evenly(4)]
GRID = [
    Range(k.key_begin, k.key_end, r.rclock_begin, r.rclock_end)
    for k in split_evenly(4)
    for r in LAYERS
]
UNEVEN = [Range(1000, LAST), Range(10, 999), Range(0, 9)]


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        (0, 0),
        (1, 0x8000_0000),
        (2, 0x4000_0000),
        (3, 0xC000_0000),
        (0x8000_0000, 1),
        (0x1234_5678, 0x1E6A_2C48),
        (0xFFFF_FFFF, 0xFFFF_FFFF),
        (0xFFFF_FFFF_0000_0001, 0x8000_0000),
    ],
)
def test_an_r_clock_is_the_low_half_of_the_clock_reversed(clock: int, expected: int) -> None:
    assert r_clock(np.array([clock, clock], np.uint64)).tolist() == [expected, expected]


def owner(ranges: list[Range], hash: int, reversed_clock: int) -> int:
    (found,) = [
        member
        for member, r in enumerate(ranges)
        if r.key_begin <= hash <= r.key_end and r.rclock_begin <= reversed_clock <= r.rclock_end
    ]
    return found


# proves G5
@pytest.mark.parametrize("ranges", [split_evenly(1), split_evenly(3), UNEVEN, QUARTERS, STRIPES])
@pytest.mark.parametrize("key", [("key",), ("key", "doc"), ()])
def test_every_document_goes_to_the_one_member_that_owns_it(
    ranges: list[Range], key: tuple[str, ...]
) -> None:
    rng = Random(len(ranges))
    count = 500
    clocks = np.array([rng.getrandbits(64) for _ in range(count)], np.uint64)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([rng.getrandbits(40) for _ in range(count)], pa.int64()) for _ in range(2)],
        schema=SCHEMA,
    )
    reversed_clocks = [int(f"{clock & LAST:032b}"[::-1], 2) for clock in clocks.tolist()]
    keys = batch if key else pa.RecordBatch.from_pydict({"clock": clocks.view(np.int64)})
    hashes = [h >> 32 for h in key_hash(keys, key or ("clock",)).tolist()]
    expected = [owner(ranges, *each) for each in zip(hashes, reversed_clocks, strict=True)]
    assert Router(ranges).route(batch, key, clocks).tolist() == expected


def test_the_ends_of_ranges_belong_to_them() -> None:
    router = Router(UNEVEN)
    hashes = np.array([0, 9, 10, 999, 1000, LAST], np.uint32)
    assert router.owners(hashes, np.zeros(6, np.uint64)).tolist() == [2, 2, 1, 1, 0, 0]


def test_the_ends_of_ranges_that_divide_r_clocks_too_belong_to_them() -> None:
    hashes = np.array([0, HALF - 1, HALF, LAST] * 4, np.uint32)
    clocks = np.repeat(np.array([0, 0xFFFF_FFFE, 1, 0xFFFF_FFFF], np.uint64), 4)
    assert r_clock(clocks[::4]).tolist() == [0, HALF - 1, HALF, LAST]
    owners = Router(QUARTERS[::-1]).owners(hashes, clocks)
    assert owners.tolist() == [3, 3, 1, 1] * 2 + [2, 2, 0, 0] * 2


@pytest.mark.parametrize("ranges", [split_evenly(4), split_evenly(3), QUARTERS, LAYERS, GRID])
def test_documents_without_a_key_spread_evenly_whichever_way_the_plane_is_cut(
    ranges: list[Range],
) -> None:
    """The documents are of one frame, so their clocks are consecutive."""
    clocks = np.arange(1 << 50, (1 << 50) + 16_000, dtype=np.uint64)
    assert is_even(counts_without_a_key(ranges, clocks), ranges)


def test_documents_without_a_key_that_are_appended_one_by_one_spread_evenly() -> None:
    """The counters of their clocks are all 0."""
    clocks = np.arange(1 << 46, (1 << 46) + 16_000, dtype=np.uint64) << np.uint64(COUNTER_BITS)
    ranges = split_evenly(4)
    assert is_even(counts_without_a_key(ranges, clocks), ranges)


def counts_without_a_key(ranges: list[Range], clocks: NDArray[np.uint64]) -> list[int]:
    batch = pa.RecordBatch.from_arrays([pa.nulls(len(clocks), pa.int64())] * 2, schema=SCHEMA)
    members = Router(ranges).route(batch, (), clocks)
    found: list[int] = np.bincount(members, minlength=len(ranges)).tolist()
    return found


def is_even(counts: list[int], ranges: list[Range]) -> bool:
    """Return True if the share of every member is about that of its range in the plane."""
    shares = [sum(counts) * r.area / (SPACE * SPACE) for r in ranges]
    return all(0.8 * s < n < 1.2 * s for n, s in zip(counts, shares, strict=True))


@pytest.mark.parametrize("members", [1, 2, 3, 7, 1000])
def test_equal_shares_tile(members: int) -> None:
    ranges = split_evenly(members)
    check_tiling(ranges)
    assert max(r.area for r in ranges) - min(r.area for r in ranges) <= SPACE


@pytest.mark.parametrize(
    ("ranges", "error"),
    [
        ([], "the members' ranges leave a gap; choose ranges that tile the whole space"),
        ([Range(0, 5)], "the members' ranges leave a gap; choose ranges that tile the whole space"),
        (
            [Range(0, 9), Range(11, LAST)],
            "the members' ranges leave a gap; choose ranges that tile the whole space",
        ),
        (
            [Range(0, 10), Range(10, LAST)],
            "the ranges of members 0 and 1 overlap; choose ranges that tile the whole space",
        ),
        (
            [*QUARTERS[:3], Range(HALF, LAST, HALF - 1, LAST)],
            "the ranges of members 2 and 3 overlap; choose ranges that tile the whole space",
        ),
        (
            [Range(), Range()],
            "the ranges of members 0 and 1 overlap; choose ranges that tile the whole space",
        ),
        (
            [Range(0, SPACE)],
            f"member 0 has the range {Range(0, SPACE)}; use 0 to 2^32 - 1, in order",
        ),
        (
            [Range(5, 4), Range()],
            f"member 0 has the range {Range(5, 4)}; use 0 to 2^32 - 1, in order",
        ),
        (
            [Range(0, LAST, -1, LAST)],
            f"member 0 has the range {Range(0, LAST, -1, LAST)}; use 0 to 2^32 - 1, in order",
        ),
    ],
)
def test_ranges_that_do_not_tile_are_refused(ranges: list[Range], error: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_tiling(ranges)
    assert str(refused.value) == error


PARTITION_VALUES: list[tuple[pa.DataType, Any]] = [
    *[(pa.string(), text) for text in (None, "", "eu", "%null", "%empty", "a/b=c d", "é%2F", "0")],
    *[(pa.int64(), number) for number in (None, 0, -5, 1 << 62)],
    *[(pa.int8(), -128), (pa.int16(), 7), (pa.int32(), -1)],
    *[(pa.bool_(), value) for value in (True, False, None)],
    *[(pa.date32(), day) for day in (date(2026, 11, 15), date(1969, 1, 1), None)],
]


@pytest.mark.parametrize(("kind", "value"), PARTITION_VALUES, ids=str)
def test_a_journal_whose_labels_cover_the_key_is_read_where_its_documents_go(
    kind: pa.DataType, value: Any
) -> None:
    schema = pa.schema([pa.field("part", kind), pa.field("other", pa.int64())])
    name = str(JournalName("c", (("part", escape_value(value)),), 3))
    batch = pa.RecordBatch.from_arrays([pa.array([value], kind), pa.array([1])], schema=schema)
    ranges = split_evenly(64)
    read_by = assign(parse_journal_name(name), source(key=["part"], schema=schema), ranges)
    assert Router(ranges).route(batch, ["part"], np.zeros(1, np.uint64)).tolist() == [read_by]


def test_the_static_route_takes_the_key_in_its_own_order() -> None:
    schema = pa.schema([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.int64())])
    name = parse_journal_name("c/a=x/b=7/0000")
    batch = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array([7])], schema=schema)
    for key in (("a", "b"), ("b", "a"), ("b",)):
        static = static_hash(name, source(key=key, schema=schema))
        assert static == int(key_hash(batch, key)[0]) >> 32


def test_there_is_no_static_route_unless_labels_cover_the_whole_key() -> None:
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.int64())])
    name = parse_journal_name("c/a=x/0000")
    assert static_hash(name, source(key=("a", "b"), schema=schema)) is None
    assert static_hash(name, source(key=(), schema=schema)) is None
    assert static_hash(parse_journal_name("c/0000"), source(key=("a",), schema=schema)) is None


def test_a_static_route_over_r_clocks_chooses_among_those_that_get_documents() -> None:
    schema = pa.schema([pa.field("part", pa.int64())])
    read = source(key=["part"], schema=schema)
    used = set()
    for number in range(200):
        name = parse_journal_name(f"c/part={number % 20}/{number:04d}")
        member = assign(name, read, QUARTERS)
        static = static_hash(name, read)
        assert static is not None
        assert QUARTERS[member].key_begin <= static <= QUARTERS[member].key_end
        used.add(member)
    assert used == {0, 1, 2, 3}


def test_a_static_route_at_the_end_of_a_range_belongs_to_it() -> None:
    read = source(key=["part"], schema=pa.schema([pa.field("part", pa.int64())]))
    name = parse_journal_name("c/part=1/0000")
    static = static_hash(name, read)
    assert static is not None
    assert assign(name, read, [Range(0, static), Range(static + 1, LAST)]) == 0
    assert assign(name, read, [Range(0, static - 1), Range(static, LAST)]) == 1


def test_a_further_member_takes_its_share_and_moves_no_other_journal() -> None:
    names = [parse_journal_name(f"c/{number:04d}") for number in range(1000)]
    read = source()
    for members in (1, 2, 5):
        before = [assign(name, read, split_evenly(members)) for name in names]
        after = [assign(name, read, split_evenly(members + 1)) for name in names]
        moved = [a for a, b in zip(after, before, strict=True) if a != b]
        assert set(moved) == {members}
        share = len(names) / (members + 1)
        assert 0.8 * share < len(moved) < 1.2 * share


def test_bindings_of_one_journal_are_read_by_different_members() -> None:
    names = [parse_journal_name(f"c/{number:04d}") for number in range(100)]
    under_one = [assign(name, source(0), split_evenly(4)) for name in names]
    under_other = [assign(name, source(1), split_evenly(4)) for name in names]
    assert under_one != under_other
