"""Numbers as Arrow arrays and as numpy arrays, without pandas. Pure.

`pa.array` and `to_numpy` import pandas. That takes a third of a second of processor time, in every
process of a shuffle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def arrow_numbers(values: NDArray[Any]) -> pa.Array:
    """Return integers or booleans as an array. It shares their memory unless it is booleans."""
    if values.dtype == np.bool_:
        kind, stored = pa.bool_(), np.packbits(values, bitorder="little")
    else:
        kind, stored = pa.from_numpy_dtype(values.dtype), np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(stored)])


def numpy_numbers(array: pa.Array) -> NDArray[Any]:
    """Return the integers or booleans of an array without nulls. Integers share its memory."""
    begin, end = array.offset, array.offset + len(array)
    stored = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(stored, np.uint8, -(-end // 8)) if end else np.zeros(0, np.uint8)
        return np.unpackbits(bits, count=end, bitorder="little")[begin:].view(np.bool_)
    kind = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(stored, kind, end)[begin:] if end else np.zeros(0, kind)
