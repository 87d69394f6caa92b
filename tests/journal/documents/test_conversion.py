"""Every form of input becomes a batch; tables list the errors of bad input."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DocumentError
from headrace.journal.documents.conversion import from_arrow, from_dicts, from_ndjson
from headrace.journal.documents.schema import parse_schema
from headrace.journal.documents.validation import DocumentSpec


def shape(ddl: str, *key: str, document_bytes_max: int = 1 << 20) -> DocumentSpec:
    return DocumentSpec(parse_schema(ddl), key, document_bytes_max)


ALL = shape(
    "id bigint, name string not null, small tinyint, price decimal(10,2), ratio float, "
    "wide double, ok boolean, day date, at timestamp, local timestamp_ntz, raw binary, "
    "tags array<string>, days array<date>, place struct<x: int not null, y: float>",
    "id",
)
FULL: dict[str, Any] = {
    "id": 1,
    "name": "é",
    "small": -128,
    "price": Decimal("12.50"),
    "ratio": 0.5,
    "wide": 1e300,
    "ok": True,
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC),
    "local": datetime(2024, 2, 29, 12, 30),
    "raw": b"ab",
    "tags": ["x", None],
    "days": [date(2024, 2, 29)],
    "place": {"x": 1, "y": 0.25},
}
LEAST: dict[str, Any] = {"id": 2, "name": ""}
BLANK: dict[str, Any] = dict.fromkeys(FULL) | LEAST


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, default=_as_json, ensure_ascii=False).encode() + b"\n"


def _as_json(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value) if isinstance(value, Decimal) else str(value.isoformat())


def test_every_form_gives_the_same_batch_of_exactly_the_schema() -> None:
    dicts = from_dicts([FULL, LEAST], ALL)
    dicts.validate(full=True)
    assert dicts.schema == ALL.schema
    assert dicts.to_pylist() == [FULL, BLANK]
    assert from_ndjson(_line(FULL) + _line(LEAST), ALL).equals(dicts)
    assert from_ndjson(memoryview(_line(FULL) + _line(LEAST)), ALL).equals(dicts)
    assert from_arrow(dicts, ALL).equals(dicts)
    assert from_arrow(pa.Table.from_batches([dicts[:1], dicts[1:]]), ALL).equals(dicts)


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.text(), st.booleans())))
def test_ndjson_and_dicts_agree(rows: list[tuple[int, str, bool]]) -> None:
    documents = [dict(zip(("id", "name", "ok"), row, strict=True)) for row in rows]
    batch = from_dicts(documents, ALL)
    assert from_ndjson(b"".join(map(_line, documents)), ALL).equals(batch)
    assert batch.select(["id", "name", "ok"]).to_pylist() == documents


def test_no_documents_are_an_empty_batch() -> None:
    empty = from_dicts([], ALL)
    assert (empty.num_rows, empty.schema) == (0, ALL.schema)
    for data in (b"", b"\n", b" \n\r\n\t"):
        assert from_ndjson(data, ALL).equals(empty)
    assert from_arrow(empty, ALL).equals(empty)
    assert from_arrow(ALL.schema.empty_table(), ALL).equals(empty)


def test_a_missing_nullable_column_and_one_without_a_type_are_null() -> None:
    wanted = from_dicts([{"id": 1, "name": "a"}], ALL)
    assert from_arrow(pa.table({"name": ["a"], "id": [1]}), ALL).equals(wanted)
    assert from_arrow(pa.table({"name": ["a"], "id": [1], "place": [None]}), ALL).equals(wanted)


@pytest.mark.parametrize(
    ("given_type", "ddl", "value"),
    [
        (pa.int64(), "tinyint", 127),
        (pa.uint64(), "bigint", 5),
        (pa.int8(), "bigint", -5),
        (pa.int64(), "double", 1 << 53),
        (pa.int64(), "decimal(5,2)", 999),
        (pa.float32(), "double", 0.5),
        (pa.float16(), "float", 0.5),
        (pa.decimal128(10, 3), "decimal(5,2)", Decimal("1.500")),
        (pa.decimal256(50, 0), "decimal(5,2)", Decimal(15)),
        (pa.large_string(), "string", "x"),
        (pa.string_view(), "string", "x"),
        (pa.dictionary(pa.int8(), pa.string()), "string", "x"),
        (pa.large_binary(), "binary", b"x"),
        (pa.binary(1), "binary", b"x"),
        (pa.date64(), "date", date(2024, 1, 1)),
        (pa.timestamp("ns", "Europe/Paris"), "timestamp", datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.timestamp("s"), "timestamp_ntz", datetime(2024, 1, 1)),
        (pa.large_list(pa.int64()), "array<tinyint>", [1]),
        (pa.list_(pa.float32(), 2), "array<float>", [0.5, 1.0]),
        (pa.map_(pa.large_string(), pa.int64()), "map<string, int>", [("a", 1)]),
        (pa.struct([("a", pa.int64())]), "struct<a: tinyint not null>", {"a": 1}),
    ],
)
def test_arrow_columns_are_cast_where_no_value_changes(
    given_type: pa.DataType, ddl: str, value: Any
) -> None:
    collection = shape(f"k int, x {ddl}", "k")
    data = pa.table({"k": pa.array([1, 2], pa.int32()), "x": pa.array([value, None], given_type)})
    batch = from_arrow(data, collection)
    batch.validate(full=True)
    assert batch.schema == collection.schema
    assert batch["x"].to_pylist() == [value, None]


SMALL = shape(
    "k int, s string not null, t tinyint, f float, d decimal(4,2), day date, at timestamp, "
    "local timestamp_ntz, l array<int>, p struct<x: int not null>",
    "k",
)


def _columns(**columns: pa.Array) -> pa.Table:
    return pa.table({"k": pa.array([1, 2], pa.int32()), "s": ["a", "b"]} | columns)


BAD_ARROW: dict[str, tuple[pa.Table, str]] = {
    "unknown": (_columns(z=pa.array([1, 2])), "the data has field 'z', which is not in the schema"),
    "case": (_columns(K=pa.array([1, 2])), "the data has field 'K', which is not in the schema"),
    "twice": (
        pa.Table.from_arrays([pa.array([1])] * 2, ["k", "k"]),
        "the data has field 'k' twice",
    ),
    "no key": (pa.table({"s": ["a"]}), "document 0 has no value in 'k'"),
    "no required": (pa.table({"k": [1]}), "document 0 has no value in 's'"),
    "null key": (_columns(k=pa.array([1, None])), "document 1 has no value in 'k'"),
    "null required": (_columns(s=pa.array(["a", None])), "document 1 has no value in 's'"),
    "null within": (
        _columns(p=pa.array([None, {"x": None}], pa.struct([("x", pa.int32())]))),
        "document 1 has no value in 'p.x'",
    ),
    "text for number": (_columns(t=pa.array(["1", "2"])), "field 't' is string in the data"),
    "number for text": (_columns(s=pa.array([1, 2])), "field 's' is int64 in the data"),
    "bytes for text": (_columns(s=pa.array([b"a", b"b"])), "field 's' is binary in the data"),
    "too wide": (
        _columns(t=pa.array([1, 128])),
        r"document 1, field 't': 128 \(int64\) does not fit",
    ),
    "fraction": (_columns(t=pa.array([1.0, 2.0])), "field 't' is double in the data"),
    "narrowed": (_columns(f=pa.array([1.0, 2.0])), "field 'f' is double in the data"),
    "inexact float": (_columns(f=pa.array([1, (1 << 24) + 1])), "document 1, field 'f'"),
    "scale": (
        _columns(d=pa.array([Decimal("1.00"), Decimal("1.001")])),
        r"document 1, field 'd': 1.001 \(decimal.*\) does not fit decimal\(4,2\)",
    ),
    "precision": (_columns(d=pa.array([1, 100])), "document 1, field 'd'"),
    "nanoseconds": (
        _columns(local=pa.array([1000, 1001], pa.timestamp("ns"))),
        "document 1, field 'local'",
    ),
    "naive": (_columns(at=pa.array([1, 2], pa.timestamp("us"))), r"field 'at' is timestamp\[us\]"),
    "aware": (
        _columns(local=pa.array([1, 2], pa.timestamp("us", "UTC"))),
        "field 'local' is timestamp",
    ),
    "element": (_columns(l=pa.array([[1], [2, 1 << 40]])), "document 1, field 'l'"),
    "other struct": (_columns(p=pa.array([{"y": 1}] * 2)), "field 'p' is struct<y: int64>"),
}


@pytest.mark.parametrize(("data", "why"), BAD_ARROW.values(), ids=BAD_ARROW)
def test_bad_arrow_input_is_an_error_that_names_it(data: pa.Table, why: str) -> None:
    # proves G27
    with pytest.raises(DocumentError, match=why) as raised:
        from_arrow(data, SMALL)
    assert "\n" not in str(raised.value)


OK: dict[str, Any] = {"k": 1, "s": "a"}

BAD_DICTS: dict[str, tuple[list[Any], str]] = {
    "not a dict": ([OK, ["k"]], "document 1 is of type list"),
    "none": ([None], "document 0 is of type NoneType"),
    "unknown": ([OK, OK | {"z": 1}], "document 1 has field 'z', which is not in the schema"),
    "no key": ([OK, {"s": "a"}], "document 1 has no value in 'k'"),
    "null required": ([OK, {"k": 1, "s": None}], "document 1 has no value in 's'"),
    "text for number": ([OK, {"k": "1", "s": "a"}], r"document 1, field 'k': '1' \(str\) does not"),
    "fraction": ([OK | {"t": 1.5}], r"document 0, field 't': 1.5 \(float\) does not fit tinyint"),
    "float": ([OK | {"t": 1.0}], "document 0, field 't'"),
    "boolean": ([OK | {"t": True}], "document 0, field 't'"),
    "boolean as float": ([OK | {"f": True}], "document 0, field 'f'"),
    "too wide": ([OK, OK | {"t": 128}], "document 1, field 't': 128"),
    "far too wide": ([OK | {"t": 1 << 80}], "document 0, field 't'"),
    "number for text": ([OK | {"s": 5}], "document 0, field 's'"),
    "bytes for text": ([OK | {"s": b"x"}], "document 0, field 's'"),
    "lone surrogate": ([OK | {"s": "\ud800"}], r"document 0, field 's': '\\ud800'"),
    "float range": ([OK, OK | {"f": 1e39}], "document 1, field 'f': the number is out of"),
    "float for decimal": ([OK | {"d": 1.5}], "document 0, field 'd'"),
    "scale": ([OK, OK | {"d": Decimal("0.001")}], "document 1, field 'd'"),
    "precision": ([OK | {"d": 100}], "document 0, field 'd': 100"),
    "text for date": ([OK | {"day": "1.1.2024"}], "document 0, field 'day'"),
    "datetime for date": ([OK | {"day": datetime(2024, 1, 1)}], "document 0, field 'day'"),
    "naive": ([OK | {"at": datetime(2024, 1, 1)}], "document 0, field 'at'"),
    "nanoseconds": (
        [OK | {"at": pd.Timestamp("2024-01-01T00:00:00.000000001Z")}],
        "document 0, field 'at'.*round it to microseconds",
    ),
    "local nanoseconds": (
        [OK, OK | {"local": pd.Timestamp("2024-01-01T00:00:00.000000001")}],
        "document 1, field 'local'.*round it to microseconds",
    ),
    "not a time": ([OK | {"at": pd.NaT}], "document 0, field 'at'.*change the value"),
    "aware": ([OK | {"local": datetime(2024, 1, 1, tzinfo=UTC)}], "document 0, field 'local'"),
    "text for list": (
        [OK | {"l": "12"}],
        r"document 0, field 'l': '12' \(str\) does not fit array",
    ),
    "element": ([OK, OK | {"l": [1, "x"]}], "document 1, field 'l'"),
    "within": ([OK, OK | {"p": {"x": 1, "y": 2}}], "document 1, field 'p'"),
    "null within": ([OK, OK | {"p": None}, OK | {"p": {}}], "document 2 has no value in 'p.x'"),
}


@pytest.mark.parametrize(("documents", "why"), BAD_DICTS.values(), ids=BAD_DICTS)
def test_bad_dicts_are_an_error_that_names_them(documents: list[Any], why: str) -> None:
    # proves G27
    with pytest.raises(DocumentError, match=why) as raised:
        from_dicts(documents, SMALL)
    assert "\n" not in str(raised.value)


def test_numbers_of_json_become_the_nearest_double_and_ints_must_fit_exactly() -> None:
    doubles = shape("d double")
    found = from_ndjson(b'{"d":9007199254740993}\n{"d":0.1}\n', doubles)
    assert found["d"].to_pylist() == [2.0**53, 0.1]
    with pytest.raises(DocumentError, match=r"9007199254740993 \(int\) does not fit double"):
        from_dicts([{"d": 2**53 + 1}], doubles)


GOOD_LINE = b'{"k":1,"s":"a"}\n'

BAD_NDJSON: dict[str, tuple[bytes, str]] = {
    "not JSON": (GOOD_LINE + b"{k:1}\n", "line 2 is not JSON"),
    "truncated": (GOOD_LINE + b'{"k":1,"s":', "line 2 is not JSON"),
    "two objects": (GOOD_LINE + b'{"k":1,"s":"a"}{"k":2,"s":"b"}\n', "line 2 is not JSON: Extra"),
    "over two lines": (GOOD_LINE + b'{"k":1,\n"s":"a"}\n', "line 2 is not JSON"),
    "rubbish after": (GOOD_LINE[:-1] + b" x\n" + GOOD_LINE, "line 1 is not JSON: Extra data"),
    "zero byte": (GOOD_LINE + b"\0\n", "line 2 is not JSON"),
    "list": (b"[1]\n", r"line 1 is b'\[1\]'; give one object a line"),
    "number": (GOOD_LINE + b"5\n", "line 2 is b'5'"),
    "null": (GOOD_LINE + b" null\n" + GOOD_LINE, "line 2 is b'null'; give one object a line"),
    "after blanks": (b"\n \r\n" + GOOD_LINE + b"\n\t\n[1]\n", "line 6 is b"),
    "unknown": (GOOD_LINE + b'{"k":1,"s":"a","z":2}\n', "line 2 has field 'z', which is not in"),
    "twice": (b'{"k":1,"s":"a","k":2}\n', "line 1 has field 'k' twice"),
    "no key": (b"\n" + GOOD_LINE + b'{"s":"a"}\n', "line 3 has no value in 'k'"),
    "null required": (GOOD_LINE + b'{"k":1,"s":null}\n', "line 2 has no value in 's'"),
    "null within": (b'{"k":1,"s":"a","p":{}}\n', "line 1 has no value in 'p.x'"),
    "text for number": (b'{"k":"1","s":"a"}\n', r"line 1, field 'k': \"1\" does not fit int"),
    "number for text": (b'{"k":1,"s":5}\n', r"line 1, field 's': 5 does not fit string"),
    "too wide": (GOOD_LINE + b'{"k":1,"s":"a","t":128}\n', "line 2, field 't': 128"),
    "fraction": (b'{"k":1,"s":"a","t":1.5}\n', "line 1, field 't': 1.5"),
    "float range": (GOOD_LINE + b'{"k":1,"s":"a","f":1e39}\n', "line 2, field 'f': the number is"),
    "double range": (b'{"k":1,"s":"a","f":1e400}\n', "line 1, field 'f': 1e400 does not fit float"),
    "scale": (b'{"k":1,"s":"a","d":1.001}\n', "line 1, field 'd': 1.001"),
    "date": (GOOD_LINE + b'\n{"k":1,"s":"a","day":"x"}\n', "line 3, field 'day': .x. .* fit date"),
    "no offset": (b'{"k":1,"s":"a","at":"2024-01-01T00:00:00"}\n', "line 1, field 'at'"),
    "offset": (b'{"k":1,"s":"a","local":"2024-01-01T00:00:00Z"}\n', "line 1, field 'local'"),
    "unknown within": (b'{"k":1,"s":"a","p":{"x":1,"y":2}}\n', "line 1, field 'p'"),
    "element": (b'{"k":1,"s":"a","l":[1,"x"]}\n', "line 1, field 'l'"),
    "not UTF-8": (b"\n" + GOOD_LINE + b'{"k":1,"s":"\xff"}\n', "line 3 is not UTF-8"),
    "not UTF-8 at the end": (GOOD_LINE + b'{"k":1,"s":"\xc3', "line 2 is not UTF-8"),
    "too deep": (b'{"k":1,"s":"a","l":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "line 1"),
}


@pytest.mark.parametrize(("data", "why"), BAD_NDJSON.values(), ids=BAD_NDJSON)
def test_bad_ndjson_is_an_error_that_names_the_line(data: bytes, why: str) -> None:
    # proves G27
    with pytest.raises(DocumentError, match=why) as raised:
        from_ndjson(data, SMALL)
    assert "\n" not in str(raised.value)


@pytest.mark.long
@pytest.mark.parametrize("bad", [0, 1, 7_777, 19_999])
def test_the_bad_line_is_found_among_many(bad: int) -> None:
    lines = [GOOD_LINE * 2, b"\n"] * 10_000
    lines[bad] = b'{"k":1,"s":2}\n'
    number = b"".join(lines[:bad]).count(b"\n") + 1
    with pytest.raises(DocumentError, match=rf"^line {number}, field 's': 2 "):
        from_ndjson(b"".join(lines), SMALL)


def test_a_map_takes_a_dict() -> None:
    collection = shape("k int, m map<string, int>", "k")
    batch = from_dicts([{"k": 1, "m": {"a": 1, "b": None}}], collection)
    assert batch.to_pylist() == [{"k": 1, "m": [("a", 1), ("b", None)]}]
    with pytest.raises(DocumentError, match="document 0, field 'm'"):
        from_dicts([{"k": 1, "m": {"a": "x"}}], collection)


def test_numpy_values_stand_for_the_python_ones() -> None:
    collection = shape("k int, v array<float>, ok boolean", "k")
    vector = np.array([0.5, 0.25], np.float32)
    batch = from_dicts([{"k": np.int64(1), "v": vector, "ok": np.True_}], collection)
    assert batch.to_pylist() == [{"k": 1, "v": [0.5, 0.25], "ok": True}]


def test_nulls_below_null_parents_and_outside_a_slice_do_not_count() -> None:
    collection = shape("k int, l array<struct<x: int not null>>", "k")
    inner = pa.struct([("x", pa.int32())])
    data = pa.table(
        {
            "k": pa.array([1, 2, 3, 4], pa.int32()),
            "l": pa.array([[{"x": None}], [{"x": 1}], None, [None, {"x": 2}]], pa.list_(inner)),
        }
    )
    good = from_arrow(data[1:], collection)
    assert good["l"].to_pylist() == [[{"x": 1}], None, [None, {"x": 2}]]
    with pytest.raises(DocumentError, match=r"document 0 has no value in 'l\.element\.x'"):
        from_arrow(data, collection)
    late = pa.concat_tables([data[1:], data[:1]])
    with pytest.raises(DocumentError, match=r"document 3 has no value in 'l\.element\.x'"):
        from_arrow(late, collection)


def test_a_slice_is_judged_by_its_own_rows() -> None:
    collection = shape("k int, l array<int>, m array<struct<x: int not null>>", "k")
    inner = pa.struct([("x", pa.int32())])
    batch = pa.record_batch(
        {
            "k": pa.array([1, 2, 3, 4], pa.int32()),
            "l": pa.array([[1], [2], [3], [1 << 40]]),
            "m": pa.array([[{"x": None}], [{"x": 1}], [{"x": None}], []], pa.list_(inner)),
        }
    )
    assert from_arrow(batch[1:2], collection).to_pylist() == [{"k": 2, "l": [2], "m": [{"x": 1}]}]
    assert from_arrow(batch.select(["k", "l"])[:3], collection)["l"].to_pylist() == [[1], [2], [3]]
    with pytest.raises(DocumentError, match=r"document 3, field 'l': \[ 1099511627776 \]"):
        from_arrow(batch, collection)
    with pytest.raises(DocumentError, match=r"document 1 has no value in 'm\.element\.x'"):
        from_arrow(batch[1:].set_column(1, "l", pa.nulls(3)), collection)


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("string", "x" * 1_000),
        ("binary", b"x" * 1_000),
        ("array<bigint>", [1] * 125),
        ("map<string, string>", {"a" * 500: "b" * 500}),
        ("struct<a: string, b: array<string>>", {"a": "x" * 900, "b": ["y" * 50, "z" * 50]}),
    ],
)
def test_a_document_that_is_too_large_is_named_with_both_sizes(ddl: str, value: Any) -> None:
    # proves G27
    collection = shape(f"k int, x {ddl}", "k", document_bytes_max=1_000)
    documents = [{"k": 1}, {"k": 2, "x": value}, {"k": 3}]
    roomy = shape(f"k int, x {ddl}", "k", document_bytes_max=1_004)
    batch = from_dicts(documents, roomy)
    why = "has about 1004 bytes, over document_bytes_max = 1000"
    with pytest.raises(DocumentError, match=f"document 1 {why}"):
        from_dicts(documents, collection)
    with pytest.raises(DocumentError, match=f"document 0 {why}"):
        from_arrow(batch[1:], collection)
    assert from_arrow(batch[2:], collection).num_rows == 1


def test_many_small_documents_may_be_larger_than_one_may_be() -> None:
    collection = shape("k int, s string", "k", document_bytes_max=100)
    assert from_dicts([{"k": i, "s": "x" * 90} for i in range(50)], collection).num_rows == 50


@pytest.mark.long
def test_long_lines_are_read_up_to_the_limit() -> None:
    collection = shape("k int, s string", "k", document_bytes_max=16 << 20)
    short, long = _line({"k": 1, "s": "a"}), _line({"k": 2, "s": "x" * ((16 << 20) - 30)})
    batch = from_ndjson(short + long + short + long, collection)
    assert batch["k"].to_pylist() == [1, 2, 1, 2]
    with pytest.raises(DocumentError, match="line 2 has about 16777220 bytes, over"):
        from_ndjson(short + long.replace(b"x", b"yyy", 15), collection)
