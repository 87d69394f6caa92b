"""One table of bad input: the call, the error, and its message, word for word.

After each call the workspace works, and holds nothing of what it refused.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    AheadOfHeadError,
    BehindRetentionError,
    DocumentError,
    ExistsError,
    FencedError,
    HeadraceError,
    NotFoundError,
    OffsetError,
    SchemaError,
    UsageError,
)
from headrace.ids import Offset
from headrace.journal.contract import JournalInfo
from headrace.journal.documents.schema import SUPPORTED
from tests.journal.conftest import documents

SCHEMA = "id long NOT NULL, name string, price decimal(6,2), note string"
LINE = '{"id":7,"name":"bad"}\n'
GOOD = {"id": 7, "name": "bad"}
LONG = "x" * 100_001

FIT = "change the value, or the type of the field"
FIELDS = "choose among id, name, price, note"
VALUE = "which is a key or NOT NULL field; give it a value"
LARGE = (
    "over document_bytes_max = 100000; split it, store its payload elsewhere, or raise the limit"
)
OBJECT = "give one object a line"
FORMS = "give a table (Arrow, pandas, Polars, DuckDB), a list of dicts, or NDJSON"

DOCUMENTS: list[tuple[Any, str]] = [
    ([GOOD, GOOD | {"x": 1}], f"document 1 has field 'x', which is not in the schema; {FIELDS}"),
    (
        [GOOD, {"id": "2", "name": "b"}],
        f"document 1, field 'id': '2' (str) does not fit bigint; {FIT}",
    ),
    ([GOOD | {"id": True}], f"document 0, field 'id': True (bool) does not fit bigint; {FIT}"),
    (
        [GOOD | {"id": 1 << 63}],
        f"document 0, field 'id': 9223372036854775808 (int) does not fit bigint; {FIT}",
    ),
    (
        [GOOD | {"price": Decimal("1.234")}],
        f"document 0, field 'price': Decimal('1.234') (Decimal) does not fit decimal(6,2); {FIT}",
    ),
    ([GOOD, {"id": 2}], f"document 1 has no value in 'name', {VALUE}"),
    ([GOOD | {"name": None}], f"document 0 has no value in 'name', {VALUE}"),
    ([{"name": "b"}], f"document 0 has no value in 'id', {VALUE}"),
    ([GOOD, GOOD | {"note": LONG}], f"document 1 has about 100028 bytes, {LARGE}"),
    (
        [GOOD | {"note": "\ud800"}],
        f"document 0, field 'note': '\\ud800' (str) does not fit string; {FIT}",
    ),
    ([GOOD, ["id"]], "document 1 is of type list; give dicts"),
    (
        LINE + LINE + '{"id":2,"name":"b"\n' + LINE,
        f"line 3 is not JSON: Expecting ',' delimiter at column 1; {OBJECT}",
    ),
    (LINE + "[1]\n", f"line 2 is b'[1]'; {OBJECT}"),
    (LINE + "\n" + LINE.strip() + LINE, f"line 3 is not JSON: Extra data at column 22; {OBJECT}"),
    (LINE.encode() + b'{"id":2,"name":"\xff"}\n', "line 2 is not UTF-8; encode it as UTF-8"),
    ('{"id":2,"name":"\ud800"}\n', "line 1 is not UTF-8; encode it as UTF-8"),
    (
        LINE + '{"id":2,"name":"b","x":1}',
        f"line 2 has field 'x', which is not in the schema; {FIELDS}",
    ),
    (
        LINE + '\n{"id":"two","name":"b"}',
        f"line 3, field 'id': \"two\" does not fit bigint; {FIT}",
    ),
    (LINE + '{"id":2.5,"name":"b"}', f"line 2, field 'id': 2.5 does not fit bigint; {FIT}"),
    (LINE + '{"id":2}', f"line 2 has no value in 'name', {VALUE}"),
    (LINE + '{"id":2,"name":null}', f"line 2 has no value in 'name', {VALUE}"),
    (
        LINE + '{"id":2,"name":"b","note":"' + "x" * 100_000 + '"}',
        f"line 2 has about 100025 bytes, {LARGE}",
    ),
    (
        LINE + '{"id":2,"id":3,"name":"b"}',
        "line 2 has field 'id' twice; drop one of them",
    ),
    (
        pa.table({"id": [1.5], "name": ["b"]}),
        "field 'id' is double in the data, but the schema has id bigint;"
        " cast the column before you append it",
    ),
    (
        pa.table({"id": [1], "name": ["b"], "x": [1]}),
        f"the data has field 'x', which is not in the schema; {FIELDS}",
    ),
    (
        pa.table({"id": [1, 2], "name": ["b", None]}),
        f"document 1 has no value in 'name', {VALUE}",
    ),
    (pa.table({"id": [1, 2]}), f"document 0 has no value in 'name', {VALUE}"),
    (
        pa.record_batch({"id": [1, 2], "name": ["b", LONG]}),
        f"document 1 has about 100025 bytes, {LARGE}",
    ),
    (None, f"documents for orders cannot be of type NoneType; {FORMS}"),
    (GOOD, f"documents for orders cannot be of type dict; {FORMS}"),
]


def define(**changes: Any) -> Callable[[hr.Workspace], object]:
    given = {"name": "other", "schema": "id long"} | changes
    return lambda ws: ws.collection(**given)


def evolve(schema: str = SCHEMA, **changes: Any) -> Callable[[hr.Workspace], object]:
    return define(name="orders", schema=schema, **({"key": "name"} | changes))


def frames(offset: int, beyond: int = 0) -> Callable[[hr.Workspace], object]:
    def read(ws: hr.Workspace) -> object:
        [journal] = ws.journals(hr.selector("orders"))
        head = Offset(journal.head + beyond)
        listed = JournalInfo(journal.id, journal.name, journal.begin, head, journal.frames)
        return list(ws.frames(listed, offset))

    return read


def finished(ws: hr.Workspace) -> object:
    tx = ws.publisher().begin()
    invitation = tx.invite()
    tx.rollback()
    return ws.join(invitation)


HERE = (
    "{location} has no collection 'order', only: log, orders;"
    " create it with `headrace collections create`"
)
CALLS: list[tuple[Callable[[hr.Workspace], object], type[HeadraceError], str]] = [
    (
        lambda ws: ws.append("order", [GOOD]),
        NotFoundError,
        HERE,
    ),
    (lambda ws: ws.table("order"), NotFoundError, HERE),
    (
        lambda ws: ws.delete_collection("order"),
        NotFoundError,
        "there is no collection 'order';"
        " create it with `headrace collections create` or `ws.collection`",
    ),
    (
        lambda ws: ws.delete_journals(["orders/0000", "orders/0009"]),
        NotFoundError,
        "there is no journal 'orders/0009'; see `headrace journals list`",
    ),
    (
        define(schema="id long, at interval"),
        SchemaError,
        f"DDL: expected a type at position 12, found 'interval'; use one of the types {SUPPORTED}",
    ),
    (
        define(schema="id"),
        SchemaError,
        f"DDL: expected a type at position 2, found the end; use one of the types {SUPPORTED}",
    ),
    (
        define(schema="id long DEFAULT 1"),
        SchemaError,
        "DDL: expected a comma or the end at position 8, found 'DEFAULT';"
        f" use one of the types {SUPPORTED}",
    ),
    (
        define(schema="id long; x"),
        SchemaError,
        "DDL: cannot read '; x' at position 7;"
        " put unusual names in backquotes and comments in quotes",
    ),
    (define(schema=""), SchemaError, "the schema has no fields; name at least one field"),
    (
        define(schema=pa.schema([("t", pa.time32("s"))])),
        SchemaError,
        "field 't' has Arrow type time32[s], which a collection cannot hold;"
        f" cast it to one of {SUPPORTED}; instants are timestamp[us, tz=UTC]",
    ),
    (
        define(key="ix"),
        SchemaError,
        "key field 'ix' is not in the schema; choose among id",
    ),
    (
        define(partition_by="p"),
        SchemaError,
        "partition field 'p' is not in the schema; add it, or leave it out",
    ),
    (define(journals=0), UsageError, "journals must be 1 to 1000000, got 0; choose such a number"),
    (
        define(journals=1.5),
        UsageError,
        "journals must be 1 to 1000000, got 1.5; choose such a number",
    ),
    (
        define(retention_s=-1),
        UsageError,
        "retention_s must be 0 to 9007199254740992, got -1;"
        " choose such a number; 0 keeps everything",
    ),
    (
        define(name="a b"),
        UsageError,
        "'a b' cannot name a collection;"
        " use parts of letters, digits, '.', '_' and '-', joined by '/'",
    ),
    (
        evolve("id string, name string, price decimal(6,2), note string"),
        SchemaError,
        "field 'id' changed from bigint to string; add a field under a new name instead",
    ),
    (
        evolve("name string, price decimal(6,2), note string"),
        SchemaError,
        "field 'id' is NOT NULL, and is not declared; declare it; make a new collection without it",
    ),
    (
        evolve(SCHEMA + ", more int NOT NULL"),
        SchemaError,
        "new field 'more' is NOT NULL, but old documents have no value; make it nullable",
    ),
    (
        evolve(key="id"),
        ExistsError,
        "collection orders exists with key name, not id; use the same, or another name",
    ),
    (
        lambda ws: ws.publisher("x" * 600),
        UsageError,
        "the publisher's name 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'… has 600 characters;"
        " use at most 512 bytes",
    ),
    (
        lambda ws: ws.append(5, []),  # type: ignore[arg-type]
        UsageError,
        "5 is no collection; give its name, or what ws.collection returned",
    ),
    (
        lambda ws: hr.open(None),  # type: ignore[arg-type]
        UsageError,
        "None is no location of a workspace; give a directory, or an owner's address",
    ),
    (
        lambda ws: ws.publisher(None),  # type: ignore[arg-type]
        UsageError,
        "None cannot name a publisher; use text, or give no name",
    ),
    (
        lambda ws: ws.publisher("\ud800"),
        UsageError,
        "'\\ud800' cannot name a publisher; use text that UTF-8 can hold",
    ),
    (
        lambda ws: ws.publisher("job").begin().commit("text"),  # type: ignore[arg-type]
        UsageError,
        "the payload is of type str; encode it into bytes",
    ),
    (
        lambda ws: ws.join("zz"),
        UsageError,
        "'zz' is not an invitation; pass what `invite` returned",
    ),
    (finished, FencedError, "the transaction to join has ended; run this part again in a new one"),
    (
        frames(0),
        BehindRetentionError,
        "orders/0000: offset 0 was removed by retention; it begins at {begin};"
        " read from {begin} and accept the gap, or restore from a copy",
    ),
    (
        frames(10_000, beyond=10_000),
        AheadOfHeadError,
        "orders/0000: offset {beyond} is beyond its head {head};"
        " it belongs to another incarnation of the journal; start again from its begin",
    ),
    (
        lambda ws: ws.table("orders", start={"orders/0000": ws.journals()[1].begin + 1}),
        OffsetError,
        "orders/0000: offset {inside} lies inside a frame;"
        " read from an offset that a frame begins or ends at",
    ),
    (
        lambda ws: ws.table("orders", start={"log/0000": 0}),
        UsageError,
        "the read of 'orders' has no journal 'log/0000';"
        " start at journals that `headrace journals list` names",
    ),
]


@pytest.fixture(autouse=True)
def collections(owner: hr.Workspace) -> None:
    """Collections with one document, after retention removed an earlier one."""
    owner.collection("orders", SCHEMA, key="name", retention_bytes=1)
    owner.collection("log", "id long")
    owner.append("orders", [{"id": 0, "name": "removed"}])
    owner.append("orders", [{"id": 1, "name": "kept"}])
    owner.maintain()


def assert_works_and_holds(workspace: hr.Workspace, orders: list[int], log: list[int]) -> None:
    def ids(name: str) -> list[int]:
        return [each["id"] for each in documents(workspace, name)]

    assert (ids("orders"), ids("log")) == (orders, log)
    with workspace.publisher() as tx:
        tx.append("orders", [{"id": 8, "name": "after"}])
        tx.append("log", [{"id": 8}])
    assert (ids("orders"), ids("log")) == ([*orders, 8], [*log, 8])
    assert [each.name for each in workspace.collections()] == ["log", "orders"]


def outside(workspace: hr.Workspace, given: Any) -> None:
    workspace.append("orders", given)


def rolled_back(workspace: hr.Workspace, given: Any) -> None:
    with workspace.publisher() as tx:
        tx.append("log", [{"id": 5}])
        tx.append("orders", [GOOD])
        tx.append("orders", given)


def left_out(workspace: hr.Workspace, given: Any) -> None:
    with workspace.publisher() as tx:
        tx.append("log", [{"id": 5}])
        try:
            tx.append("orders", given)
        finally:
            tx.commit()


# proves G2, G27
@pytest.mark.parametrize(("given", "message"), DOCUMENTS, ids=[m[:40] for _, m in DOCUMENTS])
@pytest.mark.parametrize("append", [outside, rolled_back, left_out])
def test_bad_documents_are_named_and_nothing_of_them_is_seen(
    workspace: hr.Workspace,
    given: Any,
    message: str,
    append: Callable[[hr.Workspace, Any], None],
) -> None:
    with pytest.raises(DocumentError) as refused:
        append(workspace, given)
    assert str(refused.value) == message
    assert_works_and_holds(workspace, [1], [5] if append is left_out else [])


# proves G27
@pytest.mark.parametrize(
    ("call", "kind", "message"), CALLS, ids=[f"{k.__name__}: {m[:40]}" for _, k, m in CALLS]
)
def test_bad_calls_say_what_is_wrong_and_what_to_do(
    workspace: hr.Workspace,
    call: Callable[[hr.Workspace], object],
    kind: type[HeadraceError],
    message: str,
) -> None:
    [journal] = workspace.journals(hr.selector("orders"))
    before = [each.definition for each in workspace.collections()]
    with pytest.raises(kind) as refused:
        call(workspace)
    assert type(refused.value) is kind
    assert str(refused.value) == (
        message.replace("{location}", workspace.location)
        .replace("{begin}", str(journal.begin))
        .replace("{head}", str(journal.head))
        .replace("{beyond}", str(journal.head + 10_000))
        .replace("{inside}", str(journal.begin + 1))
    )
    assert "\n" not in str(refused.value)
    assert [each.definition for each in workspace.collections()] == before
    assert_works_and_holds(workspace, [1], [])
