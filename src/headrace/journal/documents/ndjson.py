"""Parses newline-delimited JSON.

Arrow parses the lines, and `text_values` parses what Arrow leaves as text, a column at a time.
Python parses the lines that Arrow's parser cannot take: those with a number that is not finite,
those with a map as an object, and wrong ones, to name the line and its mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as pt

from headrace.errors import DocumentError
from headrace.journal.documents.columns import JsonNumber, to_columns
from headrace.journal.documents.text_values import FAILURES, WORDS, parse_text
from headrace.journal.documents.validation import (
    DocumentSpec,
    first_failing,
    too_large,
    unchecked_type,
    widen_float,
)

LINE_BYTES_PER_DOCUMENT_BYTE = 8
"""A line may be this much longer than the largest document: base64, escapes and names take room."""

_BLANKS = list(b" \t\r\n")
_BLOCK_BYTES = 1 << 20
_BLOCK_BYTES_MAX = (1 << 31) - 1
_WORDS = re.compile(b"|".join(f'"{word}"'.encode() for word in WORDS))


def line_bytes_max(document_bytes_max: int) -> int:
    """Return the length above which a line is refused before it is parsed."""
    return min(document_bytes_max * LINE_BYTES_PER_DOCUMENT_BYTE, _BLOCK_BYTES_MAX - 1)


def _leaf(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow parses a leaf."""
    return pa.string() if pt.is_temporal(kind) or pt.is_binary(kind) else widen_float(kind)


def _has_floats(kind: pa.DataType) -> bool:
    children = (kind.field(index).type for index in range(kind.num_fields))
    return bool(pt.is_floating(kind)) or any(map(_has_floats, children))


class NdjsonLines:
    """The lines of NDJSON that are not blank."""

    def __init__(self, data: bytes | memoryview, spec: DocumentSpec) -> None:
        self._data = pa.py_buffer(data)
        self._spec = spec
        self._schema = pa.schema([(f.name, unchecked_type(f.type, _leaf)) for f in spec.schema])
        text = np.frombuffer(self._data, np.uint8)
        ends = np.flatnonzero(text == ord("\n")) + 1
        starts = np.r_[0, ends]
        starts = starts[starts < len(text)]
        ends = np.r_[ends, len(text)][: len(starts)]
        filled = text[starts] == ord("{")
        if not filled.all():
            filled = np.logical_or.reduceat(~np.isin(text, _BLANKS), starts)
        self._numbers = np.flatnonzero(filled) + 1
        self._starts, self._ends = starts[filled], ends[filled]
        self._check_lengths()
        self._check_utf8()
        self._check_objects(text)

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, index: int) -> str:
        return f"line {self._numbers[index]}"

    def columns(self) -> list[pa.Array]:
        """Return the columns of the documents, in the loose layout."""
        if not len(self):
            return [
                pa.nulls(0, unchecked_type(field.type, widen_float)) for field in self._spec.schema
            ]
        aside = self._with_words()
        try:
            return self._combine(self._parse(aside), aside)
        except FAILURES:
            return self._decode(range(len(self)))

    def _with_words(self) -> list[int]:
        """Return the lines that may have NaN or an infinity, which Arrow's parser cannot take."""
        if not any(_has_floats(field.type) for field in self._spec.schema):
            return []
        found = [match.start() for match in _WORDS.finditer(self._data)]
        lines: list[int] = np.unique(np.searchsorted(self._starts, found, "right") - 1).tolist()
        return lines

    def _parse(self, aside: Sequence[int]) -> list[pa.Array]:
        """Let Arrow parse every line, with empty objects for the lines in `aside`."""
        start, end = int(self._starts[0]), int(self._ends[-1])
        data = self._data.slice(start, end - start)
        if aside:
            text = np.frombuffer(data, np.uint8).copy()
            for line in aside:
                low, high = int(self._starts[line]) - start, int(self._ends[line]) - start
                text[low : high - 1] = ord(" ")
                text[low : low + 2] = list(b"{}")
                if text[high - 1] != ord("\n"):
                    text[high - 1] = ord(" ")
            data = pa.py_buffer(text)
        table = self._read(data)
        if table.num_rows != len(self):
            raise pa.ArrowInvalid("not one object a line")
        return [
            _from_leaves(_whole(column), field.type)
            for column, field in zip(table.columns, self._spec.schema, strict=True)
        ]

    def _combine(self, parsed: list[pa.Array], aside: list[int]) -> list[pa.Array]:
        if not aside:
            return parsed
        order = np.arange(len(self))
        order[aside] = len(self) + np.arange(len(aside))
        decoded = self._decode(aside)
        return [
            pa.concat_arrays([first, second.cast(first.type)]).take(pa.array(order))
            for first, second in zip(parsed, decoded, strict=True)
        ]

    def _decode(self, lines: Iterable[int]) -> list[pa.Array]:
        """Let Python parse these lines."""
        chosen = list(lines)
        documents = [self._object(line) for line in chosen]
        return to_columns(documents, self._spec, lambda row: self.name(chosen[row]), _as_json)

    def _object(self, index: int) -> dict[str, Any]:
        where = self.name(index)
        text = self._data[int(self._starts[index]) : int(self._ends[index])].to_pybytes()
        try:
            found = json.loads(
                text,
                parse_int=JsonNumber,
                parse_float=JsonNumber,
                parse_constant=JsonNumber,
                object_pairs_hook=_unique,
            )
        except _TwiceError as error:
            raise DocumentError(f"{where} has {error} twice", do="drop one of them") from None
        except json.JSONDecodeError as error:
            why = f"{error.msg} at column {error.colno}"
            raise DocumentError(
                f"{where} is not JSON: {why}", do="give one object a line"
            ) from None
        except (ValueError, RecursionError) as error:
            raise DocumentError(
                f"{where} is not JSON: {error}", do="give one object a line"
            ) from None
        if not isinstance(found, dict):
            shown = text.strip()[:40]
            raise DocumentError(f"{where} is {shown!r}", do="give one object a line")
        return found

    def _read(self, data: pa.Buffer) -> pa.Table:
        return pj.read_json(
            pa.BufferReader(data),
            # A line must fit in a block.
            read_options=pj.ReadOptions(block_size=max(_BLOCK_BYTES, self._longest + 1)),
            parse_options=pj.ParseOptions(
                explicit_schema=self._schema,
                newlines_in_values=False,
                unexpected_field_behavior="error",
            ),
        )

    def _check_lengths(self) -> None:
        lengths = self._ends - self._starts
        self._longest = int(lengths.max(initial=0))
        if self._longest > line_bytes_max(self._spec.document_bytes_max):
            longest = int(np.argmax(lengths))
            raise too_large(self.name(longest), self._longest, self._spec)

    def _check_utf8(self) -> None:
        """Check the encoding by way of a string array: Arrow's parser ignores it."""
        offsets = pa.py_buffer(np.array([0, self._data.size], np.int64))
        whole = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, self._data])
        try:
            whole.validate(full=True)
        except pa.ArrowInvalid:
            index = first_failing(len(self), self._is_not_utf8)
            raise DocumentError(
                f"{self.name(index)} is not UTF-8", do="encode it as UTF-8"
            ) from None

    def _check_objects(self, text: npt.NDArray[np.uint8]) -> None:
        """Check that every line is an object: Arrow's parser takes `null` for an empty one."""
        if (text[self._starts] == ord("{")).all():
            return
        filled = np.flatnonzero(~np.isin(text, _BLANKS))
        first = filled[np.searchsorted(filled, self._starts)]
        wrong = np.flatnonzero(text[first] != ord("{"))
        # An earlier line may be wrong too, and the error must name the first.
        for line in range(int(wrong[0]) + 1 if len(wrong) else 0):
            self._object(line)

    def _is_not_utf8(self, low: int, high: int) -> bool:
        start, end = int(self._starts[low]), int(self._ends[high - 1])
        try:
            str(self._data[start:end], "utf-8")
        except UnicodeDecodeError:
            return True
        return False


class _TwiceError(ValueError):
    """A name occurs twice in an object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(f"field {next(n for n in names if names.count(n) > 1)!r}")
    return found


def _as_json(value: Any) -> str:
    match value:
        case JsonNumber():
            return value.text
        case dict():
            members = (f"{json.dumps(name)}: {_as_json(each)}" for name, each in value.items())
            return f"{{{', '.join(members)}}}"
        case list():
            return f"[{', '.join(map(_as_json, value))}]"
    return json.dumps(value)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _from_leaves(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array with those leaves parsed that are still text."""
    if pt.is_struct(kind):
        children = [_from_leaves(array.field(i), each.type) for i, each in enumerate(kind)]
        fields = [pa.field(f.name, c.type) for f, c in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pt.is_list(kind):
        below = _from_leaves(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, below, mask=array.is_null())
    if pt.is_map(kind):
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _from_leaves(array, pa.list_(entry))
    return parse_text(array, kind) if _leaf(kind) != widen_float(kind) else array
