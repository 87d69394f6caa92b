"""`headrace run`: tasks of a file, run on Spark; and files that cannot be run."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from tests.cli.completed_run import TRANSFERS, transfer
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import SPARK_S, Running, headrace

TASK = """
import headrace as hr

@hr.materialization(None, sources=["debits"], sink=hr.parquet("kept"), name="{name}")
def {function}(cut):
    return cut.debits
"""


def task(name: str, function: str = "") -> str:
    return TASK.format(name=name, function=function or name)


def error(run: Run, *arguments: str) -> str:
    result = run("run", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    return line


@pytest.mark.spark
def test_tasks_beside_each_other_run_until_they_are_interrupted_and_go_on(here: Path) -> None:
    """Each is fed by the other meanwhile; and one is run again by its name."""
    transfer(here)
    arguments = ("run", "tasks.py", "-t", "moves", "-t", "kept", "--shards", "1", "--json")
    with Running(*arguments, patience_s=SPARK_S) as running:
        rows = dict.fromkeys(("moves", "kept"), 0)
        while min(rows.values()) < 2 * TRANSFERS:
            said = msgspec.json.decode(running.line())
            assert (said["state"], said["shards"]) == ("running", 1)
            rows[said["task"]] = said["rows"]
        code, out, aside = running.end(signal.SIGINT)
    assert code == 0, aside
    ended = [msgspec.json.decode(line) for line in out.splitlines()]
    assert {each["task"] for each in ended if each["state"] == "stopped"} == {"moves", "kept"}
    assert "Traceback" not in aside
    transfer(here)
    by_name = ("task", "run", "moves", "--once", "--restarts", "0", "-w", "bank")
    again = headrace(*by_name, cwd=here, timeout_s=SPARK_S)
    assert again.returncode == 0, again.stderr
    assert f"{2 * TRANSFERS} rows" in again.stdout.decode().splitlines()[-1]
    with hr.open("bank") as ws:
        assert ws.table("moves").num_rows == 4 * TRANSFERS
    assert hr.parquet("kept").table().num_rows == 2 * TRANSFERS


def test_a_file_that_is_not_there(run: Run) -> None:
    assert error(run, "no.py") == ("error: there is no file no.py; name a Python file that exists")
    assert error(run, ".").startswith("error: there is no file .;")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import headrace\nx = (\n", "line 2: SyntaxError: '(' was never closed"),
        ("def f():\n    1 / 0\nf()\n", "line 2: ZeroDivisionError: division by zero"),
        ("assert False", "line 1: AssertionError"),
        ("import nowhere_at_all", "line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit(3)", "line 1: SystemExit: 3"),
        ("raise ValueError('two\\nlines')", "line 1: ValueError: two lines"),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(run: Run, text: str, said: str) -> None:
    Path("tasks.py").write_text(text)
    assert error(run, "tasks.py") == f"error: tasks.py, {said}; correct it"


def test_an_error_of_ours_in_a_file_says_what_to_do(run: Run) -> None:
    Path("tasks.py").write_text("import headrace as hr\nhr.open('data').table('nothing')\n")
    assert error(run, "tasks.py").startswith("error: data has no collection 'nothing', only: ")


def test_a_file_without_tasks(run: Run) -> None:
    Path("tasks.py").write_text("import headrace\n")
    assert error(run, "tasks.py") == (
        "error: tasks.py defines no task and no pipeline; use @hr.derivation or @hr.materialization"
        " on a function, or keep hr.pipeline(...) in a variable, at its top level"
    )


def test_two_tasks_of_one_name(run: Run) -> None:
    Path("tasks.py").write_text(task("moves", "first") + task("moves", "second"))
    assert error(run, "tasks.py") == (
        "error: tasks.py defines task 'moves' twice; give each its own name"
    )


def test_a_task_that_the_file_does_not_define(run: Run) -> None:
    Path("tasks.py").write_text(task("moves") + task("kept"))
    assert error(run, "tasks.py", "-t", "kept", "-t", "totals") == (
        "error: no task 'totals' is defined; use one of moves, kept"
    )


@pytest.mark.parametrize("options", [("--shards", "-1"), ("--restarts", "-1")])
def test_counts_below_none_are_refused(run: Run, options: tuple[str, str]) -> None:
    result = run("run", "tasks.py", *options)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_log_that_cannot_be_written_is_found_before_spark_is_started(run: Run) -> None:
    Path("tasks.py").write_text(
        "import headrace as hr\nws = hr.open('data')\n" + task("moves").replace("None", "ws")
    )
    result = run("run", "tasks.py", "--once", "--log", "nowhere/spark.log")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "error: Spark's log cannot be written to nowhere/spark.log: No such file or directory;"
        " name another file"
    )


def test_its_help_says_how_a_file_is_written(ok: Ok) -> None:
    shown = " ".join(ok("run", "--help").split())
    assert "hr.pipeline(...); a task is a function under @hr.derivation or" in shown
    assert 'Code below `if __name__ == "__main__":` does not run' in shown
