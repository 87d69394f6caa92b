"""Sums of integers and decimals that are exact, however the rows are divided among tasks. Pure.

A partial sum has 19 digits more than what it sums, so that no number of rows makes it too large.
Only the final sum must fit into its type:

    summed                          partial sum                 sum
    int8 to int64, uint8 to uint32  decimal128(38, 0)           int64
    uint64                          decimal256(39, 0)           uint64
    decimal128(p, s) and narrower   decimal256(57, s)           decimal128(38, s)
    decimal256(p, s), p up to 57    decimal256(76, s)           decimal256(76, s)

Arrow's own sums of integers are 64 bits wide and wrap around; they serve where no sum can be that
large.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.errors import UsageError

SUMMED_DIGITS_MAX = 57
_ROWS_DIGITS = 19
_DIGITS_128 = 38
_PART_OF_UINT64 = pa.decimal256(39, 0)


def part_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the partial sums of numbers of a type."""
    if kind == pa.uint64():
        return _PART_OF_UINT64
    if pt.is_integer(kind):
        return pa.decimal128(_DIGITS_128, 0)
    if pt.is_decimal(kind):
        digits = SUMMED_DIGITS_MAX if pt.is_decimal256(kind) else _DIGITS_128
        return pa.decimal256(digits + _ROWS_DIGITS, kind.scale)
    return kind if pt.is_null(kind) else pa.float64()


def without_overflow(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the numbers in a type whose sums, as Arrow computes them, are exact."""
    kind = values.type
    if pt.is_integer(kind):
        return values if _is_sum_of_64_bits(values) else values.cast(part_type(kind))
    if pt.is_decimal(kind) and not pt.is_decimal256(kind):
        if kind.precision + len(str(len(values))) > _DIGITS_128:
            return values.cast(part_type(kind))
        return values.cast(pa.decimal128(kind.precision, kind.scale))
    return values


def _is_sum_of_64_bits(values: pa.ChunkedArray) -> bool:
    """True if no sum of any of the integers can be 2 ** 63 or more away from 0."""
    least, most = pc.min_max(values).values()
    if not most.is_valid:
        return True
    largest: int = max(abs(least.as_py()), abs(most.as_py()))
    return largest * len(values) < 2**63


def final_sum(what: object, sums: pa.ChunkedArray, part: pa.DataType) -> pa.ChunkedArray:
    """Return sums of partial sums of the type `part` in the type of a result.

    Raises UsageError, which names the aggregate `what`, if one does not fit.
    """
    if not pt.is_decimal(part):
        return sums
    kind = _result_type(part)
    try:
        return sums.cast(kind)
    except pa.ArrowInvalid as error:
        room = "64 bits" if pt.is_integer(kind) else f"{kind.precision} digits"
        raise UsageError(
            f"{what}: a sum does not fit into {room}",
            do="turn the column into a decimal or a float in a map before",
        ) from error


def _result_type(part: pa.DataType) -> pa.DataType:
    if part == _PART_OF_UINT64:
        return pa.uint64()
    if pt.is_decimal128(part):
        return pa.int64()
    if part.precision <= _DIGITS_128 + _ROWS_DIGITS:
        return pa.decimal128(_DIGITS_128, part.scale)
    return pa.decimal256(SUMMED_DIGITS_MAX + _ROWS_DIGITS, part.scale)
