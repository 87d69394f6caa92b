from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest

import headrace as hr
from tests.cli.conftest import Ok, rows
from tests.cli.headrace_process import HEADRACE, PATIENCE_S


def accounts(ndjson: str) -> list[str]:
    return [row["account"] for row in rows(ndjson)]


def entry(key: Any, value: Any) -> dict[str, Any]:
    """Of a map."""
    return {"key": key, "value": value}


def test_ndjson_is_one_document_a_line_in_a_pipe(ok: Ok, bank: None) -> None:
    assert ok("read", "bank/debits") == (
        '{"account":"ann","cents":-500,"region":"eu"}\n{"account":"bob","cents":-7,"region":"us"}\n'
    )


@pytest.mark.long
def test_json_is_one_array(ok: Ok, bank: None) -> None:
    ok("publish", "bank/debits", input='{"account":"cay","region":"eu"}')
    found = json.loads(ok("read", "bank/debits", "--json"))
    assert found == rows(ok("read", "bank/debits"))
    assert len(found) == 3
    assert ok("read", "bank/debits", "--json", "--limit", "0") == "[]\n"


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
    assert ok("read", "empty", "--json") == "[]\n"
    assert ok("read", "empty", "--format", "table") == "no documents\n"


def test_every_type_has_its_json(ok: Ok) -> None:
    fields = {
        "flag": ("boolean", True, True),
        "wide": ("bigint", 2**60, 2**60),
        "real": ("double", 1.5, 1.5),
        "nan": ("double", float("nan"), "NaN"),
        "price": ("decimal(10,2)", Decimal("1.50"), "1.50"),
        "text": ("string", 'a "b"\n', 'a "b"\n'),
        "raw": ("binary", b"\xff\x00", "/wA="),
        "day": ("date", date(2026, 11, 15), "2026-11-15"),
        "at": ("timestamp", datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006Z"),
        "local": ("timestamp_ntz", datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        "many": ("array<date>", [date(2026, 1, 2)], ["2026-01-02"]),
        "named": ("struct<x: binary>", {"x": b"hi"}, {"x": "aGk="}),
        "counts": ("map<string, int>", {"a": 1}, [entry("a", 1)]),
        "by_day": ("map<date, int>", {date(2026, 1, 2): 1}, [entry("2026-01-02", 1)]),
        "by_number": ("map<int, decimal(3,1)>", {7: Decimal("0.5")}, [entry(7, "0.5")]),
        "by_price": ("map<decimal(3,1), int>", {Decimal("0.5"): 1}, [entry("0.5", 1)]),
        "missing": ("string", None, None),
    }
    ddl = ", ".join(f"{name} {kind}" for name, (kind, _, _) in fields.items())
    ok("collections", "create", "types", ddl)
    with hr.open("headrace-data") as ws:
        ws.append("types", [{name: given for name, (_, given, _) in fields.items()}])
    expected = {name: shown for name, (_, _, shown) in fields.items()}
    assert rows(ok("read", "types")) == [expected]
    assert len(ok("read", "types", "--format", "table").splitlines()) == 2


@pytest.mark.long
def test_maps_are_lists_of_their_entries(ok: Ok) -> None:
    day, text = date(2026, 1, 2), "2026-01-02"
    fields: dict[str, tuple[str, Any, Any]] = {
        "by_flag": ("map<boolean, int>", [(True, 1)], [entry(True, 1)]),
        "by_list": ("map<array<int>, int>", [([1, 2], 3)], [entry([1, 2], 3)]),
        "by_group": (
            "map<struct<x: date>, binary>",
            [({"x": day}, b"hi")],
            [entry({"x": text}, "aGk=")],
        ),
        "deep": (
            "array<struct<m: map<array<int>, map<string, date>>>>",
            [{"m": [([1], [("a", day)])]}, {"m": []}, {"m": None}],
            [{"m": [entry([1], [entry("a", text)])]}, {"m": []}, {"m": None}],
        ),
        "empty": ("map<array<int>, int>", [], []),
        "twice": ("map<string, int>", [("a", 1), ("a", 2)], [entry("a", 1), entry("a", 2)]),
        "missing": ("map<array<int>, int>", None, None),
    }
    ddl = ", ".join(f"{name} {kind}" for name, (kind, _, _) in fields.items())
    ok("collections", "create", "maps", ddl)
    with hr.open("headrace-data") as ws:
        schema = ws.collection("maps").schema
        columns = [pa.array([fields[each.name][1]], each.type) for each in schema]
        ws.append("maps", pa.record_batch(columns, schema=schema))
    expected = {name: shown for name, (_, _, shown) in fields.items()}
    assert rows(ok("read", "maps")) == [expected]
    assert rows(ok("journals", "read", "maps/0000")) == [expected]
    assert '[{"key":[1,2],"value":3}]' in ok("read", "maps", "--format", "table")


FAR_DAYS = [
    (2_932_896, "9999-12-31"),
    (2_932_897, "+10000-01-01"),
    (5_000_000, "+15659-07-15"),
    (-719_162, "0001-01-01"),
    (-719_163, "0000-12-31"),
    (-719_528, "0000-01-01"),
    (-719_529, "-0001-12-31"),
    (-5_000_000, "-11720-06-19"),
    (2**31 - 1, "+5881580-07-11"),
]
FAR_INSTANTS = [
    (253_402_300_799_999_999, "9999-12-31T23:59:59.999999"),
    (253_402_300_800_000_000, "+10000-01-01T00:00:00"),
    (2**62, "+148108-07-06T14:00:27.387904"),
    (-(2**62), "-144169-06-28T09:59:32.612096"),
]


def test_times_that_python_does_not_know_are_text_like_the_others(ok: Ok) -> None:
    kinds = "day date, at timestamp, local timestamp_ntz, days array<date>, by_day map<date,int>"
    ok("collections", "create", "far", kinds)
    with hr.open("headrace-data") as ws:
        schema = ws.collection("far").schema
        for days, instant in zip(FAR_DAYS, cycle(FAR_INSTANTS), strict=False):
            row = [days[0], instant[0], instant[0], [days[0], 0], [(days[0], 7)]]
            columns = [far_column(value, schema.field(n).type) for n, value in enumerate(row)]
            ws.append("far", pa.record_batch(columns, schema=schema))
    found = rows(ok("read", "far"))
    expected = [
        {
            "day": day,
            "at": f"{instant}Z",
            "local": instant,
            "days": [day, "1970-01-01"],
            "by_day": [entry(day, 7)],
        }
        for (_, day), (_, instant) in zip(FAR_DAYS, cycle(FAR_INSTANTS), strict=False)
    ]
    assert found == expected
    assert "+5881580-07-11" in ok("read", "far", "--format", "table")


def far_column(value: Any, kind: pa.DataType) -> pa.Array:
    """A column of one value, its times given as numbers."""
    if pt.is_list(kind):
        return pa.ListArray.from_arrays([0, len(value)], far_values(value, kind.value_type), kind)
    if pt.is_map(kind):
        [(key, item)] = value
        keys = far_values([key], kind.key_type)
        return pa.MapArray.from_arrays([0, 1], keys, pa.array([item], kind.item_type), kind)
    return far_values([value], kind)


def far_values(values: list[int], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int32() if pt.is_date(kind) else pa.int64()).cast(kind)


@pytest.mark.long
def test_where_selects_partitions(ok: Ok, bank: None) -> None:
    ok("publish", "bank/debits", input='{"account":"cay"}\n{"account":"dan","region":""}')
    read = ("read", "bank/debits", "--where")
    assert accounts(ok(*read, "region=eu")) == ["ann"]
    assert accounts(ok(*read, "region=eu", "--where", "region=us")) == ["ann", "bob"]
    assert accounts(ok(*read, "region=%null")) == ["cay"]
    assert accounts(ok(*read, "region=")) == ["dan"]
    assert accounts(ok(*read, "region=mars")) == []


@pytest.mark.long
def test_a_limit_ends_the_reading(ok: Ok, bank: None) -> None:
    ok("publish", "bank/credits", input='{"account":"zoe"}\n' * 10)
    for limit in (0, 1, 5, 11, 12, 10**30):
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


@pytest.mark.long
def test_nothing_uncommitted_is_read(ok: Ok, bank: None) -> None:
    # proves G2
    with hr.open("headrace-data") as ws:
        transaction = ws.publisher().begin()
        transaction.append("bank/credits", [{"account": "x" * (5 << 20)}])
        assert accounts(ok("read", "bank/credits")) == ["cay"]
        transaction.commit()
        assert len(accounts(ok("read", "bank/credits"))) == 2


@pytest.mark.long
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


@pytest.mark.long
def test_it_imports_no_pandas(bank: None) -> None:
    """PyArrow would, which takes longer than the command does."""
    program = "import sys\nfrom headrace.cli import main\ntry:\n    main()\nfinally:\n    "
    program += "sys.stderr.write(str(sys.modules.get('pandas')))"
    done = subprocess.run(
        [sys.executable, "-c", program, "read", "bank/credits"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "None")
    assert rows(done.stdout) == [{"account": "cay", "cents": 507}]
