"""Numbers are the same in Arrow and in numpy, wherever an array begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.arrow_numbers import arrow_numbers, numpy_numbers

KINDS = (np.int32, np.int64, np.uint32, np.uint64, np.bool_)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_arrow_holds_the_numbers_of_numpy(kind: type, count: int) -> None:
    values: NDArray[Any] = np.random.default_rng(count).integers(0, 2, count).astype(kind)
    array = arrow_numbers(values)
    array.validate(full=True)
    assert array.equals(pa.array(values))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 100), (3, 50), (8, 9), (99, 100), (40, 40)])
def test_numpy_gets_the_numbers_of_a_slice(kind: type, begin: int, end: int) -> None:
    values: NDArray[Any] = np.random.default_rng(7).integers(0, 2, 100).astype(kind)
    found = numpy_numbers(pa.array(values)[begin:end])
    assert found.dtype == values.dtype
    assert found.tolist() == values[begin:end].tolist()


def test_an_array_of_every_second_number_has_those() -> None:
    assert arrow_numbers(np.arange(10)[::2]).to_pylist() == [0, 2, 4, 6, 8]
