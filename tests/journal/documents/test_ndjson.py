"""NDJSON and dicts: the same documents in every form, and lines that Arrow's parser cannot take."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.render.json_values import rows
from headrace.errors import DocumentError
from headrace.journal.documents.conversion import from_arrow, from_dicts, from_ndjson
from headrace.journal.documents.ndjson import line_bytes_max
from headrace.journal.documents.schema import parse_schema
from headrace.journal.documents.text_values import UnfitValueError, parse_text
from headrace.journal.documents.validation import DocumentSpec
from tests.journal.documents.random_documents import Arbitrary, exact


def shape(ddl: str, document_bytes_max: int = 1 << 20) -> DocumentSpec:
    return DocumentSpec(parse_schema(ddl), (), document_bytes_max)


def lines(*documents: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(each)}\n" for each in documents).encode()


@given(st.integers(0, 2**32 - 1))
def test_what_is_printed_is_read_as_the_same_documents(seed: int) -> None:
    # proves G30
    random = Random(seed)
    arbitrary = Arbitrary(random)
    schema = arbitrary.schema(random.randint(1, 4))
    collection = DocumentSpec(schema, (), 1 << 20)
    batch = from_arrow(arbitrary.batch(schema, random.randint(0, 6)), collection)
    printed = rows(batch)
    for found in (from_ndjson(_printed(printed), collection), from_dicts(printed, collection)):
        found.validate(full=True)
        assert found.schema.equals(schema, check_metadata=True)
        assert exact(found) == exact(batch)


def _printed(documents: list[dict[str, Any]]) -> bytes:
    return msgspec.json.Encoder().encode_lines(documents)


DAY = date(2024, 2, 29)
INSTANT = datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)
LOCAL = datetime(2024, 2, 29, 12, 30)

FORMS: dict[str, tuple[str, Any, Any]] = {
    "date": ("date", "2024-02-29", DAY),
    "instant": ("timestamp", "2024-02-29T12:30:01.000005Z", INSTANT),
    "offset": ("timestamp", "2024-02-29T14:30:01.000005+02:00", INSTANT),
    "local": ("timestamp_ntz", "2024-02-29T12:30:00", LOCAL),
    "decimal as text": ("decimal(5,2)", "1.50", Decimal("1.50")),
    "decimal with exponent": ("decimal(5,2)", "15e-1", Decimal("1.50")),
    "base64": ("binary", "/wA=", b"\xff\x00"),
    "empty binary": ("binary", "", b""),
    "infinite": ("float", "-Infinity", float("-inf")),
    "within": ("array<struct<d: date>>", [{"d": "2024-02-29"}, None], [{"d": DAY}, None]),
    "map as entries": ("map<int, date>", [{"key": 7, "value": "2024-02-29"}], [(7, DAY)]),
    "map as an object": ("map<string, int>", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
    "map with days": ("map<date, int>", {"2024-02-29": 1}, [(DAY, 1)]),
    "entry without value": ("map<int, int>", [{"key": 7}], [(7, None)]),
    "map within": ("struct<m: map<int, double>>", {"m": [{"key": 1, "value": "Infinity"}]},
                   {"m": [(1, float("inf"))]}),
}  # fmt: skip


@pytest.mark.parametrize(("ddl", "given_value", "value"), FORMS.values(), ids=FORMS)
def test_dicts_and_ndjson_take_the_same_forms(ddl: str, given_value: Any, value: Any) -> None:
    collection = shape(f"x {ddl}")
    documents = [{"x": given_value}, {"x": None}]
    dicts = from_dicts(documents, collection)
    assert dicts.to_pylist() == [{"x": value}, {"x": None}]
    assert from_ndjson(lines(*documents), collection).equals(dicts)


def test_values_and_their_texts_may_stand_in_one_column() -> None:
    collection = shape("d date, t timestamp, b binary, f double, m map<int, int>")
    documents: list[dict[str, Any]] = [
        {"d": DAY, "t": INSTANT, "b": b"a", "f": 1.5, "m": {1: 2}},
        {"d": "2024-02-29", "t": "2024-02-29T12:30:01.000005Z", "b": "YQ==", "f": "NaN"},
        {"m": [(1, 2)], "f": 2},
    ]
    batch = from_dicts(documents, collection)
    assert batch["d"].to_pylist() == [DAY, DAY, None]
    assert batch["t"].to_pylist() == [INSTANT, INSTANT, None]
    assert batch["b"].to_pylist() == [b"a", b"a", None]
    assert repr(batch["f"].to_pylist()) == "[1.5, nan, 2.0]"
    assert batch["m"].to_pylist() == [[(1, 2)], None, [(1, 2)]]


def test_lines_with_words_stay_in_their_place_among_the_others() -> None:
    collection = shape("n int, f float, s string, b binary, a array<double>")
    documents: list[dict[str, Any]] = [
        {"n": n, "f": n / 2, "s": "NaN" if n % 7 == 3 else "x", "b": "YQ==", "a": [n]}
        for n in range(1_000)
    ]
    for n in (0, 17, 18, 500, 999):
        documents[n] |= {"f": "NaN", "a": ["-Infinity", 1, None]}
    for data in (lines(*documents), b"\n \n" + lines(*documents).rstrip()):
        batch = from_ndjson(data, collection)
        assert batch["n"].to_pylist() == list(range(1_000))
        assert batch["s"].to_pylist() == [each["s"] for each in documents]
        assert exact(batch) == exact(from_dicts(documents, collection))
        assert [n for n, each in enumerate(batch["f"].to_pylist()) if each != each] == [
            0, 17, 18, 500, 999,
        ]  # fmt: skip


REFUSED: dict[str, tuple[str, Any, str]] = {
    "no zone": (
        "timestamp",
        "2024-02-29T12:30:00",
        "does not fit timestamp; give it a time zone, e.g. 2024-02-29T12:30:00Z$",
    ),
    "a day for an instant": ("timestamp", "2024-02-29", "e.g. 2024-02-29T00:00:00Z$"),
    "zone": (
        "timestamp_ntz",
        "2024-02-29T12:30:00+01:00",
        "leave the time zone out, which timestamp_ntz does not take, e.g. 2024-02-29T12:30:00$",
    ),
    "nanoseconds": ("timestamp", "2024-02-29T12:30:00.123456789Z", "write it as .*01Z$"),
    "no date": ("date", "29.2.2024", "write it as 2024-02-29$"),
    "a far day that is none": ("date", "+12024-02-30", "does not fit date"),
    "a day too far": ("date", "+9999999-01-01", "does not fit date"),
    "no padding": ("binary", "YQ", "write binary as base64, with its padding$"),
    "padding within": ("binary", "YQ==YQ==", "base64"),
    "bits beyond the end": ("binary", "YR==", "base64"),
    "blanks": ("binary", "Y Q=", "base64"),
    "other alphabet": ("binary", "_-==", "base64"),
    "other word": ("double", "nan", 'give a number, or one of the texts "NaN", '),
    "number as text": ("double", "1.5", "does not fit double"),
    "decimal word": ("decimal(5,2)", "NaN", r"does not fit decimal\(5,2\)"),
    "decimal with underscore": ("decimal(5,2)", "1_0", r"does not fit decimal\(5,2\)"),
    "text for a number": ("int", "1", "does not fit int"),
    "null key": ("map<int, int>", [{"value": 1}], r"has no value in 'x\.key'"),
    "null entry": ("map<int, int>", [None], r"has no value in 'x\.key'"),
    "other entry": ("map<int, int>", [{"key": 1, "v": 2}], "give a list of .*key"),
    "list as entry": ("map<int, int>", [[1, 2]], "give a list of .*key"),
    "key of another type": ("map<int, int>", {"a": 1}, "does not fit map<int, int>"),
    "unknown within": ("struct<a: int>", {"a": 1, "z": 2}, "leave 'z' out"),
}


@pytest.mark.parametrize(("ddl", "value", "why"), REFUSED.values(), ids=REFUSED)
def test_dicts_and_ndjson_refuse_the_same_values(ddl: str, value: Any, why: str) -> None:
    # proves G27
    collection = shape(f"k int, x {ddl}")
    documents = [{"k": 1}, {"k": 2, "x": value}]
    with pytest.raises(DocumentError, match=f"^line 2.*{why}"):
        from_ndjson(lines(*documents), collection)
    with pytest.raises(DocumentError, match=f"^document 1.*{why}"):
        from_dicts(documents, collection)


def test_a_datetime_without_a_time_zone_is_told_that_it_needs_one() -> None:
    # proves G27
    collection = shape("t timestamp, l timestamp_ntz")
    with pytest.raises(DocumentError, match=r"give it a time zone, e\.g\. 2024-02-29T12:30:00Z$"):
        from_dicts([{"t": LOCAL}], collection)
    with pytest.raises(DocumentError, match=r"does not take, e.* 2024-02-29T12:30:01\.000005$"):
        from_dicts([{"l": INSTANT}], collection)
    naive = from_dicts([{"l": LOCAL}], collection).select(["l"]).rename_columns(["t"])
    with pytest.raises(DocumentError, match="give the times a time zone"):
        from_arrow(naive, collection)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_bare_word_is_taken_as_the_number_that_it_is(word: str) -> None:
    collection = shape("f double, g double, d decimal(5,2)")
    for other in ("1", '"NaN"'):
        [found] = from_ndjson(f'{{"f":{word},"g":{other}}}'.encode(), collection).to_pylist()
        assert repr(found["f"]) == repr(float(word))
    with pytest.raises(DocumentError, match=f"line 1, field 'd': {word} does not fit"):
        from_ndjson(f'{{"d":{word}}}'.encode(), collection)


def test_numbers_of_json_are_what_their_field_makes_of_them_whoever_parses_the_line() -> None:
    ddl = "i bigint, d decimal(38,10), f double, o double"
    numbers = '"i":-9007199254740993,"d":12345678901234567890.0123456789,"f":9007199254740993'
    data = f'{{{numbers},"o":0}}\n{{{numbers},"o":"NaN"}}\n'.encode()
    first, second = from_ndjson(data, shape(ddl)).drop_columns(["o"]).to_pylist()
    assert first == second
    assert first["i"] == -9007199254740993
    assert first["d"] == Decimal("12345678901234567890.0123456789")


def test_a_line_may_be_longer_than_the_document_in_it() -> None:
    collection = shape("b binary, s string", document_bytes_max=1_000)
    document = {"b": b"\xff" * 500, "s": "\x01" * 480}
    batch = from_dicts([document], collection)
    line = _printed(rows(batch))
    assert len(line) > 3_000
    assert from_ndjson(line, collection).equals(batch)
    with pytest.raises(DocumentError, match="over document_bytes_max = 1000"):
        from_ndjson(_printed([{"s": "x" * 1_001}]), collection)
    with pytest.raises(DocumentError, match="line 1 has about 9009 bytes"):
        from_ndjson(_printed([{"s": "x" * 9_000}]), collection)


def test_a_line_of_the_greatest_length_is_read_and_a_longer_one_is_not() -> None:
    collection = shape("s string", document_bytes_max=100)
    longest = line_bytes_max(100)
    line = b'{"s":"x"' + b" " * (longest - 10) + b"}\n"
    assert len(line) == longest
    assert from_ndjson(line, collection)["s"].to_pylist() == ["x"]
    with pytest.raises(DocumentError, match=f"line 1 has about {longest + 1} bytes"):
        from_ndjson(b" " + line, collection)
    # Arrow's parser cannot take a larger block.
    assert line_bytes_max(1 << 40) == (1 << 31) - 2


@pytest.mark.parametrize("texts", [["QQ=A"], ["QUI", "QUJDR"], ["QQ==QQ=="], ["Q==="]])
def test_every_text_must_be_base64_by_itself(texts: list[str]) -> None:
    with pytest.raises(UnfitValueError, match="write binary as base64"):
        parse_text(pa.array(texts), pa.binary())


def test_base64_is_decoded_from_any_part_of_an_array() -> None:
    texts = pa.array(["QQ==", "QUI=", None, "", "QUJD"])
    decoded = [b"A", b"AB", None, b"", b"ABC"]
    for start in range(6):
        assert parse_text(texts.slice(start), pa.binary()).to_pylist() == decoded[start:]
    assert parse_text(texts.slice(1, 1), pa.binary()).to_pylist() == [b"AB"]


def test_years_of_any_length_are_counted_as_numpy_counts_them() -> None:
    days = ["+12024-02-29", "2024-02-29", "-0001-03-01", "+10000-01-01", "-4713-11-24"]
    counted = np.array([each.removeprefix("+") for each in days], "datetime64[D]")
    found = parse_text(pa.array(days), pa.date32())
    assert found.cast(pa.int32()).to_pylist() == counted.astype(int).tolist()
    times = parse_text(pa.array([f"{each}T00:00:01" for each in days]), pa.timestamp("us"))
    seconds = counted.astype("datetime64[s]").astype(int) + 1
    assert times.cast(pa.int64()).to_pylist() == (seconds * 1_000_000).tolist()


def test_an_entry_of_a_map_is_a_pair() -> None:
    collection = shape("m map<int, int>")
    with pytest.raises(DocumentError, match=r'give a list of {"key": …, "value": …}'):
        from_dicts([{"m": [(1, 2, 3)]}], collection)
