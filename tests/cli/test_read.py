from __future__ import annotations

import json
import subprocess
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import headrace as hr
from tests.cli.conftest import Ok, rows
from tests.cli.processes import HEADRACE, PATIENCE_S


def accounts(ndjson: str) -> list[str]:
    return [row["account"] for row in rows(ndjson)]


def test_ndjson_is_one_document_a_line_in_a_pipe(ok: Ok, bank: None) -> None:
    assert ok("read", "bank/debits") == (
        '{"account":"ann","cents":-500,"region":"eu"}\n{"account":"bob","cents":-7,"region":"us"}\n'
    )


def test_json_is_one_array(ok: Ok, bank: None) -> None:
    ok("publish", "bank/debits", input='{"account":"cay","region":"eu"}')
    found = json.loads(ok("read", "bank/debits", "--format", "json"))
    assert found == rows(ok("read", "bank/debits"))
    assert len(found) == 3
    assert ok("read", "bank/debits", "--format", "json", "--limit", "0") == "[]\n"


def test_a_table_is_for_people(ok: Ok, bank: None) -> None:
    ok("publish", "bank/debits", input='{"account":"tab\\there","cents":1}')
    lines = [line.split() for line in ok("read", "bank/debits", "--format", "table").splitlines()]
    assert lines == [
        ["account", "cents", "region"],
        ['"tab\\there"', "1", "null"],
        ["ann", "-500", "eu"],
        ["bob", "-7", "us"],
    ]


def test_a_long_table_is_cut_and_says_so(ok: Ok, bank: None) -> None:
    ok("publish", "bank/credits", input='{"account":"zoe"}\n' * 200)
    cut = ok("read", "bank/credits", "--format", "table").splitlines()
    assert cut[-1] == "the first 100 documents; for more use --limit N or --format ndjson"
    assert len(cut) == 1 + 100 + 1
    asked = ok("read", "bank/credits", "--format", "table", "--limit", "150").splitlines()
    assert len(asked) == 1 + 150


def test_an_empty_collection_reads_as_nothing(ok: Ok) -> None:
    ok("collections", "create", "empty", "a string")
    assert ok("read", "empty") == ""
    assert ok("read", "empty", "--format", "json") == "[]\n"
    assert ok("read", "empty", "--format", "table") == "no documents\n"


def test_every_type_has_its_json(ok: Ok) -> None:
    fields = {
        "flag": ("boolean", True, True),
        "wide": ("bigint", 2**60, 2**60),
        "real": ("double", 1.5, 1.5),
        "nan": ("double", float("nan"), None),
        "price": ("decimal(10,2)", Decimal("1.50"), "1.50"),
        "text": ("string", 'a "b"\n', 'a "b"\n'),
        "raw": ("binary", b"\xff\x00", "/wA="),
        "day": ("date", date(2026, 11, 15), "2026-11-15"),
        "at": ("timestamp", datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006Z"),
        "local": ("timestamp_ntz", datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        "many": ("array<date>", [date(2026, 1, 2)], ["2026-01-02"]),
        "named": ("struct<x: binary>", {"x": b"hi"}, {"x": "aGk="}),
        "counts": ("map<string, int>", {"a": 1}, {"a": 1}),
        "by_day": ("map<date, int>", {date(2026, 1, 2): 1}, {"2026-01-02": 1}),
        "by_number": ("map<int, decimal(3,1)>", {7: Decimal("0.5")}, {"7": "0.5"}),
        "missing": ("string", None, None),
    }
    ddl = ", ".join(f"{name} {kind}" for name, (kind, _, _) in fields.items())
    ok("collections", "create", "types", ddl)
    with hr.open("headrace-data") as ws:
        ws.append("types", [{name: given for name, (_, given, _) in fields.items()}])
    expected = {name: shown for name, (_, _, shown) in fields.items()}
    assert rows(ok("read", "types")) == [expected]
    assert len(ok("read", "types", "--format", "table").splitlines()) == 2


def test_where_selects_partitions(ok: Ok, bank: None) -> None:
    ok("publish", "bank/debits", input='{"account":"cay"}\n{"account":"dan","region":""}')
    read = ("read", "bank/debits", "--where")
    assert accounts(ok(*read, "region=eu")) == ["ann"]
    assert accounts(ok(*read, "region=eu", "--where", "region=us")) == ["ann", "bob"]
    assert accounts(ok(*read, "region=%null")) == ["cay"]
    assert accounts(ok(*read, "region=")) == ["dan"]
    assert accounts(ok(*read, "region=mars")) == []


def test_a_limit_ends_the_reading(ok: Ok, bank: None) -> None:
    ok("publish", "bank/credits", input='{"account":"zoe"}\n' * 10)
    for limit in (0, 1, 5, 11, 12):
        assert len(accounts(ok("read", "bank/credits", "--limit", str(limit)))) == min(limit, 11)


def test_from_offset_begins_there_in_that_journal_only(ok: Ok, bank: None) -> None:
    shown = json.loads(ok("collections", "show", "bank/debits", "--json"))
    name = "bank/debits/region=eu/0000"
    ok("publish", "bank/debits", input='{"account":"cay","region":"eu"}')
    start = f"{name}={shown['offsets'][name]['head']}"
    assert accounts(ok("read", "bank/debits", "--from-offset", start)) == ["cay", "bob"]


def test_meta_says_where_a_document_stands(ok: Ok, bank: None) -> None:
    [ann, bob] = rows(ok("read", "bank/debits", "--meta"))
    [frame, _] = rows(ok("journals", "read", "bank/debits/region=eu/0000", "--raw"))
    assert ann["_journal"] == "bank/debits/region=eu/0000"
    assert (ann["_producer"], ann["_clock"]) == (frame["producer"], frame["clock"])
    assert bob["_producer"] == ann["_producer"]


def test_documents_of_older_schemas_are_read_under_the_newest(ok: Ok, bank: None) -> None:
    ok("collections", "create", "bank/credits", "account string, cents long, note string",
       "--key", "account", "--journals", "2")  # fmt: skip
    assert rows(ok("read", "bank/credits")) == [{"account": "cay", "cents": 507, "note": None}]


def test_nothing_uncommitted_is_read(ok: Ok, bank: None) -> None:
    # proves G2
    with hr.open("headrace-data") as ws:
        transaction = ws.publisher().begin()
        transaction.append("bank/credits", [{"account": "x" * (5 << 20)}])
        assert accounts(ok("read", "bank/credits")) == ["cay"]
        transaction.commit()
        assert len(accounts(ok("read", "bank/credits"))) == 2


def test_a_reader_that_leaves_ends_the_command_without_a_word(ok: Ok, bank: None) -> None:
    Path("many.ndjson").write_text('{"account":"zoe","cents":1}\n' * 50_000)
    ok("publish", "bank/credits=many.ndjson")
    command = [HEADRACE, "read", "bank/credits"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout
        assert reading.stderr
        assert reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr.read() == b""
        assert reading.wait(PATIENCE_S) == 141
