"""Series in memory: what `select` returns, and how samples of a series come together."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import QueryError
from headrace.stores.timeseries.memory_source import MemorySource
from headrace.stores.timeseries.sample_merge import merge_samples, sort_samples
from headrace.stores.timeseries.series import STALE_BITS, LabelMatcher, MatchKind

A = LabelMatcher("__name__", MatchKind.EQUAL, "a")


def test_select_returns_the_samples_of_the_time_and_leaves_out_empty_series() -> None:
    source = MemorySource(
        [
            ({"__name__": "a", "i": "2"}, [(5, 1.0), (10, 2.0), (15, 3.0)]),
            ({"__name__": "a", "i": "1"}, [(20, 4.0), (12, 5.0)]),
            ({"__name__": "a", "i": "3"}, [(1, 0.0)]),
            ({"__name__": "b"}, [(10, 9.0)]),
        ]
    )
    found = source.select([A], 10, 15, 3)
    assert [dict(each)["i"] for each in found.labels] == ["1", "2"]
    assert found.offsets.tolist() == [0, 1, 3]
    assert found.timestamps.tolist() == [12, 10, 15]
    assert found.values.tolist() == [5.0, 2.0, 3.0]
    assert source.select([A], 16, 19, 3).labels == []
    assert source.select([A], 16, 19, 3).offsets.tolist() == [0]


def test_too_many_samples_are_refused() -> None:
    source = MemorySource([({"i": str(i)}, [(0, 0.0), (1, 1.0)]) for i in range(3)])
    assert len(source.select([], 0, 1, 6).values) == 6
    with pytest.raises(QueryError, match="at most 5 are allowed"):
        source.select([], 0, 1, 5)


def test_values_keep_their_bits_and_the_last_of_a_time_counts() -> None:
    stale = struct.unpack("<d", STALE_BITS.to_bytes(8, "little"))[0]
    source = MemorySource([({"a": "1"}, [(1, 1.0), (2, stale), (1, -0.0)])])
    source.add({"a": "1"}, np.array([3, 3]), np.array([1.0, math.inf]))
    found = source.select([], 0, 9, 9)
    assert found.timestamps.tolist() == [1, 2, 3]
    bits = found.values.view(np.uint64).tolist()
    assert bits == [1 << 63, STALE_BITS, 0x7FF0000000000000]


samples = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-(1 << 61), 1 << 61) | st.integers(0, 3))
)


@given(samples)
def test_sorting_keeps_the_last_sample_of_each_time(pairs: list[tuple[int, int]]) -> None:
    expected: dict[tuple[int, int], int] = {}
    for position, pair in enumerate(pairs):
        expected[pair] = position
    ranks = np.array([rank for rank, _ in pairs], dtype=np.int64)
    times = np.array([time for _, time in pairs], dtype=np.int64)
    order, starts = sort_samples(ranks, times)
    assert order.tolist() == [expected[pair] for pair in sorted(expected)]
    kept = ranks[order].tolist()
    assert starts.tolist() == [kept.index(each) for each in sorted(set(kept))]


def test_merging_nothing_gives_nothing() -> None:
    assert merge_samples([]).offsets.tolist() == [0]
