"""Metadata of all rows as typed columns that only grow, and views of them for filters. Pure.

The columns are numpy arrays with room at the end. A view shows the rows that there were when it was
made. Rows that come later are written behind it, so views stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryError
from headrace.stores.vectors.filters import FilterColumn, Mask, Value

_FIRST_ROWS = 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def grown(values: npt.NDArray[Any], used: int, needed: int) -> npt.NDArray[Any]:
    """Return an array with room for `needed` rows, of which the first `used` are those given."""
    if needed <= len(values):
        return values
    room = max(needed, 2 * len(values), _FIRST_ROWS)
    larger = np.empty((room, *values.shape[1:]), values.dtype)
    larger[:used] = values[:used]
    return larger


class MetadataColumn:
    """The values of one field. One thread appends; others hold views."""

    def __init__(self, field: pa.Field) -> None:
        self.field = field
        self._is_text = pa.types.is_string(field.type)
        self._codes: dict[str, int] = {}
        self._texts: list[str] = []
        kinds = {"int64": np.int64, "double": np.float64, "bool": np.bool_, "string": np.int32}
        self._values: npt.NDArray[Any] = np.empty(0, kinds.get(str(field.type), np.int64))
        self._missing = np.empty(0, np.bool_)

    def append(self, start: int, column: pa.Array) -> None:
        """Write the values of the rows from `start` on."""
        end = start + len(column)
        self._values = grown(self._values, start, end)
        self._missing = grown(self._missing, start, end)
        self._missing[start:end] = column.is_null().to_numpy(zero_copy_only=False)
        self._values[start:end] = self._numbers(column)

    def _numbers(self, column: pa.Array) -> npt.NDArray[Any]:
        if self._is_text:
            return self._coded(column)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
        numbers: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False)
        return numbers

    def _coded(self, column: pa.Array) -> npt.NDArray[np.int32]:
        encoded = pc.dictionary_encode(column)
        codes = np.empty(len(encoded.dictionary) + 1, np.int32)
        codes[-1] = 0
        for place, text in enumerate(encoded.dictionary.to_pylist()):
            code = self._codes.get(text)
            if code is None:
                # A reader may be walking over the texts: they only ever get longer.
                code = self._codes[text] = len(self._texts)
                self._texts.append(text)
            codes[place] = code
        places = encoded.indices.fill_null(len(codes) - 1).to_numpy(zero_copy_only=False)
        coded: npt.NDArray[np.int32] = codes[places]
        return coded

    def view(self, rows: int) -> ColumnView:
        kind = _TextView if self._is_text else ColumnView
        missing = self._missing[:rows]
        return kind(self.field, self._values[:rows], missing, self._codes, self._texts)

    @property
    def nbytes(self) -> int:
        texts = 120 * len(self._texts) + sum(map(len, self._texts[:1000]))
        return int(self._values.nbytes + self._missing.nbytes + texts)


@dataclass(frozen=True)
class ColumnView:
    """A column as of one moment."""

    field: pa.Field
    values: npt.NDArray[Any]
    missing: Mask
    codes: dict[str, int]
    texts: list[str]

    def take(self, rows: npt.NDArray[np.int64]) -> pa.Array:
        """Return the values of some rows as they were given."""
        return pa.array(self.values[rows], mask=self.missing[rows]).cast(self.field.type)

    def check(self, value: Value) -> None:
        kind = self.field.type
        if pa.types.is_boolean(kind):
            fits = isinstance(value, bool)
        elif pa.types.is_timestamp(kind):
            fits = isinstance(value, str)
        else:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or value != value:
            self._refuse(value)
        self._comparable(value)

    def _refuse(self, value: Value) -> NoReturn:
        raise QueryError(
            f"the field {self.field.name!r} of type {self.field.type} is compared with {value!r}",
            do="compare it with a value of its type; a time is a string like 2030-01-31T12:00:00Z",
        )

    def _comparable(self, value: Value) -> Any:
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                self._refuse(value)
            since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
            return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        if self.values.dtype == np.float64:
            try:
                return float(value or 0)
            except OverflowError:
                self._refuse(value)
        # numpy would compare integers beyond 2^53 with a float as floats.
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def equal(self, values: Sequence[Value]) -> Mask:
        found = np.zeros(len(self.values), np.bool_)
        wanted = [self._comparable(value) for value in values]
        if len(wanted) > 8:
            return self._among(wanted)
        for value in wanted:
            found |= self.values == value
        return found

    def _among(self, wanted: list[Any]) -> Mask:
        if self.values.dtype == np.int64:
            wanted = [v for v in wanted if isinstance(v, int) and -(2**63) <= v < 2**63]
        return np.isin(self.values, np.array(wanted, self.values.dtype))

    def compare(self, value: Value, holds: Callable[[Any, Any], Any]) -> Mask:
        bound = self._comparable(value)
        if self.values.dtype == np.int64 and isinstance(bound, float):
            if math.isinf(bound):
                return np.full(len(self.values), holds(0.0, bound))
            # Integers lie on either side of a number between two of them.
            below = np.asarray(self.values <= math.floor(bound))
            return below if holds(0, 1) else ~below
        found: Mask = holds(self.values, bound)
        return found


class _TextView(ColumnView):
    """A column of strings: numbers that stand for the distinct texts."""

    def take(self, rows: npt.NDArray[np.int64]) -> pa.Array:
        texts = self.texts
        found = [
            None if missing else texts[code]
            for code, missing in zip(
                self.values[rows].tolist(), self.missing[rows].tolist(), strict=True
            )
        ]
        return pa.array(found, pa.string())

    def check(self, value: Value) -> None:
        if not isinstance(value, str):
            self._refuse(value)

    def equal(self, values: Sequence[Value]) -> Mask:
        known = [self.codes[text] for text in values if text in self.codes]
        if len(known) == 1:
            return np.asarray(self.values == known[0])
        return np.isin(self.values, np.array(known, np.int32))

    def compare(self, value: Value, holds: Callable[[Any, Any], Any]) -> Mask:
        count = len(self.texts)
        if not count:
            return np.zeros(len(self.values), np.bool_)
        fits = np.fromiter((holds(text, value) for text in self.texts[:count]), np.bool_, count)
        found: Mask = fits[self.values]
        return found


@dataclass(frozen=True, slots=True)
class MetadataView:
    """All metadata columns as of one moment."""

    row_count: int
    columns: dict[str, ColumnView]

    def column(self, field: str) -> FilterColumn:
        if field not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise QueryError(
                f"the store has no metadata column {field!r}", do=f"its columns are: {known}"
            )
        return self.columns[field]
