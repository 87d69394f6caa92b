"""Collections, journals and documents: one suite, at the owner and through it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    ExistsError,
    NotFoundError,
    SchemaError,
)
from headrace.ids import format_producer
from tests.journal.conftest import SETTINGS, column, documents

WIDE = (
    "id long NOT NULL, flag boolean, small tinyint, ratio double, price decimal(10,2),"
    " name string, raw binary, day date, at timestamp, tags array<string>,"
    " location struct<x:int,y:int>"
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "flag": True,
        "small": -3,
        "ratio": 0.5,
        "price": Decimal("12.30"),
        "name": "é\n",
        "raw": b"ab",
        "day": date(2026, 11, 15),
        "at": datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC),
        "tags": ["x", None],
        "location": {"x": 1, "y": None},
    },
    {"id": 2}
    | dict.fromkeys(
        ["flag", "small", "ratio", "price", "name", "raw", "day", "at", "tags", "location"]
    ),
]
NDJSON = (
    '{"id":1,"flag":true,"small":-3,"ratio":0.5,"price":"12.30","name":"é\\n","raw":"YWI=",'
    '"day":"2026-11-15","at":"2026-11-15T12:00:00.123456Z","tags":["x",null],'
    '"location":{"x":1,"y":null}}\n{"id":2}\n'
)


def test_a_collection_is_made_found_and_listed(workspace: hr.Workspace) -> None:
    created = workspace.collection(
        "shop/orders", "id long, region string", key="id", partition_by="region", journals=2,
        retention_s=60.0, retention_bytes=1000,
    )  # fmt: skip
    workspace.collection("shop/items", "id long")
    found = workspace.collection("shop/orders")
    assert found.definition == created.definition
    assert (found.key, found.partition_by, found.journals) == (("id",), ("region",), 2)
    assert (found.definition.retention_s, found.definition.retention_bytes) == (60.0, 1000)
    assert found.schema == pa.schema([("id", pa.int64()), ("region", pa.string())])
    assert [each.name for each in workspace.collections()] == ["shop/items", "shop/orders"]


def test_a_schema_grows_and_old_documents_are_read_under_the_new_one(
    workspace: hr.Workspace,
) -> None:
    old = workspace.collection("c", "n long")
    workspace.append(old, [{"n": 1}])
    new = workspace.collection("c", "n long, more string")
    assert (old.version, new.version, new.id) == (0, 1, old.id)
    workspace.append(new, [{"n": 2, "more": "x"}])
    workspace.append(old, [{"n": 3}])
    expected = [{"n": 1, "more": None}, {"n": 2, "more": "x"}, {"n": 3, "more": None}]
    assert documents(workspace, "c") == expected
    assert workspace.table(old).to_pylist() == expected
    with pytest.raises(SchemaError, match="field 'more' is not declared, and 'other' is new"):
        workspace.collection("c", "n long, other string")
    with pytest.raises(ExistsError, match="collection c exists with journals 1, not 2"):
        workspace.collection("c", "n long, more string", journals=2)
    assert workspace.collection("c").definition == new.definition


def test_a_program_that_declares_an_older_schema_starts_writes_and_reads(
    workspace: hr.Workspace,
) -> None:
    older = workspace.collection("c", "n long NOT NULL, s string", key="n")
    newer = workspace.collection("c", "n long NOT NULL, s string, more string", key="n")
    workspace.append(newer, [{"n": 1, "s": "a", "more": "x"}])
    with hr.open(workspace.location, settings=SETTINGS) as other:
        declared = other.collection("c", "n long NOT NULL, s string", key="n")
        assert declared.definition == newer.definition
        other.append(declared, [{"n": 2, "s": "b"}])
        other.append(declared, pa.record_batch({"n": [3], "s": ["c"]}, schema=older.schema))
        with other.publisher() as tx:
            tx.append(declared, b'{"n": 4, "s": "d"}\n')
        found = other.table(declared)
    assert found.schema.names == ["n", "s", "more"]
    assert found["n"].to_pylist() == [1, 2, 3, 4]
    assert found["more"].to_pylist() == ["x", None, None, None]
    assert workspace.collection("c").version == newer.version
    with pytest.raises(SchemaError, match="field 's' is not declared, and 'z' is new"):
        workspace.collection("c", "n long NOT NULL, z int", key="n")
    with pytest.raises(ExistsError, match="exists with key n, not s"):
        workspace.collection("c", "n long NOT NULL, s string", key="s")


def test_a_deleted_collection_takes_its_journals_and_documents_with_it(
    workspace: hr.Workspace,
) -> None:
    first = workspace.collection("c", "n long", journals=2)
    workspace.collection("c/d", "n long")
    workspace.append("c", [{"n": 1}])
    workspace.append("c/d", [{"n": 2}])
    gone = workspace.journals(hr.selector("c"))
    workspace.delete_collection("c")
    assert [each.name for each in workspace.collections()] == ["c/d"]
    assert [each.name for each in workspace.journals()] == ["c/d/0000"]
    with pytest.raises(NotFoundError, match=f"journal {gone[0].name} is gone"):
        list(workspace.frames(gone[0]))
    with pytest.raises(NotFoundError, match="no collection 'c'"):
        workspace.delete_collection("c")
    second = workspace.collection("c", "text string")
    assert second.id != first.id
    assert documents(workspace, "c") == []
    workspace.append("c", [{"text": "x"}])
    assert documents(workspace, "c") == [{"text": "x"}]
    assert not {j.id for j in workspace.journals(hr.selector("c"))} & {j.id for j in gone}


def test_journals_are_listed_by_name_and_selected_by_partition(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long, p string", partition_by="p")
    workspace.collection("d", "n long")
    workspace.append("c", [{"n": n, "p": p} for n, p in enumerate(["b", "a", None, "a/x"])])
    names = ["c/p=%null/0000", "c/p=a%2Fx/0000", "c/p=a/0000", "c/p=b/0000"]
    assert [j.name for j in workspace.journals()] == sorted([*names, "d/0000"])
    assert [j.name for j in workspace.journals(hr.selector("c"))] == sorted(names)
    chosen = hr.selector("c", {"p": ["a", None, "zzz"]})
    assert [j.name for j in workspace.journals(chosen)] == sorted(["c/p=%null/0000", "c/p=a/0000"])
    rest = hr.selector("c", exclude={"p": ["a", None]})
    assert column(workspace, "c", "n", selector=rest) == [3, 0]
    assert workspace.journals(hr.selector("none")) == []
    for journal in workspace.journals(hr.selector("c")):
        assert (journal.begin, journal.frames) == (0, 1)
        [frame] = workspace.frames(journal)
        assert (frame.offset, frame.end) == (0, journal.head)


def test_a_deleted_journal_is_another_one_when_it_comes_again(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long, p string", partition_by="p")
    workspace.append("c", [{"n": 1, "p": "x"}, {"n": 2, "p": "y"}])
    [gone] = workspace.journals(hr.selector("c", {"p": ["x"]}))
    workspace.delete_journals([gone.name])
    assert column(workspace, "c", "n") == [2]
    workspace.append("c", [{"n": 3, "p": "x"}])
    [again] = workspace.journals(hr.selector("c", {"p": ["x"]}))
    assert again.id != gone.id
    assert column(workspace, "c", "n") == [3, 2]
    with pytest.raises(NotFoundError, match="no journal 'c/p=z/0000'"):
        workspace.delete_journals([again.name, "c/p=z/0000"])
    assert column(workspace, "c", "n") == [3, 2]


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        tuple(ROWS),
        NDJSON,
        NDJSON.encode(),
        bytearray(NDJSON.encode()),
        memoryview(NDJSON.encode()),
        lambda schema: pa.Table.from_pylist(ROWS, schema),
        lambda schema: pa.RecordBatch.from_pylist(ROWS, schema),
    ],
    ids=["dicts", "tuple", "text", "bytes", "bytearray", "memoryview", "table", "batch"],
)
@pytest.mark.parametrize("transaction", [False, True])
def test_every_form_of_documents_says_the_same(
    workspace: hr.Workspace, given: Any, transaction: bool
) -> None:
    collection = workspace.collection("c", WIDE)
    whole = given(collection.schema) if isinstance(given, Callable) else given  # type: ignore[arg-type]
    if transaction:
        with workspace.publisher() as tx:
            assert tx.append(collection, whole) == 2
    else:
        assert workspace.append(collection, whole) == 2
    table = workspace.table("c")
    assert table.schema.equals(collection.schema)
    assert table.to_pylist() == ROWS


def test_meta_columns_tell_where_each_document_stands(workspace: hr.Workspace) -> None:
    workspace.collection("c", "n long", journals=2, key="n")
    workspace.append("c", [{"n": n} for n in range(20)])
    found = documents(workspace, "c", meta=True)
    frames = {
        journal.name: frame
        for journal in workspace.journals()
        for frame in workspace.frames(journal)
    }
    assert len(frames) == 2
    for name, frame in frames.items():
        here = [each for each in found if each["_journal"] == name]
        assert [each["_clock"] for each in here] == [
            frame.clock + index for index in range(frame.documents)
        ]
        assert {each["_producer"] for each in here} == {format_producer(frame.producer)}
