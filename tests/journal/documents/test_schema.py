from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError, SchemaError
from headrace.journal.documents.schema import (
    adapt,
    check_key,
    deserialize,
    merge_declaration,
    merge_evolution,
    parse_schema,
    serialize,
    to_ddl,
)

UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("byte", pa.int8()),
        ("smallint", pa.int16()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("INTEGER", pa.int32()),
        ("BigInt", pa.int64()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("decimal( 38 , 38 )", pa.decimal128(38, 38)),
        ("string", pa.string()),
        ("varchar(20)", pa.string()),
        ("char(1)", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", UTC),
        ("timestamp_ntz", pa.timestamp("us")),
        ("array<int>", pa.list_(pa.int32())),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("map<string, decimal(3,1)>", pa.map_(pa.string(), pa.decimal128(3, 1))),
        (
            "struct<a: int NOT NULL, `b c` array<string>>",
            pa.struct([pa.field("a", pa.int32(), False), ("b c", pa.list_(pa.string()))]),
        ),
    ],
)
def test_each_type_of_the_subset_is_parsed(ddl: str, kind: pa.DataType) -> None:
    assert parse_schema(f"x {ddl}") == parse_schema(f"x: {ddl}") == pa.schema([("x", kind)])


def test_fields_have_names_nullability_and_comments() -> None:
    schema = parse_schema(
        r"""account STRING not null COMMENT 'it\'s \\ own', `order``s` long comment "x",
            not int, comment int NOT NULL, 1st int"""
    )
    assert schema.names == ["account", "order`s", "not", "comment", "1st"]
    assert [field.nullable for field in schema] == [False, True, True, False, True]
    assert schema.field("account").metadata == {b"comment": rb"it's \ own"}
    assert schema.field("order`s").metadata == {b"comment": b"x"}


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("", "the schema has no fields"),
        (" \n", "the schema has no fields"),
        ("x", "expected a type at position 1, found the end"),
        ("x strin", "expected a type at position 2, found 'strin'"),
        ("x interval", "expected a type at position 2, found 'interval'"),
        ("x int,", "expected a field name at position 6, found the end"),
        ("x int y int", "expected a comma or the end at position 6, found 'y'"),
        ("x int not", "expected a comma or the end at position 6, found 'not'"),
        (", x int", "expected a field name at position 0, found ','"),
        ("x decimal(39,0)", "expected a number from 1 to 38 at position 10, found '39'"),
        ("x decimal(5,6)", "expected a number from 0 to 5 at position 12, found '6'"),
        ("x decimal(5", r"expected '\)' at position 11, found the end"),
        ("x varchar", r"expected '\(' at position 9"),
        ("x char(0)", "expected a number from 1 to"),
        ("x array<int", "expected '>' at position 11"),
        ("x array", "expected '<' at position 7"),
        ("x map<int>", "expected ',' at position 9, found '>'"),
        ("x struct<>", "expected a field name at position 9"),
        ("x struct<a int, A int>", "the struct at position 8 has field 'A' twice"),
        ("x int comment y", "expected a quoted comment at position 14"),
        ("x int; y int", "cannot read '; y int' at position 5"),
        ("x int comment 'open", 'cannot read "\'open" at position 14'),
        ("é int", "cannot read 'é int' at position 0"),
        ("x int, X long", "the schema has field 'X' twice; rename one; case is ignored"),
        ("`a\0b` long", r"the schema has field 'a\\x00b', with a zero byte; rename it"),
        ("_clock long", "field '_clock' begins with an underscore, which is reserved"),
    ],
)
def test_bad_ddl_is_an_error_that_names_the_place(ddl: str, why: str) -> None:
    # proves G27
    with pytest.raises(SchemaError, match=why) as raised:
        parse_schema(ddl)
    assert "\n" not in str(raised.value)


def test_an_unknown_type_is_told_the_supported_ones() -> None:
    with pytest.raises(SchemaError, match=r"use one of the types boolean, .*struct<\.\.\.>"):
        parse_schema("x uuid")


@pytest.mark.parametrize(
    ("given_type", "kind"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.decimal64(9, 2), pa.decimal128(9, 2)),
        (pa.decimal256(38, 2), pa.decimal128(38, 2)),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.float32(), 3), pa.list_(pa.float32())),
        (pa.list_(pa.field("item", pa.int8(), False)), pa.list_(pa.int8())),
        (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
        (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int8())),
        (UTC, UTC),
    ],
)
def test_other_layouts_of_a_supported_arrow_type_become_it(
    given_type: pa.DataType, kind: pa.DataType
) -> None:
    assert parse_schema(pa.schema([("x", given_type)])) == pa.schema([("x", kind)])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (pa.schema([]), "no fields"),
        (pa.schema([("x", pa.uint8())]), "field 'x' has Arrow type uint8"),
        (pa.schema([("x", pa.float16())]), "field 'x' has Arrow type halffloat"),
        (pa.schema([("x", pa.null())]), "field 'x' has Arrow type null"),
        (pa.schema([("x", pa.time64("us"))]), r"field 'x' has Arrow type time64\[us\]"),
        (pa.schema([("x", pa.duration("us"))]), "field 'x' has Arrow type duration"),
        (pa.schema([("x", pa.timestamp("ns"))]), r"timestamp\[ns\].*timestamp\[us, tz=UTC\]"),
        (pa.schema([("x", pa.timestamp("us", "Europe/Paris"))]), "tz=Europe/Paris"),
        (pa.schema([("x", pa.date64())]), "field 'x' has Arrow type date64"),
        (pa.schema([("x", pa.decimal256(76, 2))]), "field 'x' has Arrow type decimal256"),
        (pa.schema([("x", pa.decimal128(5, -2))]), "field 'x' has Arrow type decimal128"),
        (pa.schema([("x", pa.struct([]))]), "field 'x' has Arrow type struct<>"),
        (pa.schema([("x", pa.struct([("y", pa.uint8())]))]), "field 'x.y' has Arrow type uint8"),
        (pa.schema([("x", pa.list_(pa.uint8()))]), "field 'x.element' has Arrow type uint8"),
        (pa.schema([("x", pa.map_(pa.uint8(), pa.int8()))]), "field 'x.key' has Arrow type uint8"),
        (pa.schema([("x", pa.struct([("y", pa.int8())] * 2))]), "field 'x' has field 'y' twice"),
        (pa.schema([("x", pa.int8()), ("x", pa.int8())]), "the schema has field 'x' twice"),
        (pa.schema([("", pa.int8())]), "a field of the schema has no name"),
        (pa.schema([("_x", pa.int8())]), "reserved"),
        ({"x": "int"}, "the schema is of type dict"),
    ],
)
def test_a_bad_arrow_schema_is_an_error_that_names_the_field(schema: pa.Schema, why: str) -> None:
    # proves G27
    with pytest.raises(SchemaError, match=why):
        parse_schema(schema)


_letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
_names = st.text(_letters, min_size=1, max_size=4).filter(lambda name: not name.startswith("_"))
_LEAVES = (
    "boolean, tinyint, smallint, int, bigint, float, double, string, binary, date, timestamp, "
    "timestamp_ntz, decimal(7)"
)
_leaves = st.sampled_from(_LEAVES.split(", ")).map(
    lambda ddl: parse_schema(f"x {ddl}").field("x").type
)


def _structs(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return _fields(children).map(pa.struct)


def _fields(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    comment = st.one_of(st.none(), st.text(min_size=1, max_size=5).map(lambda t: {"comment": t}))
    return st.lists(
        st.builds(pa.field, _names, kinds, st.booleans(), comment),
        min_size=1,
        max_size=3,
        unique_by=lambda field: field.name.lower(),
    )


_types = st.recursive(
    _leaves,
    lambda children: st.one_of(
        children.map(pa.list_), st.builds(pa.map_, children, children), _structs(children)
    ),
    max_leaves=5,
)


@given(_fields(_types).map(pa.schema))
def test_to_ddl_is_the_inverse_of_parse_schema(schema: pa.Schema) -> None:
    schema = parse_schema(schema)
    assert parse_schema(to_ddl(schema)).equals(schema, check_metadata=True)


def test_a_schema_survives_storage_and_damage_to_it_is_found() -> None:
    schema = parse_schema("a int not null comment 'x', b array<string>")
    data = serialize(schema)
    assert deserialize(data).equals(schema, check_metadata=True)
    for damaged in (b"", data[:20], data[: len(data) // 2]):
        with pytest.raises(DataError, match="a stored schema"):
            deserialize(damaged)


KEYED = parse_schema(
    "a int, b string, c float, d double, e array<int>, f struct<x: int>, g map<int, int>, "
    "h decimal(5,2), i date, j timestamp, k boolean, l binary, m timestamp_ntz"
)


@pytest.mark.parametrize("key", [["a"], ["b", "a"], list("abhijklm")])
def test_a_key_may_have_any_exact_flat_fields(key: list[str]) -> None:
    check_key(KEYED, key)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ([], "the key has no fields"),
        (["z"], "key field 'z' is not in the schema; choose among a, b"),
        (["a", "b", "a"], "key field 'a' is named twice"),
        (["a", "c"], "key field 'c' has type float"),
        (["d"], "key field 'd' has type double"),
        (["e"], "key field 'e' has type array<int>"),
        (["f"], "key field 'f' has type struct<x: int>"),
        (["g"], "key field 'g' has type map<int, int>"),
    ],
)
def test_a_bad_key_is_an_error_that_names_the_field(key: list[str], why: str) -> None:
    # proves G27
    with pytest.raises(SchemaError, match=why):
        check_key(KEYED, key)


@pytest.mark.parametrize(
    ("new", "merged"),
    [
        ("a int not null, b string", "a int not null, b string"),
        ("b string, a int not null", "a int not null, b string"),
        ("c date, b string, a int not null", "a int not null, b string, c date"),
        ("a int, b string", "a int, b string"),
    ],
)
def test_evolution_adds_nullable_fields_and_keeps_the_old_order(new: str, merged: str) -> None:
    old = parse_schema("a int not null, b string")
    assert to_ddl(merge_evolution(old, parse_schema(new))) == to_ddl(parse_schema(merged))


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ("a int not null", "field 'b' was removed"),
        ("a int not null, B string", "field 'b' was removed"),
        ("a bigint not null, b string", "field 'a' changed from int to bigint"),
        ("a int not null, b array<string>", r"field 'b' changed from string to array<string>"),
        ("a int not null, b string not null", "field 'b' became NOT NULL"),
        ("a int not null, b string, c int not null", "new field 'c' is NOT NULL"),
    ],
)
def test_evolution_that_old_documents_do_not_fit_names_the_field(new: str, why: str) -> None:
    # proves G27
    with pytest.raises(SchemaError, match=why):
        merge_evolution(parse_schema("a int not null, b string"), parse_schema(new))


@pytest.mark.parametrize(
    ("declared", "merged"),
    [
        ("a int not null", "a int not null, b string, c date"),
        ("c date, a int not null", "a int not null, b string, c date"),
        ("a int not null, b string, c date", "a int not null, b string, c date"),
        ("c date, b string, a int not null, d int", "a int not null, b string, c date, d int"),
        ("a int", "a int, b string, c date"),
    ],
)
def test_nullable_fields_may_be_left_out_of_a_declaration(declared: str, merged: str) -> None:
    present = parse_schema("a int not null, b string, c date")
    assert merge_declaration(present, parse_schema(declared)) == parse_schema(merged)


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("b string", "field 'a' is NOT NULL, and is not declared"),
        ("a int not null, d int", "field 'b' is not declared, and 'd' is new"),
        ("a int not null, B string", "field 'b' is not declared, and 'B' is new"),
        ("a bigint not null", "field 'a' changed from int to bigint"),
        ("a int not null, b string not null", "field 'b' became NOT NULL"),
        ("a int not null, b array<string>", "field 'b' changed from string"),
    ],
)
def test_a_declaration_that_the_collection_cannot_serve_names_the_field(
    declared: str, why: str
) -> None:
    # proves G27
    present = parse_schema("a int not null, b string, c date")
    with pytest.raises(SchemaError, match=why) as raised:
        merge_declaration(present, parse_schema(declared))
    assert "\n" not in str(raised.value)


def test_adapt_adds_nulls_and_copies_nothing() -> None:
    old = parse_schema("a int not null, b string")
    new = parse_schema("a int, b string, c struct<x: int not null>, d array<int>")
    batch = pa.record_batch([pa.array([1, 2, 3], pa.int32()), pa.array(["x", None, "z"])], old)[1:]
    adapted = adapt(batch, new)
    adapted.validate(full=True)
    assert adapted.schema == new
    assert adapted.to_pylist() == [
        {"a": 2, "b": None, "c": None, "d": None},
        {"a": 3, "b": "z", "c": None, "d": None},
    ]
    assert adapted["a"].buffers()[1].address == batch["a"].buffers()[1].address
    assert adapt(adapted, new) is adapted


def test_adapt_refuses_a_batch_of_another_collection() -> None:
    batch = pa.record_batch({"z": [1]})
    with pytest.raises(SchemaError, match="field 'z' was removed"):
        adapt(batch, parse_schema("a int"))
