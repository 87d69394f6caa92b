"""Chunks keep every bit of every sample, take few bytes, and show that they are damaged."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError
from headrace.stores.timeseries.chunks.chunk_format import (
    SeriesSamples,
    chunk_samples,
    decode_chunk,
    encode_chunk,
)
from headrace.stores.timeseries.series import STALE_BITS

ODD_BITS = [
    STALE_BITS,
    0x7FF8000000000001,
    0xFFF8DEADBEEF0001,
    0x7FF0000000000001,
    0x7FF0000000000000,
    0xFFF0000000000000,
    1 << 63,
    1,
    0xC3E0000000000000,  # -2 ** 63
    0x43E0000000000000,  # 2 ** 63
    0x7FEFFFFFFFFFFFFF,
]

bits = st.one_of(
    st.sampled_from(ODD_BITS),
    st.integers(0, (1 << 64) - 1),
    st.integers(-1000, 1000).map(lambda n: struct.unpack("<Q", struct.pack("<d", n))[0]),
    st.integers(-9999, 9999).map(lambda n: struct.unpack("<Q", struct.pack("<d", n / 100))[0]),
)
series = st.lists(
    st.tuples(
        st.integers(1, 1 << 40),
        st.lists(st.tuples(st.integers(1, 1 << 50) | st.just(15_000), bits), min_size=1),
    ),
    max_size=4,
)


def make_samples(pieces: list[tuple[int, list[tuple[int, int]]]]) -> SeriesSamples:
    """Make series of (step of the id, (step of the time, bits of the value))."""
    counts = [len(samples) for _, samples in pieces]
    times = [np.cumsum([step for step, _ in samples]) for _, samples in pieces]
    values = [each for _, samples in pieces for _, each in samples]
    return SeriesSamples(
        np.cumsum([step for step, _ in pieces], dtype=np.int64),
        np.cumsum([0, *counts], dtype=np.int64),
        np.concatenate([np.empty(0, np.int64), *times]).astype(np.int64) - (1 << 40),
        np.array(values, dtype=np.uint64).view(np.float64),
    )


def check_round_trip(samples: SeriesSamples) -> bytes:
    stored = encode_chunk(samples)
    found = decode_chunk(stored)
    assert found.ids.tolist() == samples.ids.tolist()
    assert found.offsets.tolist() == samples.offsets.tolist()
    assert found.timestamps.tolist() == samples.timestamps.tolist()
    assert found.values.view(np.uint64).tolist() == samples.values.view(np.uint64).tolist()
    assert chunk_samples(stored) == len(samples.values)
    return stored


@given(series)
def test_every_bit_comes_back(pieces: list[tuple[int, list[tuple[int, int]]]]) -> None:
    check_round_trip(make_samples(pieces))


@pytest.mark.parametrize("odd", ODD_BITS)
@pytest.mark.parametrize("place", [0, 7, 15])
def test_odd_values_among_integers_come_back(odd: int, place: int) -> None:
    values = np.arange(32, dtype=np.float64)
    values.view(np.uint64)[place] = odd
    values.view(np.uint64)[place + 16] = odd
    offsets = np.array([0, 16, 32])
    times = np.tile(np.arange(16), 2)
    check_round_trip(SeriesSamples(np.array([1, 2]), offsets, times, values))


def test_extreme_times_and_ids_come_back() -> None:
    extremes = np.iinfo(np.int64)
    times = np.array([extremes.min, 0, extremes.max, extremes.min, extremes.max])
    ids = np.array([1, extremes.max])
    check_round_trip(SeriesSamples(ids, np.array([0, 3, 5]), times, np.zeros(5)))


def regular(values: np.ndarray[tuple[int, int], np.dtype[np.float64]], seed: int) -> SeriesSamples:
    """Series that are scraped every 15 s, some milliseconds early or late."""
    count, length = values.shape
    random = np.random.default_rng(seed)
    times = np.arange(length) * 15_000 + random.integers(-5, 6, (count, length))
    times += random.integers(0, 15_000, (count, 1))
    offsets = np.arange(count + 1, dtype=np.int64) * length
    return SeriesSamples(np.arange(1, count + 1), offsets, times.ravel(), values.ravel())


@pytest.mark.parametrize(("length", "bytes_max"), [(240, 2.5), (8, 4.0)])
def test_counters_take_few_bytes(length: int, bytes_max: float) -> None:
    random = np.random.default_rng(5)
    steps = random.poisson(random.integers(1, 2000, (200, 1)), (200, length))
    counters = np.cumsum(steps, axis=1) + random.integers(0, 1 << 30, (200, 1))
    stored = check_round_trip(regular(counters.astype(np.float64), 6))
    assert len(stored) / counters.size <= bytes_max


def test_series_that_end_and_decimals_take_few_bytes() -> None:
    random = np.random.default_rng(7)
    counters = np.cumsum(random.poisson(50, (100, 240)), axis=1).astype(np.float64)
    counters.view(np.uint64)[:, -1] = STALE_BITS
    assert len(check_round_trip(regular(counters, 8))) / counters.size <= 2.5
    for digits in (1, 2, 3):
        gauges = np.round(random.normal(50, 0.05 * 10 ** (2 - digits), (100, 240)), digits)
        assert len(check_round_trip(regular(gauges, 9))) / gauges.size <= 4


def test_an_exception_costs_only_its_own_bits() -> None:
    """The differences beside it stay as small as without it."""
    random = np.random.default_rng(12)
    steps = random.poisson(50, (50, 240)).astype(np.float64)
    counters = np.cumsum(steps, axis=1) + float(1 << 40)
    plain = len(encode_chunk(regular(counters, 13)))
    counters.view(np.uint64)[:, [3, 100, 101]] = STALE_BITS
    assert len(check_round_trip(regular(counters, 13))) < 1.15 * plain


def test_every_damaged_byte_is_noticed() -> None:
    stored = encode_chunk(make_samples([(1, [(5, 0), (5, ODD_BITS[0])])]))
    for place in range(len(stored)):
        damaged = bytearray(stored)
        damaged[place] ^= 0x10
        with pytest.raises(DataError, match="chunk 3 of bucket 4 is damaged; restore"):
            decode_chunk(bytes(damaged), "chunk 3 of bucket 4")
    for length in range(len(stored)):
        with pytest.raises(DataError):
            decode_chunk(stored[:length])
