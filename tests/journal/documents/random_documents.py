"""Random schemas of every type of the DDL subset, and documents with all their odd values."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.journal.documents.schema import parse_schema

_FLAT = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz"),
)
_LETTERS = [
    *"az09 \"\\/:,{}[]'`\n\t\r\x01\x7f",
    "é",
    "ß",
    "\u2028",
    "\ufeff",
    "水",
    "😀",
    "e\u0301",
]
_TEXTS = [*("", "NaN", "Infinity", '"NaN"', "null", "2024-01-01", "\0", "a\0b", "YQ==", "{}")]
_FLOATS = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.5, 0.1]
_DOUBLES = [5e-324, 1.7976931348623157e308, 2.0**53 + 2, 1e22, 123456789012345680.0, -1e-7]
_FLOAT32S = [1e-45, 3.4028234663852886e38, 16777216.0]
_DAYS = [0, -1, 2_932_896, 2_932_897, -719_162, -719_163, -719_529, 2**31 - 1, -(2**31)]
_INSTANTS = [0, -1, 253_402_300_799_999_999, 253_402_300_800_000_000, -62_135_596_800_000_000,
             -62_135_596_800_000_001, 2**63 - 1, -(2**63)]  # fmt: skip


class Arbitrary:
    """Draws everything from one source of randomness."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def schema(self, columns: int) -> pa.Schema:
        return parse_schema(pa.schema(self._fields(columns, 2)))

    def batch(self, schema: pa.Schema, documents: int) -> pa.RecordBatch:
        columns = [
            pa.array([self._value(field) for _ in range(documents)], field.type) for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _fields(self, count: int, depth: int) -> list[pa.Field]:
        names: dict[str, str] = {}
        while len(names) < count:
            name = self._random.choice("ab水é.`\"\\ '=,:{") + self._text(3).replace("\0", "")
            names.setdefault(name.lower(), name)
        return [
            pa.field(name, self._type(depth), self._random.random() < 0.8)
            for name in names.values()
        ]

    def _type(self, depth: int) -> pa.DataType:
        what = self._random.choice(("flat", "flat", "decimal", "array", "map", "struct"))
        if not depth or what == "flat":
            return parse_schema(f"x {self._random.choice(_FLAT)}").field("x").type
        if what == "decimal":
            precision = self._random.randint(1, 38)
            return pa.decimal128(precision, self._random.randint(0, precision))
        if what == "array":
            return pa.list_(self._type(depth - 1))
        if what == "map":
            return pa.map_(self._type(depth - 1), self._type(depth - 1))
        return pa.struct(self._fields(self._random.randint(1, 3), depth - 1))

    def _value(self, field: pa.Field) -> Any:
        if field.nullable and self._random.random() < 0.15:
            return None
        kind = field.type
        if pt.is_struct(kind):
            return {each.name: self._value(each) for each in kind}
        if pt.is_map(kind):
            return [
                (self._value(kind.key_field), self._value(kind.item_field)) for _ in self._range()
            ]
        if pt.is_list(kind):
            return [self._value(kind.value_field) for _ in self._range()]
        return self._leaf(kind)

    def _leaf(self, kind: pa.DataType) -> Any:
        random = self._random
        if pt.is_boolean(kind):
            return random.random() < 0.5
        if pt.is_integer(kind):
            most = 2 ** (kind.bit_width - 1)
            return random.choice((0, -1, most - 1, -most, random.randrange(-most, most)))
        if pt.is_floating(kind):
            return random.choice(_FLOATS + (_DOUBLES if kind.bit_width == 64 else _FLOAT32S))
        if pt.is_decimal(kind):
            most = 10**kind.precision - 1
            digits = random.choice((0, 1, most, -most, random.randint(-most, most)))
            return Decimal(f"{digits}e-{kind.scale}")
        if pt.is_string(kind):
            return self._text(6)
        if pt.is_binary(kind):
            return random.choice((b"", b"NaN", random.randbytes(random.randint(0, 7))))
        if pt.is_date(kind):
            return random.choice((*_DAYS, random.randrange(-(2**31), 2**31)))
        return random.choice((*_INSTANTS, random.randrange(-(2**63), 2**63)))

    def _text(self, length: int) -> str:
        if self._random.random() < 0.3:
            return self._random.choice(_TEXTS)
        return "".join(self._random.choices(_LETTERS, k=self._random.randint(0, length)))

    def _range(self) -> range:
        return range(self._random.choice((0, 0, 1, 2, 3)))


def exact(value: pa.Table | pa.RecordBatch | pa.Array | pa.Scalar) -> Any:
    """Return a value that equals only exact copies: NaN equals itself, -0.0 is not 0.0."""
    if isinstance(value, pa.Table | pa.RecordBatch):
        return {name: exact(value[name]) for name in value.schema.names}
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return [exact(each) for each in value]
    kind = value.type
    if not value.is_valid:
        return None
    if pt.is_struct(kind):
        return [exact(value[at]) for at in range(kind.num_fields)]
    if pt.is_map(kind) or pt.is_list(kind):
        return exact(value.values)
    if pt.is_temporal(kind):
        return value.value
    return repr(value.as_py())
