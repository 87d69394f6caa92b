"""`headrace task`: what a workspace knows of tasks that were run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ok, Run
from tests.cli.processes import headrace
from tests.cli.ran import Ran


def error(run: Run, *arguments: str) -> str:
    result = run("task", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    return line


def test_the_list_has_a_line_for_each_task(ok: Ok, ran: Ran) -> None:
    header, *lines = ok("task", "list", "-w", ran.workspace).splitlines()
    assert header.split() == ["task", "checkpoint", "sources", "sink", "stored"]
    assert [line.split()[0] for line in lines] == ["kept", "moves"]
    kept, moves = lines
    assert kept.split()[2:-2] == ["moves", "Parquet", "files", "in", str(ran.directory / "kept")]
    assert moves.split()[2:-2] == ["debits,", "credits", "collection", "moves"]


def test_the_list_as_json(ok: Ok, ran: Ran) -> None:
    kept, moves = json.loads(ok("task", "list", "-w", ran.workspace, "--json"))
    assert (kept["task"], moves["task"]) == ("kept", "moves")
    assert moves["last"] >= 1
    assert moves["about"]["sources"] == ["debits", "credits"]
    assert moves["about"]["file"] == str(ran.file)


def test_one_task_is_shown_with_what_it_reads_and_writes(ok: Ok, ran: Ran) -> None:
    lines = ok("task", "show", "moves", "-w", ran.workspace).splitlines()
    fields = dict(line.strip().split(maxsplit=1) for line in lines)
    shown = json.loads(ok("task", "show", "moves", "-w", ran.workspace, "--json"))
    assert fields["task"] == shown["task"] == "moves"
    assert fields["generation"] == shown["generation"]
    assert int(fields["checkpoint"]) == shown["last"]
    assert fields["sources"] == "debits, credits"
    assert fields["sink"] == shown["about"]["sink"] == "collection moves"
    assert fields["applied"] == "exactly once"
    assert fields["shards"] == "1"
    assert fields["file"] == str(ran.file)


def test_its_checkpoints_end_with_the_last(ok: Ok, ran: Ran) -> None:
    last = json.loads(ok("task", "show", "moves", "-w", ran.workspace, "--json"))["last"]
    header, *lines = ok("task", "checkpoints", "moves", "-w", ran.workspace).splitlines()
    assert header.split() == ["checkpoint", "stored", "as", "size"]
    found = json.loads(ok("task", "checkpoints", "moves", "-w", ran.workspace, "--json"))
    assert [each["number"] for each in found] == [int(line.split()[0]) for line in lines]
    assert found[-1]["number"] == last
    assert all(each["bytes"] > 0 for each in found)


@pytest.mark.parametrize("command", ["show", "checkpoints", "run"])
def test_a_task_that_nobody_ran(run: Run, ran: Ran, command: str) -> None:
    assert error(run, command, "totals", "-w", ran.workspace) == (
        "error: there is no task 'totals'; check its name, and the workspace"
    )


@pytest.mark.parametrize(
    "command", [("list",), ("show", "moves"), ("checkpoints", "moves"), ("run", "moves")]
)
def test_a_workspace_that_is_not_there(run: Run, command: tuple[str, ...]) -> None:
    assert error(run, *command).startswith("error: ./headrace-data is not a workspace; ")


def test_a_workspace_without_tasks_has_an_empty_list(ok: Ok, bank: None) -> None:
    assert ok("task", "list").split() == ["task", "checkpoint", "sources", "sink", "stored"]
    assert json.loads(ok("task", "list", "--json")) == []


def test_a_task_whose_file_is_gone(run: Run, ran: Ran) -> None:
    moved = ran.file.rename(ran.file.with_suffix(".moved"))
    try:
        assert error(run, "run", "moves", "-w", ran.workspace, "--once") == (
            f"error: task 'moves' was defined in {ran.file}, which is not there;"
            " run it with `headrace run FILE.py`"
        )
    finally:
        moved.rename(ran.file)


def test_a_task_that_its_file_does_not_define_any_more(run: Run, ran: Ran) -> None:
    before = ran.file.read_text()
    ran.file.write_text("import headrace\n")
    try:
        assert error(run, "run", "moves", "-w", ran.workspace, "--once").startswith(
            f"error: {ran.file} defines no task; "
        )
    finally:
        ran.file.write_text(before)


def test_a_file_that_opens_another_workspace_from_here(ran: Ran, here: Path) -> None:
    """Its path is relative, and the task would begin anew somewhere else."""
    done = headrace("task", "run", "moves", "-w", ran.workspace, "--once")
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert line == (
        f"error: {ran.file} opens {here / 'bank'}, and not {ran.workspace};"
        " use an absolute path there, or run this in the directory that it is meant for"
    )
