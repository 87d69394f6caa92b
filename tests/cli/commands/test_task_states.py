"""`headrace task`: tasks that run, fail and are taken away."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.completed_run import TRANSFERS, transfer
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import SPARK_S, Running, headrace

pytestmark = pytest.mark.spark

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
            refused = run("task", command, "moves", "-w", "bank", "--yes")
            assert (refused.exit_code, refused.stdout) == (1, "")
            [line] = refused.stderr.splitlines()
            assert line.startswith(f"error: task 'moves' runs as process {running.process.pid} on ")
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
