from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SchemaError
from headrace.journal.documents.keyhash import key_hash
from headrace.journal.documents.schema import parse_schema

MASK = (1 << 64) - 1


def hashes(ddl: str, *rows: tuple[Any, ...]) -> list[int]:
    schema = parse_schema(ddl)
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    found: list[int] = key_hash(pa.record_batch(columns, schema), schema.names).tolist()
    return found


# The definition in the module's docstring, one value at a time.


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def step(h: int, w: int) -> int:
    h = (h ^ w) * 0x9E3779B97F4A7C15 & MASK
    return h ^ h >> 32


def combine(*fields: int) -> int:
    h = 0
    for field in fields:
        h = mix(h * 0x9E3779B97F4A7C15 + field & MASK)
    return h


def of_bytes(value: bytes) -> int:
    h = mix(len(value) + 0xA0761D6478BD642F & MASK)
    if len(value) > 256:
        value = xxhash.xxh3_64_intdigest(value).to_bytes(8, "little")
    for at in range(0, len(value), 8):
        h = step(h, int.from_bytes(value[at : at + 8], "little"))
    return mix(h)


def of_integer(value: int) -> int:
    return mix(value + 0xE7037ED1A0B428DB & MASK)


@pytest.mark.parametrize(
    ("ddl", "value", "golden"),
    [
        ("string", "", 0xC6AE19BD7375166F),
        ("string", "a", 0x0095EBAAA18448BC),
        ("string", "account-0000001", 0x719C42EDA76B1D23),
        ("string", "16 bytes exactly", 0xAA8242A50FCD04E7),
        ("binary", b"\x00\xff", 0x36BDA24C771A4C9A),
        ("string", None, 0x850EDBAF57948BB6),
        ("string", "x" * 256, 0x8EB1417A2501C3A5),
        ("string", "x" * 257, 0xA6EC4204F335697E),
        ("tinyint", -1, 0xABF5A9470452F137),
        ("bigint", 0, 0x60A39A5B8702BB0F),
        ("bigint", 1, 0xCA148743EDF66349),
        ("bigint", 9223372036854775807, 0x1E708CADFEAAF3D9),
        ("boolean", True, 0x6ECB92544B1F570B),
        ("boolean", False, 0x7B5ED2665AA489AC),
        ("date", date(2024, 2, 29), 0x0CDF670912BFA173),
        ("timestamp", datetime(2024, 2, 29, 12, 0, tzinfo=UTC), 0x34F194EED2F6948B),
        ("timestamp_ntz", datetime(2024, 2, 29, 12, 0), 0x34F194EED2F6948B),
        ("decimal(38,2)", Decimal("-12345678901234567890.12"), 0x5ABB9C306E3F7A99),
    ],
)
def test_hashes_never_change(ddl: str, value: Any, golden: int) -> None:
    assert hashes(f"k {ddl}", (value,)) == [golden]


def test_a_composite_hash_never_changes() -> None:
    assert hashes("a string, b bigint, c date", ("ann", 7, None)) == [0x82D1A4E5AA72C7B4]


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=250, max_size=300), max_size=8))
def test_bytes_follow_the_definition(values: list[bytes]) -> None:
    found = hashes("k binary", *((value,) for value in values))
    assert found == [combine(of_bytes(value)) for value in values]


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=12))))
def test_composite_keys_follow_the_definition(rows: list[tuple[int, str]]) -> None:
    expected = [combine(of_integer(number), of_bytes(text.encode())) for number, text in rows]
    assert hashes("a bigint, b string", *rows) == expected


@given(st.lists(st.none() | st.text(max_size=20), min_size=1, max_size=20), st.data())
def test_a_key_hashes_alike_wherever_it_lies(values: list[str | None], data: st.DataObject) -> None:
    batch = pa.record_batch({"k": pa.array(values, pa.string()), "n": pa.array(range(len(values)))})
    whole = key_hash(batch, ["k", "n"])
    start = data.draw(st.integers(0, len(values)))
    length = data.draw(st.integers(0, len(values)))
    part = batch.slice(start, length)
    assert key_hash(part, ["k", "n"]).tolist() == whole[start : start + length].tolist()


@pytest.mark.parametrize(
    "ddl_and_values",
    [
        ("boolean", [True, False, None, True]),
        ("smallint", [1, -1, None, 300]),
        ("decimal(20,2)", [Decimal("1.50"), Decimal(-1), None, Decimal("99999999999.99")]),
        ("date", [date(2024, 1, 1), date(1960, 1, 1), None, date(2024, 1, 1)]),
        ("timestamp", [datetime(2024, 1, 1, tzinfo=UTC), None, datetime(1960, 1, 1, tzinfo=UTC)]),
        ("binary", [b"", b"\0", None, b"\0\0", b"x" * 300]),
    ],
)
def test_slices_of_every_type_hash_like_their_rows(ddl_and_values: tuple[str, list[Any]]) -> None:
    ddl, values = ddl_and_values
    schema = parse_schema(f"k {ddl}")
    batch = pa.record_batch([pa.array(values, schema.field("k").type)], schema)
    alone = [hashes(f"k {ddl}", (value,))[0] for value in values]
    assert key_hash(batch, ["k"]).tolist() == alone
    assert key_hash(batch[1:], ["k"]).tolist() == alone[1:]
    assert len(set(alone)) == len(set(values))


def test_very_many_keys_hash_like_a_few() -> None:
    numbers = pa.array(range(20_001), pa.int64())
    whole = pa.record_batch({"number": numbers, "text": numbers.cast(pa.string())})
    pieces = [whole.slice(first, 1_000) for first in range(0, len(numbers), 1_000)]
    fields = ["number", "text"]
    assert key_hash(whole, fields).tolist() == [
        each for piece in pieces for each in key_hash(piece, fields).tolist()
    ]


def test_fields_of_a_key_are_delimited_and_ordered() -> None:
    rows = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("c", "ab"), (None, "abc")]
    assert len(set(hashes("a string, b string", *rows))) == len(rows)


def test_zero_bytes_and_lengths_count() -> None:
    values = [b"\0" * length for length in range(300)]
    assert len(set(hashes("k binary", *((value,) for value in values)))) == len(values)


def test_integers_hash_by_value_and_strings_like_their_bytes() -> None:
    kinds = ("tinyint", "smallint", "int", "bigint")
    assert len({hashes(f"k {kind}", (-7,))[0] for kind in kinds}) == 1
    assert hashes("k string", ("é",)) == hashes("k binary", ("é".encode(),))


def test_no_rows_have_no_hashes() -> None:
    for ddl in ("string", "bigint", "boolean", "decimal(5,2)", "date"):
        assert hashes(f"k {ddl}") == []


@pytest.mark.parametrize("ddl", ["float", "double", "array<int>", "struct<a: int>"])
def test_a_type_that_cannot_be_a_key_is_an_error_that_names_the_field(ddl: str) -> None:
    with pytest.raises(SchemaError, match="key field 'k' has type"):
        hashes(f"k {ddl}", (None,))


@pytest.mark.parametrize(
    "column",
    [
        lambda: pa.array(range(65_536)),
        lambda: pa.array(range(0, 65_536 << 20, 1 << 20)),
        lambda: pa.array([f"user-{i}" for i in range(65_536)]),
        lambda: pa.array([f"{i:064x}" for i in range(65_536)]),
    ],
)
@pytest.mark.parametrize("bits", ["high", "low"])
def test_similar_keys_spread_evenly(column: Callable[[], pa.Array], bits: str) -> None:
    found = key_hash(pa.record_batch({"k": column()}), ["k"])
    buckets = found >> np.uint64(58) if bits == "high" else found & np.uint64(63)
    counts = np.bincount(buckets.astype(np.int64), minlength=64)
    expected = len(found) / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 25 < chi_square < 120  # With 63 degrees of freedom, both ends are beyond 1 in 100 000.


def test_each_input_bit_flips_about_half_of_the_output() -> None:
    values = np.random.default_rng(7).integers(-(1 << 62), 1 << 62, 2_000)
    base = key_hash(pa.record_batch({"k": values}), ["k"])
    for bit in range(0, 63, 7):
        flipped = key_hash(pa.record_batch({"k": values ^ np.int64(1 << bit)}), ["k"])
        assert 31.5 < float(np.bitwise_count(base ^ flipped).mean()) < 32.5
