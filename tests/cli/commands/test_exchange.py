"""`headrace exchange`: what queries have stored, whether it is whole, and what can be removed."""

from __future__ import annotations

import json
import re
import struct
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import headrace as hr
from headrace.cli.options.completion import complete_query
from headrace.exchange import (
    MapTask,
    OutputRegistry,
    PinnedStage,
)
from headrace.exchange.format.publication import checksum, encode_record
from headrace.storage import Objects, open_objects
from tests.cli.conftest import Ok, Run
from tests.exchange.outputs import TASK, write

STORED = ("--objects", "stored")
ROWS, PER_UNIT, PARTITIONS = 40, 10, 3


def error(run: Run, *arguments: str, code: int = 1, stdout: str = "") -> str:
    result = run("exchange", *arguments)
    assert (result.exit_code, result.stdout) == (code, stdout)
    [line] = result.stderr.splitlines()
    return line.removeprefix("error: ")


@pytest.fixture
def revenue() -> int:
    """A query in the workspace that commands use if they are told no other; returns its number."""
    with hr.open("headrace-data") as workspace:
        rows = pa.table({"key": [n % 3 for n in range(ROWS)], "n": range(ROWS)})
        query = hr.scan(rows, workspace, rows_per_unit=PER_UNIT)
        run = query.group_by("key", partitions=PARTITIONS).agg(n="count").run("revenue")
        assert run.table().num_rows == 3
        return run.query_id


@pytest.fixture
def stored() -> Objects:
    """Map outputs of no workspace: query 1, which nobody named."""
    objects = open_objects("stored")
    write(objects, {0: range(50), 1: [1], 2: [2]}, now_ms=time.time_ns() // 1_000_000)
    return objects


# -- what there is -------------------------------------------------------------------------------


@pytest.mark.long
def test_queries_are_listed_with_what_they_hold(ok: Ok, revenue: int) -> None:
    header, line = ok("exchange", "list").splitlines()
    assert header.split("  ")[0] == "query"
    assert line.split()[:6] == ["revenue", str(revenue), "2", "7", "7", "7"]
    [found] = json.loads(ok("exchange", "list", "--json"))
    assert (found["query"], found["number"]) == ("revenue", str(revenue))
    assert {(each["map_tasks"], each["published"]) for each in found["stages"]} == {(4, 4), (3, 3)}
    assert found["bytes"] == sum(each["bytes"] for each in found["stages"]) > 0
    stages = ok("exchange", "list", "--stages").splitlines()[1:]
    assert {tuple(line.split()[:3]) for line in stages} == {
        ("revenue", "0", "4"),
        ("revenue", "1", "3"),
    }
    assert sum("FinalHashAggregate(key: n=count)" in line for line in stages) == 1


def test_a_query_that_stored_nothing_yet_is_listed_by_its_name(ok: Ok) -> None:
    def fail(rows: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no")

    with hr.open("headrace-data") as workspace, pytest.raises(hr.errors.UnitError):
        hr.scan(pa.table({"n": [1]}), workspace).map(fail).run("failing")
    assert ok("exchange", "list").splitlines()[1].split()[0] == "failing"
    assert ok("exchange", "delete", "failing", "--yes") == "failing is deleted; freed 0 B\n"


@pytest.mark.long
def test_stages_tasks_and_files_of_a_query(ok: Ok, revenue: int) -> None:
    text = ok("exchange", "inspect", "revenue")
    assert "held by  nobody" in text
    assert "stage 1  ShuffleRead(3 partitions) > FinalHashAggregate(key: n=count)" in text
    shown = json.loads(ok("exchange", "inspect", str(revenue), "--stage", "0", "--json"))
    [stage] = shown["stages"]
    assert (stage["places"], stage["rows"], len(stage["tasks"])) == ([0], 4 * 3, 4)
    task = stage["tasks"][0]
    assert (task["published"]["attempt"], task["published"]["generation"]) == (1, 1)
    assert sum(each["rows"] for each in task["partitions"]) == 3
    assert task["map_task"] in ok("exchange", "inspect", "revenue", "--stage", "0")
    files = ok("exchange", "inspect", "revenue", "--task", task["map_task"])
    assert all(each["checksum"] in files for each in task["partitions"])
    assert f"{revenue}/{stage['stage']}/{task['map_task']}/1" in files
    assert "stage 1" not in files


def test_a_stage_that_the_last_plan_lacks_is_told(ok: Ok, revenue: int) -> None:
    with hr.open("headrace-data") as workspace:
        hr.scan(pa.table({"n": [1]}), workspace).run("revenue")
    text = ok("exchange", "list", "--stages")
    assert text.count("not in the plan that ran last") == 2


def test_the_skew_and_the_holders_of_a_stage_are_shown(ok: Ok, stored: Objects) -> None:
    with PinnedStage(stored, 1, 2, holder="process 7 on there"):
        text = ok("exchange", "inspect", "1", *STORED)
        assert "held by  process 7 on there until 20" in text
        shown = json.loads(ok("exchange", "inspect", "1", *STORED, "--json"))
    [pin], [stage] = shown["pins"], shown["stages"]
    assert (pin["stage"], pin["holder"]) == ("2", "process 7 on there")
    sizes = stage["partition_bytes"]
    assert len(sizes) == 4
    assert sizes[3] == 0
    factor = sizes[0] / ((sizes[1] + sizes[2]) / 2)
    assert (stage["skew"]["largest"], stage["skew"]["factor"]) == (0, factor)
    assert f"{factor:.1f}x" in text


@pytest.mark.long
def test_nothing_stored_is_no_error(ok: Ok, run: Run) -> None:
    hr.open("headrace-data").close()
    assert ok("exchange", "list").splitlines()[1:] == []
    assert ok("exchange", "list", "--json") == "[]\n"
    assert ok("exchange", "verify") == "0 outputs with 0 rows read: nothing is damaged\n"
    assert ok("exchange", "gc") == "there is nothing to remove\n"
    assert error(run, "inspect", "revenue") == (
        "no query 'revenue' is stored;"
        " nothing is stored here: check the workspace, or run a query first"
    )


def test_a_shell_completes_the_names_of_queries(revenue: int) -> None:
    class Context:
        params: dict[str, Any] = {"workspace": "headrace-data"}  # noqa: RUF012

    context: Any = Context()
    assert complete_query(context, "rev") == ["revenue"]
    assert complete_query(context, "x") == []


# -- whether it is whole -------------------------------------------------------------------------


def test_what_is_whole_is_said_to_be(ok: Ok, revenue: int) -> None:
    text = f"7 outputs with {4 * 3 + 3} rows read: nothing is damaged\n"
    assert ok("exchange", "verify") == ok("exchange", "verify", "revenue") == text


def test_a_file_that_was_truncated_is_named(ok: Ok, run: Run, revenue: int) -> None:  # proves G20
    part = sorted(Path("headrace-data/objects").glob("shuffle/*/*/*/1/part-*.ipc"))[0]
    part.write_bytes(part.read_bytes()[:-1])
    result = run("exchange", "verify")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: 1 file of 7 outputs cannot be used;"
        " run the query again: it computes again what it needs of them\n"
    )
    _, line = result.stdout.splitlines()
    file = str(part.relative_to("headrace-data/objects"))
    assert line.startswith(f"revenue  {file}  is damaged: ")
    found = json.loads(run("exchange", "verify", "revenue", "--json").stdout)
    [damage] = found["damages"]
    assert (damage["file"], damage["number"]) == (file, str(revenue))
    assert f"/{damage['stage']}/{damage['map_task']}/{damage['attempt']}/" in file


@pytest.mark.long
def test_an_index_of_a_newer_version_is_named_and_kept(
    ok: Ok, run: Run, stored: Objects
) -> None:  # proves G27
    written = OutputRegistry(stored).lookup(TASK)
    file = TASK.file(1, "index.bin")
    newer = struct.pack("<4sII", b"FFQI", 2, 2) + b"{}"
    stored.put(file, newer)
    why = "has the version 2, this Headrace reads up to 1"
    result = run("exchange", "verify", *STORED)
    assert (result.exit_code, result.stdout.splitlines()[1]) == (1, f"1      {file}  {why}")
    shown = ok("exchange", "inspect", "1", *STORED, "--stage", "2")
    assert f"{file} {why}" in shown
    assert "1 map task cannot be read" in ok("exchange", "inspect", "1", *STORED)
    # Cleanup cannot know what it is, and goes on with the rest.
    write(stored, {0: [1]}, replaces=written.attempt)
    assert "nothing to remove" in ok("exchange", "gc", *STORED, "--ttl", "0s")
    assert stored.get(file) == newer


def test_a_path_that_leaves_its_directory_is_damage(ok: Ok, run: Run, stored: Objects) -> None:
    # proves G20
    Path("stored/shuffle/1/2/3/secret").write_text("not yours")
    output = OutputRegistry(stored).lookup(TASK)
    for name in ("index.json", "index.bin"):
        key = TASK.file(1, name)
        # As long as before, because index.bin tells how long it is.
        stored.put(key, stored.get(key).replace(b'"part-0.ipc"', b'"../secret" '))
    forged = msgspec.structs.replace(
        output, index_checksum=checksum(stored.get(TASK.file(1, "index.json")))
    )
    stored.put(TASK.publication(1), encode_record(forged))
    result = run("exchange", "verify", *STORED)
    assert result.exit_code == 1
    why = "'../secret' is not a file below its attempt"
    for name in ("index.json", "index.bin"):
        assert re.search(f"{TASK.file(1, name)} +is damaged: {why}", result.stdout)
    shown = ok("exchange", "inspect", "1", *STORED, "--task", "3")
    assert why in shown
    assert "not yours" not in shown


# -- freeing space -------------------------------------------------------------------------------


def test_replaced_attempts_are_removed_after_their_ttl(ok: Ok, stored: Objects) -> None:
    # proves G22
    write(stored, {0: [1]}, replaces=1)
    size = sum(info.bytes for info in stored.list(TASK.attempt_directory(1)))
    assert ok("exchange", "gc", *STORED) == "there is nothing to remove\n"
    listed = ok("exchange", "gc", *STORED, "--ttl", "0s", "--dry-run").splitlines()
    assert listed[1].split()[:6] == ["to", "remove", "1", "2", "3", "1"]
    assert listed[-1].startswith("would remove 1 attempt, ")
    assert len(stored.list(TASK.attempt_directory(1))) > 0, "nothing was removed"
    found = json.loads(ok("exchange", "gc", *STORED, "--ttl", "0s", "--query", "1", "--json"))
    assert (found["is_dry_run"], found["bytes"], found["held"]) == (False, size, [])
    assert stored.list(TASK.attempt_directory(1)) == []
    assert OutputRegistry(stored).lookup(TASK).attempt == 2


def test_what_a_reader_holds_stays_and_the_pin_is_named(ok: Ok, stored: Objects) -> None:
    # proves G22
    write(stored, {0: [1]}, replaces=1)
    with PinnedStage(stored, 1, 2, holder="process 7 on there"):
        text = ok("exchange", "gc", *STORED, "--ttl", "0s")
        [held] = json.loads(ok("exchange", "gc", *STORED, "--ttl", "0s", "--json"))["held"]
    assert "by process 7 on there until 20" in text
    assert text.splitlines()[-1] == "removed 0 attempts, freed 0 B; 1 held by readers"
    assert held["held_by"][0].startswith("process 7 on there until ")
    assert len(stored.list(TASK.attempt_directory(1))) > 0


def test_only_the_query_that_is_named_is_cleaned_up(ok: Ok, stored: Objects) -> None:
    other = MapTask(2, 2, 3)
    write(stored, {0: [1]}, other)
    for task in (TASK, other):
        write(stored, {0: [1]}, task, replaces=1)
    assert (
        ok("exchange", "gc", *STORED, "--ttl", "0s", "--query", "2")
        .splitlines()[-1]
        .startswith("removed 1 attempt, freed ")
    )
    assert [len(stored.list(each.attempt_directory(1))) for each in (TASK, other)] == [5, 0]


@pytest.mark.long
def test_a_query_is_deleted_unless_somebody_holds_it(ok: Ok, run: Run, revenue: int) -> None:
    with hr.open("headrace-data") as workspace:
        objects = workspace.objects
    with PinnedStage(objects, revenue, 1, holder="process 7 on there"):
        line = error(run, "delete", "revenue", "--yes")
    assert line.startswith("query 'revenue' is held by process 7 on there until 20")
    assert line.endswith("; delete it when nobody computes or reads it")
    refused = run("exchange", "delete", "revenue", input="n\n")
    assert (refused.exit_code, "nothing was deleted" in refused.stderr) == (1, True)
    assert len(objects.list("shuffle")) > 0
    assert ok("exchange", "delete", "revenue", "--yes").startswith("revenue is deleted; freed ")
    assert objects.list("shuffle") == []
    assert ok("exchange", "list").splitlines()[1:] == []


def test_a_query_that_runs_is_not_deleted(run: Run) -> None:
    lines = []

    def look(rows: pa.RecordBatch) -> pa.RecordBatch:
        lines.append(error(run, "delete", "running", "--yes"))
        return rows

    with hr.open("headrace-data") as workspace:
        hr.scan(pa.table({"n": [1]}), workspace).map(look, version="1").run("running")
    assert lines[0].startswith("query 'running' is held by process ")


# -- wrong input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "inspect x", "verify", "gc", "delete x"])
def test_a_workspace_that_is_not_there(run: Run, here: Path, command: str) -> None:  # proves G27
    line = error(run, *command.split())
    assert line.startswith("./headrace-data is not a workspace; ")
    line = error(run, *command.split(), "--objects", "nowhere")
    assert line == "there is no directory nowhere; name one that holds objects, or s3://…"
    assert list(here.iterdir()) == [], "nothing is made"


@pytest.mark.parametrize("command", ["inspect", "verify", "delete", "gc --query"])
def test_a_query_that_is_not_there(run: Run, revenue: int, command: str) -> None:  # proves G27
    assert error(run, *command.split(), "revnue") == ("no query 'revnue' is stored; use revenue")
    assert error(run, *command.split(), "x") == "no query 'x' is stored; use one of revenue"


def test_stages_and_tasks_that_are_not_there(run: Run, revenue: int) -> None:  # proves G27
    line = error(run, "inspect", "revenue", "--stage", "7")
    assert line == "no stage 7 is stored; use one of 0, 1"
    line = error(run, "inspect", "revenue", "--task", "7")
    assert line.startswith("no map task 7 is stored; use one of ")
    assert line.endswith(" and 2 more")


@pytest.mark.parametrize("ttl", ["soon", "-1h", "24", "", "1y"])
def test_a_ttl_that_is_no_time(run: Run, revenue: int, ttl: str) -> None:  # proves G27
    line = error(run, "gc", "--ttl", ttl, code=2)
    assert f"{ttl!r} is not a time: write it like 7d" in line


def test_objects_that_are_none(run: Run) -> None:  # proves G27
    line = error(run, "list", "--objects", "ftp://there/x")
    assert line.startswith("'ftp://there/x' cannot hold objects; ")


def test_an_address_has_no_objects_here(run: Run) -> None:  # proves G27
    with hr.open("headrace-data") as workspace:
        owner = json.loads(Path("headrace-data/owner.json").read_text())
        line = error(run, "list", "-w", str(workspace.address), "--token", owner["token"])
    assert "open it by its directory" in line
