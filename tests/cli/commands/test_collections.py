from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ok, Run

CREATE = ("collections", "create", "orders", "id long, day date")


def test_a_new_collection_is_created_as_it_was_defined(ok: Ok) -> None:
    options = "--key id --partition-by day --journals 3 --retention 7d --retention-bytes 10GiB"
    made = json.loads(ok(*CREATE, *options.split(), "--json"))
    shown = json.loads(ok("collections", "show", "orders", "--json"))
    assert made.pop("outcome") == "created"
    assert shown.pop("offsets") == {}
    assert made == shown
    assert shown == {
        "name": "orders",
        "schema": "id bigint, day date",
        "version": 0,
        "versions": ["id bigint, day date"],
        "key": ["id"],
        "partition_by": ["day"],
        "journals": 0,
        "journals_per_partition": 3,
        "retention_s": 7 * 86400,
        "retention_bytes": 10 * 1024**3,
        "frames": 0,
        "bytes": 0,
    }


@pytest.mark.long
def test_creating_again_changes_nothing_or_evolves_the_schema(ok: Ok) -> None:
    assert ok(*CREATE) == "created orders: id bigint, day date\n"
    assert ok(*CREATE) == "unchanged orders: id bigint, day date\n"
    assert (
        ok("collections", "create", "orders", "id long, day date, note string")
        == "changed orders: id bigint, day date, note string\n"
    )
    shown = json.loads(ok("collections", "show", "orders", "--json"))
    assert shown["versions"] == ["id bigint, day date", "id bigint, day date, note string"]


def test_a_definition_that_is_refused_leaves_no_workspace_behind(run: Run, here: Path) -> None:
    assert run("collections", "create", "orders", "id lng").exit_code == 1
    assert list(here.iterdir()) == []


def test_list_shows_every_collection_in_a_pipe_as_plain_lines(ok: Ok, bank: None) -> None:
    header, *lines = ok("collections", "list").splitlines()
    assert header.split() == [
        "collection",
        "key",
        "partitioned",
        "by",
        "journals",
        "size",
        "schema",
    ]
    assert [line.split()[0] for line in lines] == ["bank/credits", "bank/debits"]
    assert lines[0].rstrip().endswith("account string, cents bigint")


def test_list_of_an_empty_workspace_says_so(ok: Ok) -> None:
    ok(*CREATE)
    ok("collections", "delete", "orders", "--yes")
    assert ok("collections", "list") == "no collections in ./headrace-data\n"
    assert ok("collections", "list", "--json") == "[]\n"


def test_show_tells_a_person_what_there_is(ok: Ok, bank: None) -> None:
    lines = [line.rstrip() for line in ok("collections", "show", "bank/credits").splitlines()]
    assert "schema          account string, cents bigint" in lines
    assert "key             account" in lines
    assert "retention       everything is kept" in lines
    assert lines[-2].split()[0] == "bank/credits/0000"
    assert lines[-1].split()[0] == "bank/credits/0001"


@pytest.mark.parametrize("answer", ["y\n", "yes\n", "Y\n"])
def test_delete_asks_and_takes_yes_for_an_answer(run: Run, bank: None, answer: str) -> None:
    result = run("collections", "delete", "bank/credits", input=answer)
    assert (result.exit_code, result.stdout) == (0, "deleted bank/credits\n")
    assert result.stderr.startswith("Delete bank/credits with 2 journals (")
    assert "bank/credits" not in run("collections", "list", "--json").stdout


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yep\n"])
def test_delete_takes_anything_else_for_a_no(run: Run, bank: None, answer: str) -> None:
    result = run("collections", "delete", "bank/credits", input=answer)
    assert result.exit_code == 1
    assert result.stderr.endswith("error: nothing was deleted; answer y, or pass --yes\n")
    assert "bank/credits" in run("collections", "list", "--json").stdout
