"""Newline-delimited JSON, parsed by Arrow; by line only to say what is wrong with which."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as pt

from headrace.errors import DocumentError
from headrace.journal.fit import (
    Shape,
    first_failing,
    misfit,
    rebuilt,
    too_large,
    unknown_field,
    wide_float,
)

_BLOCK_BYTES = 1 << 20


def _leaf(kind: pa.DataType) -> pa.DataType:
    """What a leaf is parsed as, for a checked cast to do the rest."""
    return pa.string() if pt.is_temporal(kind) else wide_float(kind)


def _contains_map(kind: pa.DataType) -> bool:
    if pt.is_struct(kind):
        return any(_contains_map(field.type) for field in kind)
    return pt.is_map(kind) or (pt.is_list(kind) and _contains_map(kind.value_type))


class Lines:
    """The lines of NDJSON that are not blank, and their documents in types that are still wider:
    see `_leaf`."""

    def __init__(self, data: bytes | memoryview, shape: Shape) -> None:
        for field in shape.schema:
            if _contains_map(field.type):
                raise DocumentError(
                    f"field {field.name!r} is a map, which NDJSON cannot fill", do="append dicts"
                )
        self._data = pa.py_buffer(data)
        self._shape = shape
        self._schema = pa.schema([(f.name, rebuilt(f.type, _leaf)) for f in shape.schema])
        text = np.frombuffer(self._data, np.uint8)
        ends = np.flatnonzero(text == ord("\n")) + 1
        starts = np.r_[0, ends]
        starts = starts[starts < len(text)]
        ends = np.r_[ends, len(text)][: len(starts)]
        filled = text[starts] == ord("{")
        if not filled.all():
            filled = np.logical_or.reduceat(~np.isin(text, list(b" \t\r\n")), starts)
        self._numbers = np.flatnonzero(filled) + 1
        self._starts, self._ends = starts[filled], ends[filled]
        self._check_lengths()
        self._check_utf8()

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, index: int) -> str:
        return f"line {self._numbers[index]}"

    def parse_all(self) -> pa.Table:
        if not len(self):
            return self._schema.empty_table()
        try:
            return self._parse(0, len(self))
        except (pa.ArrowException, UnicodeError):
            bad = first_failing(len(self), self._fails)
            raise self._diagnosis(bad) from None

    def _parse(self, low: int, high: int) -> pa.Table:
        """The documents of the lines from `low` up to `high`."""
        start, end = int(self._starts[low]), int(self._ends[high - 1])
        table = self._read(self._data.slice(start, end - start), self._schema)
        if table.num_rows != high - low:
            raise pa.ArrowInvalid("not one object a line")
        return table

    def _fails(self, low: int, high: int) -> bool:
        return self._failure(self._parse, low, high) is not None

    def _diagnosis(self, index: int) -> DocumentError:
        """Why the line cannot be taken."""
        where = self.name(index)
        text = self._data[int(self._starts[index]) : int(self._ends[index])].to_pybytes()
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            why = f"{error.msg} at column {error.colno}"
            return DocumentError(f"{where} is not JSON: {why}", do="give one object a line")
        except (ValueError, RecursionError) as error:
            return DocumentError(f"{where} is not JSON: {error}", do="give one object a line")
        if not isinstance(found, dict):
            return DocumentError(f"{where} is {text.strip()[:40]!r}", do="give one object a line")
        for name in found:
            if name not in self._schema.names:
                return unknown_field(name, where, self._shape)
        for name, value in found.items():
            alone = json.dumps({name: value}).encode()
            schema = pa.schema([self._schema.field(name)])
            if self._failure(self._read, pa.py_buffer(alone), schema):
                return misfit(where, name, json.dumps(value), self._shape.schema.field(name).type)
        failure = str(self._failure(self._parse, index, index + 1))
        why = re.sub(r"^JSON parse error: | in row \d+$", "", failure)
        return DocumentError(f"{where} cannot be read: {why}", do="give one object a line")

    @staticmethod
    def _failure(parse: Callable[..., pa.Table], *arguments: Any) -> Exception | None:
        try:
            parse(*arguments)
        except (pa.ArrowException, UnicodeError) as error:
            return error
        return None

    def _read(self, data: pa.Buffer, schema: pa.Schema) -> pa.Table:
        return pj.read_json(
            pa.BufferReader(data),
            # A line must fit in a block.
            read_options=pj.ReadOptions(block_size=max(_BLOCK_BYTES, self._longest + 1)),
            parse_options=pj.ParseOptions(
                explicit_schema=schema,
                newlines_in_values=False,
                unexpected_field_behavior="error",
            ),
        )

    def _check_lengths(self) -> None:
        lengths = self._ends - self._starts
        self._longest = int(lengths.max(initial=0))
        if self._longest > self._shape.document_bytes_max:
            longest = int(np.argmax(lengths))
            raise too_large(self.name(longest), self._longest, self._shape)

    def _check_utf8(self) -> None:
        """Arrow's parser does not look at the encoding; its check of a string array does."""
        offsets = pa.py_buffer(np.array([0, self._data.size], np.int64))
        whole = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, self._data])
        try:
            whole.validate(full=True)
        except pa.ArrowInvalid:
            index = first_failing(len(self), self._is_not_utf8)
            raise DocumentError(f"{self.name(index)} is not UTF-8", do="encode it so") from None

    def _is_not_utf8(self, low: int, high: int) -> bool:
        start, end = int(self._starts[low]), int(self._ends[high - 1])
        try:
            str(self._data[start:end], "utf-8")
        except UnicodeDecodeError:
            return True
        return False
