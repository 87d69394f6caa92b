"""What `headrace read` prints, `headrace publish` takes as the same documents."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import headrace as hr
from headrace.journal.documents.schema import to_ddl
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import headrace
from tests.journal.documents.random_documents import Arbitrary, exact


def _fill(seed: int, name: str, columns: int, documents: int) -> str:
    """A collection of arbitrary documents; returns its DDL."""
    arbitrary = Arbitrary(Random(seed))
    schema = arbitrary.schema(columns)
    with hr.open("headrace-data") as ws:
        ws.append(ws.collection(name, schema), arbitrary.batch(schema, documents))
    return to_ddl(schema)


def _check_equal(first: str, second: str, documents: int) -> None:
    with hr.open("headrace-data") as ws:
        there, here = ws.table(first), ws.table(second)
    assert here.num_rows == there.num_rows == documents
    assert here.schema.equals(there.schema)
    # Without a key, a shuffle may give documents in another order.
    assert _documents(here) == _documents(there)


def _documents(table: pa.Table) -> list[str]:
    return sorted(map(repr, zip(*exact(table).values(), strict=True)))


def _check_round_trip(seed: int) -> None:
    """Many columns at once: to start a process takes longer than to print a document."""
    ddl = _fill(seed, "there", columns=60, documents=12)
    made = headrace("collections", "create", "here", ddl)
    assert made.returncode == 0, made.stderr
    printed = headrace("read", "there")
    assert (printed.returncode, printed.stderr) == (0, b"")
    Path("there.ndjson").write_bytes(printed.stdout)
    published = headrace("publish", "here=there.ndjson")
    assert (published.returncode, published.stderr) == (0, b"")
    _check_equal("there", "here", 12)


@pytest.mark.long
def test_read_and_publish_are_the_identity() -> None:
    # proves G30
    _check_round_trip(seed=1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100, 125))
def test_read_and_publish_are_the_identity_for_many_schemas(seed: int) -> None:
    # proves G30
    _check_round_trip(seed)


@pytest.mark.parametrize("options", [("--shards", "2"), ("--limit", "1000"), ("--meta",)])
def test_every_way_to_print_ndjson_can_be_published_or_is_refused(
    ok: Ok, run: Run, options: tuple[str, ...]
) -> None:
    # proves G30
    ddl = _fill(2, "there", columns=12, documents=5)
    ok("collections", "create", "here", ddl)
    result = run("publish", "here", input=ok("read", "there", *options))
    if options == ("--meta",):
        assert "stdin line 1 has field '_journal', which is not in the schema" in result.stderr
        return
    assert result.exit_code == 0, result.stderr
    _check_equal("there", "here", 5)


def test_documents_of_one_journal_can_be_published_again(ok: Ok) -> None:
    # proves G30
    ok("collections", "create", "here", _fill(3, "there", columns=12, documents=5))
    ok("publish", "here", input=ok("journals", "read", "there/0000"))
    _check_equal("there", "here", 5)


@pytest.mark.parametrize("options", [("--json",), ("--format", "table")])
def test_what_is_no_ndjson_is_refused(ok: Ok, run: Run, options: tuple[str, ...]) -> None:
    # proves G30
    ok("collections", "create", "here", _fill(4, "there", columns=5, documents=3))
    result = run("publish", "here", input=ok("read", "there", *options))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: stdin line 1 is ")
    assert ok("read", "here") == ""


def test_what_python_reads_can_be_appended_again(ok: Ok) -> None:
    # proves G30
    ok("collections", "create", "here", "m map<date, struct<b: binary>>, f double, t timestamp")
    line = (
        '{"m":[{"key":"2024-02-29","value":{"b":"/wA="}}],"f":"-Infinity",'
        '"t":"2024-02-29T12:30:00Z"}\n'
    )
    ok("publish", "here", input=line)
    with hr.open("headrace-data") as ws:
        table = ws.table("here")
        ws.append("here", table)
        ws.append("here", table.to_pylist())
    assert ok("read", "here") == line * 3
