"""`headrace task`: what a workspace knows of tasks that were run, and what their run said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import headrace as hr
from tests.cli.completed_run import TRANSFERS, CompletedRun
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import headrace

COLUMNS = ["task", "state", "since", "checkpoint", "behind", "sources", "sink", "error"]


def error(run: Run, *arguments: str) -> str:
    result = run("task", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    return line


def test_each_task_says_how_far_it_got_and_the_next_reads_what_it_published(
    completed_run: CompletedRun,
) -> None:
    assert completed_run.code == 0, completed_run.stderr
    log = completed_run.directory.resolve() / "bank" / "spark.log"
    assert Path(completed_run.stderr.removeprefix("note: Spark logs to ").strip()).name == log.name
    assert completed_run.stderr.count("\n") == 1
    assert "Stage" not in log.read_text()
    lines = completed_run.stdout.splitlines()
    assert "moves: runs from checkpoint 0, 1 member" in lines
    for name in ("moves", "kept"):
        [done] = [line for line in lines if line.startswith(f"{name}: done")]
        assert re.fullmatch(
            rf"{name}: done at checkpoint \d+: {2 * TRANSFERS} rows in \d+ checkpoints?, no"
            rf" restarts, [\d.]+ s, to .*{name}",
            done,
        )
    assert [line.partition(":")[0] for line in lines] == sorted(
        (line.partition(":")[0] for line in lines), reverse=True
    )
    kept = hr.parquet(completed_run.directory / "kept").table()
    assert sorted(kept["cents"].to_pylist()) == sorted(
        sign * number for number in range(TRANSFERS) for sign in (-1, 1)
    )


def test_the_list_has_a_line_for_each_task(ok: Ok, completed_run: CompletedRun) -> None:
    header, *lines = ok("task", "list", "-w", completed_run.workspace).splitlines()
    assert header.split() == COLUMNS
    assert [line.split()[:2] for line in lines] == [["kept", "stopped"], ["moves", "stopped"]]
    kept, moves = lines
    assert kept.split()[4:] == ["0", "B", "moves", "Parquet", "files", "in",
                                str(completed_run.directory / "kept")]  # fmt: skip
    assert moves.split()[4:] == ["0", "B", "debits,", "credits", "collection", "moves"]


def test_the_list_as_json(ok: Ok, completed_run: CompletedRun) -> None:
    kept, moves = json.loads(ok("task", "list", "-w", completed_run.workspace, "--json"))
    assert (kept["task"], moves["task"]) == ("kept", "moves")
    assert moves["last"] == moves["applied"] >= 1
    assert (moves["state"], moves["error"], moves["behind_bytes"]) == ("stopped", None, 0)
    assert moves["since"].endswith("Z")
    assert moves["about"]["sources"] == ["debits", "credits"]
    assert moves["about"]["file"] == str(completed_run.file)


def test_one_task_is_shown_with_what_it_reads_and_writes(
    ok: Ok, completed_run: CompletedRun
) -> None:
    lines = ok("task", "show", "moves", "-w", completed_run.workspace).splitlines()
    fields = dict(line.strip().split(maxsplit=1) for line in lines)
    shown = json.loads(ok("task", "show", "moves", "-w", completed_run.workspace, "--json"))
    assert fields["task"] == shown["task"] == "moves"
    assert fields["generation"] == shown["generation"]
    assert int(fields["checkpoint"]) == shown["last"]
    assert fields["sources"] == "debits, credits"
    assert fields["sink"] == shown["about"]["sink"] == "collection moves"
    assert fields["state"] == shown["state"] == "stopped"
    assert fields["behind"] == f"0 B beyond checkpoint {shown['last']}"
    assert fields["applied"] == "exactly once"
    assert fields["shards"] == "1"
    assert fields["file"] == str(completed_run.file)


def test_its_checkpoints_end_with_the_last(ok: Ok, completed_run: CompletedRun) -> None:
    last = json.loads(ok("task", "show", "moves", "-w", completed_run.workspace, "--json"))["last"]
    header, *lines = ok("task", "checkpoints", "moves", "-w", completed_run.workspace).splitlines()
    assert header.split() == ["checkpoint", "stored", "as", "size"]
    found = json.loads(ok("task", "checkpoints", "moves", "-w", completed_run.workspace, "--json"))
    assert [each["number"] for each in found] == [int(line.split()[0]) for line in lines]
    assert found[-1]["number"] == last
    assert all(each["bytes"] > 0 for each in found)


@pytest.mark.parametrize("command", ["show", "checkpoints", "run", "stop", "reset", "delete"])
def test_a_task_that_nobody_ran(run: Run, completed_run: CompletedRun, command: str) -> None:
    assert error(run, command, "totals", "-w", completed_run.workspace) == (
        "error: there is no task 'totals'; check its name, and the workspace"
    )


@pytest.mark.parametrize(
    "command", [("list",), ("show", "moves"), ("checkpoints", "moves"), ("run", "moves")]
)
def test_a_workspace_that_is_not_there(run: Run, command: tuple[str, ...]) -> None:
    assert error(run, *command).startswith("error: ./headrace-data is not a workspace; ")


def test_a_workspace_without_tasks_has_an_empty_list(ok: Ok, bank: None) -> None:
    assert ok("task", "list").split() == COLUMNS
    assert json.loads(ok("task", "list", "--json")) == []


def test_a_task_whose_file_is_gone(run: Run, completed_run: CompletedRun) -> None:
    moved = completed_run.file.rename(completed_run.file.with_suffix(".moved"))
    try:
        assert error(run, "run", "moves", "-w", completed_run.workspace, "--once") == (
            f"error: task 'moves' was defined in {completed_run.file}, which does not exist;"
            " run it with `headrace run FILE.py`"
        )
    finally:
        moved.rename(completed_run.file)


def test_a_task_that_its_file_does_not_define_any_more(
    run: Run, completed_run: CompletedRun
) -> None:
    before = completed_run.file.read_text()
    completed_run.file.write_text("import headrace\n")
    try:
        assert error(run, "run", "moves", "-w", completed_run.workspace, "--once").startswith(
            f"error: {completed_run.file} defines no task; "
        )
    finally:
        completed_run.file.write_text(before)


def test_a_file_that_opens_another_workspace_from_here(
    completed_run: CompletedRun, here: Path
) -> None:
    """Its path is relative, and the task would begin anew somewhere else."""
    done = headrace("task", "run", "moves", "-w", completed_run.workspace, "--once")
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert line == (
        f"error: {completed_run.file} opens {here / 'bank'}, not {completed_run.workspace};"
        " use an absolute path in the file, or go to the directory where you ran it before"
    )
