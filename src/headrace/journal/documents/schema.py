"""Schemas of collections: parses a DDL string or checks an Arrow schema.

The DDL is a subset of Spark's, parsed here because Spark's own parser needs a running session:

    name type [NOT NULL] [COMMENT 'text'], ...       also written  name: type

    boolean, tinyint|byte, smallint|short, int|integer, bigint|long, float|real, double,
    decimal[(p[,s])], string, varchar(n), char(n), binary, date, timestamp (an instant, UTC),
    timestamp_ntz, array<type>, map<type, type>, struct<name: type [NOT NULL] [COMMENT ''], ...>

Keywords are case-insensitive. A name consists of letters, digits and underscores, or of anything in
backquotes (a backquote in it is doubled). In a comment `\\` escapes the next character. varchar and
char are string: nobody enforces their lengths. Elements of arrays and values of maps may always be
null. Comments become the field metadata `comment`.

Headrace reserves names that begin with an underscore for the columns that it adds. Two names must
differ by more than case, because Spark's columns do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
import pyarrow.types as pt

from headrace.errors import DataError, SchemaError

SUPPORTED = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, binary, date, "
    "timestamp, timestamp_ntz, array<...>, map<...>, struct<...>"
)

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
}
_DECIMAL_DIGITS_MAX = 38


def parse_schema(schema: str | pa.Schema) -> pa.Schema:
    """Return the Arrow schema of a collection, from DDL or from an Arrow schema.

    An Arrow type that is another layout of a supported type (large, view, dictionary, fixed-size)
    becomes that type. Raises SchemaError for any other type.
    """
    if isinstance(schema, str):
        fields = _Parser(schema).fields()
    elif isinstance(schema, pa.Schema):
        fields = [_normal_field(field, field.name) for field in schema]
    else:
        raise SchemaError(
            f"the schema is of type {type(schema).__name__}",
            do="give a DDL string or a pyarrow.Schema",
        )
    if not fields:
        raise SchemaError("the schema has no fields", do="name at least one field")
    _check_names([field.name for field in fields], "the schema")
    for field in fields:
        if field.name.startswith("_"):
            raise SchemaError(
                f"field {field.name!r} begins with an underscore, which is reserved",
                do="rename the field",
            )
    return pa.schema(fields)


def to_ddl(schema: pa.Schema) -> str:
    """Return the DDL from which `parse_schema` makes `schema`."""
    return ", ".join(_field_ddl(field, " ") for field in schema)


def check_key(schema: pa.Schema, key_fields: Sequence[str]) -> None:
    """Raise SchemaError unless the fields can be a key.

    Each must be in the schema and named once. Nested values cannot be a key, nor floating point,
    whose values do not all equal themselves.
    """
    if not key_fields:
        raise SchemaError("the key has no fields", do="name at least one field of the schema")
    for name in key_fields:
        if name not in schema.names:
            raise SchemaError(
                f"key field {name!r} is not in the schema",
                do=f"choose among {', '.join(schema.names)}",
            )
        if list(key_fields).count(name) > 1:
            raise SchemaError(f"key field {name!r} is named twice", do="name it once")
        kind = schema.field(name).type
        if pt.is_floating(kind) or pt.is_nested(kind):
            raise SchemaError(
                f"key field {name!r} has type {_type_ddl(kind)}, which cannot be a key",
                do="use an integer, decimal, string, binary, boolean, date or timestamp",
            )


def merge_evolution(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema after `old` evolved to `new`: old fields in their order, then new ones.

    A schema may add nullable fields and drop NOT NULL: then every old document still fits.
    """
    for field in old:
        if field.name not in new.names:
            raise SchemaError(
                f"field {field.name!r} was removed", do="keep it; make a new collection without it"
            )
        after = new.field(field.name)
        if after.type != field.type:
            raise SchemaError(
                f"field {field.name!r} changed from {_type_ddl(field.type)} "
                f"to {_type_ddl(after.type)}",
                do="add a field under a new name instead",
            )
        if field.nullable and not after.nullable:
            raise SchemaError(
                f"field {field.name!r} became NOT NULL, but old documents may have no value",
                do="keep it nullable",
            )
    added = [field for field in new if field.name not in old.names]
    for field in added:
        if not field.nullable:
            raise SchemaError(
                f"new field {field.name!r} is NOT NULL, but old documents have no value",
                do="make it nullable",
            )
    merged = pa.schema([*(new.field(name) for name in old.names), *added])
    _check_names(merged.names, "the schema")
    return merged


def merge_declaration(present: pa.Schema, declared: pa.Schema) -> pa.Schema:
    """Return the schema of a collection after a program declared one.

    A program that is older than a nullable field does not declare it, and the collection keeps it.
    A declaration that leaves out fields may add none: it is more likely that it misspells a name.
    """
    left_out = [field for field in present if field.name not in declared.names]
    added = [name for name in declared.names if name not in present.names]
    if left_out and added:
        raise SchemaError(
            f"field {left_out[0].name!r} is not declared, and {added[0]!r} is new",
            do="declare all fields of the collection when you add another",
        )
    for field in left_out:
        if not field.nullable:
            raise SchemaError(
                f"field {field.name!r} is NOT NULL, and is not declared",
                do="declare it; make a new collection without it",
            )
    return merge_evolution(present, pa.schema([*declared, *left_out]))


def adapt(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of an older version of `schema` with nulls in the fields added since.

    It does not copy the columns that the batch has.
    """
    if batch.schema.equals(schema):
        return batch
    merge_evolution(batch.schema, schema)
    columns = [
        batch[field.name]
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def serialize(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize())


def deserialize(data: bytes) -> pa.Schema:
    """Return the schema that `serialize` encoded."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"a stored schema of {len(data)} bytes is damaged ({error})",
            do="restore the workspace from a copy",
        ) from error


def _check_names(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise SchemaError(f"a field of {where} has no name", do="name it")
        if "\0" in name:
            raise SchemaError(f"{where} has field {name!r}, with a zero byte", do="rename it")
        if name.lower() in seen:
            raise SchemaError(f"{where} has field {name!r} twice", do="rename one; case is ignored")
        seen.add(name.lower())


def _field(name: str, kind: pa.DataType, nullable: bool, comment: str) -> pa.Field:
    return pa.field(name, kind, nullable, {"comment": comment} if comment else None)


def _array(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


def _map(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    return pa.map_(pa.field("key", key, False), pa.field("value", value))


# From Arrow.


def _comment(field: pa.Field) -> str:
    comment: bytes = (field.metadata or {}).get(b"comment", b"")
    return comment.decode()


def _normal_field(field: pa.Field, path: str) -> pa.Field:
    return _field(field.name, _normal(field.type, path), field.nullable, _comment(field))


def _normal(kind: pa.DataType, path: str) -> pa.DataType:
    """Return `kind` in the one layout that documents have; `path` names the field in errors."""
    if kind in _SIMPLE.values():
        return kind
    if pt.is_dictionary(kind):
        return _normal(kind.value_type, path)
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _array(_normal(kind.value_type, f"{path}.element"))
    if pt.is_map(kind):
        return _map(_normal(kind.key_type, f"{path}.key"), _normal(kind.item_type, f"{path}.value"))
    if pt.is_struct(kind) and kind.num_fields:
        _check_names([field.name for field in kind], f"field {path!r}")
        return pa.struct([_normal_field(field, f"{path}.{field.name}") for field in kind])
    raise SchemaError(
        f"field {path!r} has Arrow type {kind}, which a collection cannot hold",
        do=f"cast it to one of {SUPPORTED}; instants are timestamp[us, tz=UTC]",
    )


# To DDL.


def _field_ddl(field: pa.Field, separator: str) -> str:
    plain = re.fullmatch(r"[A-Za-z0-9_]+", field.name)
    name = field.name if plain else "`" + field.name.replace("`", "``") + "`"
    comment = _comment(field).replace("\\", "\\\\").replace("'", "\\'")
    return (
        f"{name}{separator}{_type_ddl(field.type)}"
        + ("" if field.nullable else " NOT NULL")
        + (f" COMMENT '{comment}'" if comment else "")
    )


def _type_ddl(kind: pa.DataType) -> str:
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_map(kind):
        return f"map<{_type_ddl(kind.key_type)}, {_type_ddl(kind.item_type)}>"
    if pt.is_list(kind):
        return f"array<{_type_ddl(kind.value_type)}>"
    if pt.is_struct(kind):
        return f"struct<{', '.join(_field_ddl(field, ': ') for field in kind)}>"
    return next(name for name, simple in _SIMPLE.items() if simple == kind)


# From DDL.

_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[A-Za-z0-9_]+)|`(?P<quoted>(?:[^`]|``)+)`
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<mark>[<>(),:]))""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


class _Parser:
    """Recursive descent over the tokens of one DDL string."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = self._split()
        self._next = 0

    def fields(self) -> list[pa.Field]:
        if self._peek().kind == "end":
            return []
        fields = self._list(self._one_field)
        if self._peek().kind != "end":
            self._fail("a comma or the end")
        return fields

    def _split(self) -> list[_Token]:
        tokens, position, end = [], 0, len(self._ddl.rstrip())
        while position < end:
            match = _TOKEN.match(self._ddl, position, end)
            if match is None or match.lastgroup is None:
                bad = position + len(self._ddl[position:]) - len(self._ddl[position:].lstrip())
                raise SchemaError(
                    f"DDL: cannot read {self._ddl[bad : bad + 12]!r} at position {bad}",
                    do="put unusual names in backquotes and comments in quotes",
                )
            kind = match.lastgroup
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            position = match.end()
        return [*tokens, _Token("end", "the end", end)]

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _fail(self, expected: str) -> NoReturn:
        token = self._peek()
        found = token.text if token.kind == "end" else repr(token.text)
        raise SchemaError(
            f"DDL: expected {expected} at position {token.position}, found {found}",
            do=f"use one of the types {SUPPORTED}",
        )

    def _accept(self, *words: str) -> bool:
        """Take exactly these words or marks if they come next. Returns False if they do not."""
        ahead = self._tokens[self._next : self._next + len(words)]
        found = [t.text.lower() if t.kind in ("word", "mark") else None for t in ahead]
        if found != list(words):
            return False
        self._next += len(words)
        return True

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            self._fail(repr(mark))

    def _list(self, item: Callable[[], pa.Field]) -> list[pa.Field]:
        items = [item()]
        while self._accept(","):
            items.append(item())
        return items

    def _one_field(self) -> pa.Field:
        if self._peek().kind not in ("word", "quoted"):
            self._fail("a field name")
        name = self._take()
        self._accept(":")
        kind = self._type()
        nullable = not self._accept("not", "null")
        comment = self._comment() if self._accept("comment") else ""
        text = name.text.replace("``", "`") if name.kind == "quoted" else name.text
        return _field(text, kind, nullable, comment)

    def _comment(self) -> str:
        if self._peek().kind != "text":
            self._fail("a quoted comment")
        return re.sub(r"\\(.)", r"\1", self._take().text[1:-1], flags=re.DOTALL)

    def _type(self) -> pa.DataType:
        name = self._peek().text.lower() if self._peek().kind == "word" else ""
        simple = _SIMPLE.get(_ALIASES.get(name, name))
        if simple is None and name not in _COMPOUND:
            self._fail("a type")
        self._take()
        return simple if simple is not None else _COMPOUND[name](self)

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number(1, _DECIMAL_DIGITS_MAX)
            scale = self._number(0, precision) if self._accept(",") else 0
            self._expect(")")
        return pa.decimal128(precision, scale)

    def _sized_string(self) -> pa.DataType:
        self._expect("(")
        self._number(1, (1 << 31) - 1)
        self._expect(")")
        return pa.string()

    def _number(self, least: int, most: int) -> int:
        token = self._peek()
        is_number = token.kind == "word" and token.text.isdigit()
        if not is_number or not least <= int(token.text) <= most:
            self._fail(f"a number from {least} to {most}")
        return int(self._take().text)

    def _array(self) -> pa.DataType:
        self._expect("<")
        element = self._type()
        self._expect(">")
        return _array(element)

    def _map(self) -> pa.DataType:
        self._expect("<")
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return _map(key, value)

    def _struct(self) -> pa.DataType:
        start = self._peek().position
        self._expect("<")
        fields = self._list(self._one_field)
        self._expect(">")
        _check_names([field.name for field in fields], f"the struct at position {start}")
        return pa.struct(fields)


_COMPOUND: dict[str, Callable[[_Parser], pa.DataType]] = {
    "decimal": _Parser._decimal,
    "varchar": _Parser._sized_string,
    "char": _Parser._sized_string,
    "array": _Parser._array,
    "map": _Parser._map,
    "struct": _Parser._struct,
}
