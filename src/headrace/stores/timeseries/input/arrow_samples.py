"""Samples as rows of Arrow record batches. Pure.

Column `timestamp` is the time, with a time zone or as whole milliseconds since 1970, `value` any
number, `labels` a map of strings. Every other column holds strings, and is a label of that name; a
null there means that the row does not have the label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DocumentError
from headrace.stores.timeseries.labels import decode_labels, encode_labels, make_labels
from headrace.stores.timeseries.sample_batch import SampleBatch
from headrace.stores.timeseries.series import Labels, SelectedSeries

TIME, VALUE, LABELS = "timestamp", "value", "labels"
SCHEMA = pa.schema(
    [
        pa.field(TIME, pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field(VALUE, pa.float64(), nullable=False),
        pa.field(LABELS, pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)

Codes = npt.NDArray[np.int64]
_CODES_MAX = 1 << 62
_RANDOM_SEED = 7


class KnownLabels:
    """Labels that were read before, as bytes. Any thread may use it.

    Most writers write the same series again and again, and to check labels takes long.
    """

    def __init__(self, series_max: int = 0) -> None:
        self._series_max = series_max
        self._known: dict[tuple[object, ...], bytes] = {}

    def encode(self, columns: Sequence[tuple[str, pa.Array]], rows: Codes) -> list[bytes]:
        """Return the labels of some rows. Raises DocumentError, which names the row, if one is bad.

        `columns` are the labels of all rows.
        """
        if not len(rows):
            return []
        taken = [column.take(pa.array(rows)).to_pylist() for _, column in columns]
        names = tuple(name for name, _ in columns)
        series = []
        for row, values in zip(
            rows, zip(*taken, strict=True) if taken else [()] * len(rows), strict=True
        ):
            key = (names, *(tuple(each) if isinstance(each, list) else each for each in values))
            encoded = self._known.get(key)
            if encoded is None:
                labels = make_labels(_pairs(names, values), where=f"row {row}")
                encoded = encode_labels(labels)
                if len(self._known) >= self._series_max:
                    self._known = {}
                if self._series_max:
                    self._known[key] = encoded
            series.append(encoded)
        return series


def read_rows(rows: pa.RecordBatch, known: KnownLabels | None = None) -> SampleBatch:
    """Return the samples of the rows. Raises DocumentError, which names the row that is wrong."""
    names = rows.schema.names
    for name in (TIME, VALUE):
        if names.count(name) != 1:
            raise DocumentError(
                f"the rows have {names.count(name)} columns {name!r}",
                do=f"name the columns {TIME}, {VALUE}, and {LABELS} or one for each label",
            )
    timestamps = read_times(rows.column(names.index(TIME)))
    values = _values(rows.column(names.index(VALUE)))
    codes = np.zeros(len(timestamps), dtype=np.int64)
    columns = []
    for name, column in zip(names, rows.columns, strict=True):
        if name in (TIME, VALUE):
            continue
        columns.append((name, column))
        found = _map_codes(column) if name == LABELS else _string_codes(name, column)
        codes = _combine(codes, found)
    codes, firsts = _number(codes)
    series = (known or KnownLabels()).encode(columns, firsts)
    return SampleBatch(series, codes, timestamps, values)


def batch_rows(samples: SampleBatch) -> pa.RecordBatch:
    """Return samples as rows of `SCHEMA`, which `read_rows` reads as the same samples."""
    labels = [list(decode_labels(each)) for each in samples.series]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(samples.timestamps).cast(SCHEMA.field(TIME).type),
            pa.array(samples.values),
            pa.array(labels, SCHEMA.field(LABELS).type).take(pa.array(samples.codes)),
        ],
        schema=SCHEMA,
    )


def write_rows(samples: SelectedSeries, labels: Sequence[Labels] | None = None) -> pa.RecordBatch:
    """Return samples as rows of `SCHEMA`."""
    names = samples.labels if labels is None else labels
    counts = np.diff(samples.offsets)
    of_series = pa.array([list(each) for each in names], SCHEMA.field(LABELS).type)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(samples.timestamps).cast(SCHEMA.field(TIME).type),
            pa.array(samples.values),
            of_series.take(pa.array(np.repeat(np.arange(len(counts)), counts))),
        ],
        schema=SCHEMA,
    )


def read_times(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return times as milliseconds; parts of a millisecond are cut off, towards the past."""
    _check_no_null(TIME, column)
    kind = column.type
    if pa.types.is_integer(kind):
        times = _cast(TIME, column, pa.int64())
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        if kind.unit in ("us", "ns"):
            per_ms = 1_000 if kind.unit == "us" else 1_000_000
            ticks = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
            return np.asarray(ticks // per_ms, dtype=np.int64)
        times = _cast(TIME, column, pa.timestamp("ms", tz=kind.tz)).cast(pa.int64())
    else:
        raise DocumentError(
            f"column {TIME!r} has the type {kind}",
            do="give timestamps with a time zone, or milliseconds since 1970 as integers",
        )
    return np.asarray(times.to_numpy(zero_copy_only=False), dtype=np.int64)


def _values(column: pa.Array) -> npt.NDArray[np.float64]:
    _check_no_null(VALUE, column)
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise DocumentError(f"column {VALUE!r} has the type {kind}", do="give numbers")
    cast = _cast(VALUE, column, pa.float64())
    return np.asarray(cast.to_numpy(zero_copy_only=False), dtype=np.float64)


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise DocumentError(
            f"column {name!r}: {error}", do=f"give values that fit {kind}"
        ) from error


def _check_no_null(name: str, column: pa.Array) -> None:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise DocumentError(f"row {row} has no {name}", do="leave the row out")


def _string_codes(name: str, column: pa.Array) -> Codes:
    """Return a number for each row, the same for the same string."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.int64)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()):
        raise DocumentError(
            f"column {name!r} has the type {column.type}",
            do=f"labels are strings: cast the column, or name the number {VALUE!r}",
        )
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = column.indices.fill_null(-1).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.asarray(codes + 1, dtype=np.int64)


def _map_codes(column: pa.Array) -> Codes:
    """Return a number for each row, the same for the same labels in any order."""
    kind = column.type
    if not (
        pa.types.is_map(kind)
        and pa.types.is_string(kind.key_type)
        and pa.types.is_string(kind.item_type)
    ):
        raise DocumentError(
            f"column {LABELS!r} has the type {kind}", do="give a map from strings to strings"
        )
    _check_no_null(LABELS, column)
    offsets = column.offsets.to_numpy().astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    offsets = offsets - begin
    names = column.keys.slice(begin, end - begin).dictionary_encode()
    items = column.items.slice(begin, end - begin).dictionary_encode()
    of_name = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    of_item = items.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    pairs = of_name * (len(items.dictionary) + 1) + of_item
    random = np.random.default_rng(_RANDOM_SEED)
    weights = random.integers(1, 1 << 63, len(names.dictionary) + 1, dtype=np.uint64)
    factors = random.integers(1, 1 << 63, len(items.dictionary) + 1, dtype=np.uint64)
    sums = np.append(np.uint64(0), np.cumsum(weights[of_name] * factors[of_item], dtype=np.uint64))
    hashes = sums[offsets[1:]] - sums[offsets[:-1]]
    codes, firsts = _number(hashes.view(np.int64))
    return codes if _are_equal(pairs, offsets, firsts[codes]) else _slow_codes(pairs, offsets)


def _are_equal(pairs: Codes, offsets: Codes, others: Codes) -> bool:
    """Return True if each row has the same labels, in the same order, as the other row."""
    counts = np.diff(offsets)
    if not np.array_equal(counts, counts[others]):
        return False
    shifts = np.repeat(offsets[:-1][others] - offsets[:-1], counts)
    return bool(np.array_equal(pairs, pairs[np.arange(len(pairs)) + shifts]))


def _slow_codes(pairs: Codes, offsets: Codes) -> Codes:
    """Do the same without hashes, where labels stand in different orders."""
    known: dict[tuple[int, ...], int] = {}
    found = pairs.tolist()
    ends = offsets.tolist()
    rows = (tuple(sorted(found[a:b])) for a, b in pairwise(ends))
    return np.array([known.setdefault(row, len(known)) for row in rows], dtype=np.int64)


def _combine(codes: Codes, others: Codes) -> Codes:
    """Return numbers that are the same only where both are the same."""
    if not len(codes):
        return codes
    size = int(others.max()) + 1
    if (int(codes.max()) + 1) * size > _CODES_MAX:
        codes, _ = _number(codes)
        others, firsts = _number(others)
        size = len(firsts)
    return codes * size + others


def _number(codes: Codes) -> tuple[Codes, Codes]:
    """Number the different codes from 0 on; return the numbers, and the first row of each."""
    encoded = pa.array(codes).dictionary_encode()
    numbers = encoded.indices.to_numpy().astype(np.int64)
    # Numbers ascend as they first appear: a new one is above all before it.
    highest = np.maximum.accumulate(numbers) if len(numbers) else numbers
    return numbers, np.flatnonzero(np.diff(highest, prepend=-1))


def _pairs(names: Sequence[str], values: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for name, value in zip(names, values, strict=True):
        if name == LABELS:
            yield from ((key, item) for key, item in value if item is not None)
        elif value is not None:
            yield name, value
