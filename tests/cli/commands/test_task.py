"""`headrace task`: what a workspace knows of tasks that were run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.completed_run import TRANSFERS, CompletedRun, transfer
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import SPARK_S, Running, headrace

COLUMNS = ["task", "state", "since", "checkpoint", "behind", "sources", "sink", "error"]


def error(run: Run, *arguments: str) -> str:
    result = run("task", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    return line


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


# -- tasks that run, fail and are taken away -----------------------------------------------------

FAILING = """
import headrace as hr

ws = hr.open("bank")

@hr.materialization(ws, sources=["debits"], sink=hr.parquet("kept"), shards=1)
def broken(cut):
    raise ValueError("no such account")

@hr.materialization(ws, sources=["credits"], sink=hr.parquet("other"), shards=1)
def waiting(cut):
    return cut.credits
"""


def states(ok: Ok) -> dict[str, tuple[str, str | None]]:
    listed = json.loads(ok("task", "list", "-w", "bank", "--json"))
    return {each["task"]: (each["state"], each["error"]) for each in listed}


@pytest.mark.spark
def test_a_task_that_failed_is_told_from_one_that_never_ran(ok: Ok, run: Run, here: Path) -> None:
    transfer(here)
    (here / "tasks.py").write_text(FAILING)
    failed = headrace("run", "tasks.py", "--once", "--restarts", "0", timeout_s=SPARK_S)
    assert failed.returncode == 1
    assert b"broken: failed at checkpoint 0: 0 rows in 0 checkpoints" in failed.stdout
    found = states(ok)
    assert found["waiting"] == ("never run", None)
    state, error = found["broken"]
    assert state == "failed"
    assert error is not None
    assert "no such account" in error
    shown = json.loads(ok("task", "show", "waiting", "-w", "bank", "--json"))
    assert shown["behind_bytes"] > 0
    assert "no such account" in ok("task", "list", "-w", "bank")
    # What is deleted is gone; the next run of that name begins anew.
    ok("task", "delete", "broken", "-w", "bank", "--yes")
    assert states(ok) == {"waiting": ("never run", None)}
    assert not list(Path("bank/tasks").glob("broken*"))
    assert not list(Path("bank/runs").glob("broken*"))


@pytest.mark.spark
def test_a_running_task_is_stopped_from_elsewhere_and_one_that_is_killed_has_failed(
    ok: Ok, run: Run, here: Path
) -> None:
    transfer(here)
    with Running("run", "tasks.py", "--json", patience_s=SPARK_S) as running:
        rows = dict.fromkeys(("moves", "kept"), 0)
        while min(rows.values()) < 2 * TRANSFERS:
            said = json.loads(running.line())
            rows[said["task"]] = said["rows"]
        assert states(ok) == {"moves": ("running", None), "kept": ("running", None)}
        for command in ("reset", "delete"):
            assert error(run, command, "moves", "-w", "bank", "--yes").startswith(
                f"error: task 'moves' runs as process {running.process.pid} on "
            )
        stopped = headrace("task", "stop", "moves", "-w", "bank", timeout_s=SPARK_S)
        assert stopped.returncode == 0, stopped.stderr
        assert stopped.stdout.startswith(b"moves is stopped, at checkpoint ")
        assert states(ok) == {"moves": ("stopped", None), "kept": ("running", None)}
        assert ok("task", "stop", "moves", "-w", "bank") == "moves does not run\n"
        running.end(signal.SIGKILL)
        state, why = states(ok)["kept"]
        assert state == "failed"
        assert why is not None
        assert why.startswith(f"its process {running.process.pid} was killed")
    generation = json.loads(ok("task", "show", "moves", "-w", "bank", "--json"))["generation"]
    assert run("task", "reset", "moves", "-w", "bank", input="n\n").exit_code == 1
    ok("task", "reset", "moves", "-w", "bank", "--yes")
    shown = json.loads(ok("task", "show", "moves", "-w", "bank", "--json"))
    assert shown["generation"] != generation
    assert (shown["state"], shown["last"]) == ("never run", 0)
    assert shown["behind_bytes"] > 0
