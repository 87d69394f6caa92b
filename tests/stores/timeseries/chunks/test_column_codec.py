"""Columns of integers: every width, and the numbers next to its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stores.timeseries.chunks.column_codec import put_column, take_column

LIMITS = [0, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1]


def stored_bytes(column: list[int]) -> int:
    pieces = [b"before"]
    put_column(pieces, np.array(column, dtype=np.int64))
    whole = b"".join(pieces) + b"after"
    found, end = take_column(memoryview(whole), 6, len(column))
    assert found.tolist() == column
    assert whole[end:] == b"after"
    return end - 6


@pytest.mark.parametrize("least", [0, -7, -(1 << 63)])
@pytest.mark.parametrize("most", LIMITS)
def test_numbers_at_the_limits_of_a_width_come_back(least: int, most: int) -> None:
    if least + most < 1 << 63:
        stored_bytes([least, least + most])
        stored_bytes([least + most, least, least + most] * 50)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 300)))
def test_any_numbers_come_back(column: list[int]) -> None:
    stored_bytes(column)


def test_columns_take_as_much_as_their_numbers_differ() -> None:
    assert stored_bytes([1 << 60] * 1000) == stored_bytes([1])
    assert stored_bytes([(1 << 60) + n % 2 for n in range(1000)]) < 50
    noise = np.random.default_rng(3).integers(0, 256, 1000).tolist()
    assert stored_bytes(noise) < 1020
