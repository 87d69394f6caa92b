"""`headrace pipeline`: what is known of jobs, what they would do, and what can be freed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import Running
from tests.cli.pipeline_files import PER_UNIT, ROWS, calls, stored, write_pipeline

PATIENCE_S = 60.0
UNITS = ROWS // PER_UNIT


def error(run: Run, *arguments: str) -> str:
    result = run("pipeline", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    return line


@pytest.fixture
def done(ok: Ok) -> None:
    """A job that is done, with two dead letters."""
    write_pipeline(failing=(3, 17))
    ok("run", "answers.py")


@pytest.mark.long
def test_the_status_of_all_jobs_and_of_one(ok: Ok, done: None) -> None:
    header, line = ok("pipeline", "status", "-w", "data").splitlines()
    assert header.split() == ["job", "outcome", "since", "seen", "cost", "what"]
    assert line.split()[:2] == ["answers", "done"]
    [listed] = json.loads(ok("pipeline", "status", "-w", "data", "--json"))
    one = json.loads(ok("pipeline", "status", "answers", "-w", "data", "--json"))
    assert listed == one
    assert (one["outcome"], one["cost_in_all"]) == ("done", (ROWS - 2) / 2)
    lines = ok("pipeline", "status", "answers", "-w", "data").splitlines()
    assert lines[0].startswith("answers: done; answer 6/6, sink 6/6 units; 60 calls; cost 29; 2 ")
    assert lines[2].split() == ["answer", "6/6", "60", "0", "0", "60", "0", "2", "29"]


@pytest.mark.long
def test_the_list_of_jobs_says_first_why_one_paused(ok: Ok, run: Run) -> None:
    write_pipeline(budget=10)
    assert run("run", "answers.py").exit_code == 4
    line = ok("pipeline", "status", "-w", "data").splitlines()[1]
    one = ok("pipeline", "status", "answers", "-w", "data").splitlines()[0]
    why = one.removeprefix("answers: paused: ")
    assert why.startswith("the job's budget of 10 is spent")
    assert line.endswith(f"  {why}")


@pytest.mark.crash
def test_a_job_whose_process_was_killed_is_shown_so(ok: Ok) -> None:
    write_pipeline()
    Path("wait").touch()
    with Running("run", "answers.py", patience_s=PATIENCE_S) as running:
        while not Path("waiting").exists() and running.process.poll() is None:
            pass
        alive = json.loads(ok("pipeline", "status", "answers", "-w", "data", "--json"))
        assert alive["outcome"] == "running"
    Path("wait").unlink()
    dead = json.loads(ok("pipeline", "status", "answers", "-w", "data", "--json"))
    assert dead["outcome"] == "killed"
    shown = json.loads(ok("pipeline", "inspect", "answers", "-w", "data", "--json"))
    assert shown["stages"]["answer"]["calls"]["in_doubt"] >= 1
    assert shown["stages"]["answer"]["calls"]["under_way"] == 0


@pytest.mark.long
def test_a_plan_tells_calls_and_cost_before_anything_is_paid(ok: Ok) -> None:
    write_pipeline()
    [before] = json.loads(ok("pipeline", "plan", "answers.py", "--json"))
    assert (before["units"], before["rows"], before["is_new"]) == (UNITS, ROWS, True)
    assert (before["stages"][0]["calls_max"], before["stages"][0]["cost_max"]) == (ROWS, ROWS / 2)
    assert calls() == []
    ok("run", "answers.py")
    write_pipeline(version="2")
    [after] = json.loads(ok("pipeline", "plan", "answers.py", "answers", "--json"))
    assert (after["is_new"], after["stages"][0]["calls_recorded"]) == (False, ROWS)
    assert [each["stage"] for each in after["changes"]] == ["answer"]
    text = ok("pipeline", "plan", "answers.py")
    assert "the operator of stage 'answer' has changed" in text
    assert len(calls()) == ROWS


@pytest.mark.long
def test_what_is_stored_of_a_job(ok: Ok, done: None) -> None:
    shown = json.loads(ok("pipeline", "inspect", "answers", "-w", "data", "--json"))
    assert list(shown["stages"]) == ["source", "answer", "sink"]
    counts = shown["stages"]["answer"]["calls"]
    assert (counts["results"], counts["failures"], counts["in_doubt"]) == (ROWS - 2, 0, 2)
    topics = {(each["stage"], each["is_dead"]): each for each in shown["topics"]}
    source, dead = topics["source", False], topics["answer", True]
    assert (source["messages"], source["rows"]) == (UNITS, ROWS)
    assert [(each["group"], each["behind"]) for each in source["readers"]] == [("answer.r1", 0)]
    assert (topics["answer", False]["rows"], dead["rows"]) == (ROWS - 2, 2)
    assert shown["payload_bytes"] > 0
    text = ok("pipeline", "inspect", "answers", "-w", "data")
    assert "answer.r1 0 behind" in text
    one = ok("pipeline", "inspect", "answers", "answer", "-w", "data")
    assert "sink.r1" in one


@pytest.mark.long
def test_what_a_restart_left_is_freed_and_the_next_run_needs_nothing_of_it(
    ok: Ok, run: Run, done: None
) -> None:
    assert json.loads(ok("pipeline", "gc", "answers", "-w", "data", "--dry-run", "--json"))[
        "topics"
    ] == []  # fmt: skip
    write_pipeline(version="2", rows=ROWS)
    ok("run", "answers.py", "--on-change", "restart")
    found = json.loads(ok("pipeline", "gc", "answers", "-w", "data", "--dry-run", "--json"))
    assert len(found["topics"]) == 5
    assert sum(each["results"] for each in found["ledger"]) == ROWS - 2
    refused = run("pipeline", "gc", "answers", "-w", "data", input="n\n")
    assert refused.exit_code == 1
    assert "nothing was deleted" in refused.stderr
    assert ok("pipeline", "gc", "answers", "-w", "data", "--yes").startswith("answers: removed 5 ")
    assert ok("pipeline", "gc", "answers", "-w", "data", "-y") == (
        "answers has nothing that its next run does not need\n"
    )
    paid = len(calls())
    ok("run", "answers.py")
    assert len(calls()) == paid
    # Everything that is kept can be read: all of it is processed again by another sink.
    text = Path("answers.py").read_text().replace("def store(", "def store_again(")
    Path("answers.py").write_text(text.replace(".sink(store)", ".sink(store_again)"))
    before = len(stored())
    ok("run", "answers.py", "--on-change", "recompute")
    assert (len(stored()) - before, len(calls())) == (ROWS, paid)


@pytest.mark.long
def test_a_job_that_is_deleted_begins_from_scratch(ok: Ok, run: Run, done: None) -> None:
    assert ok("pipeline", "delete", "answers", "-w", "data", "--yes").startswith("answers is del")
    assert ok("pipeline", "status", "-w", "data").splitlines()[1:] == []
    assert error(run, "inspect", "answers", "-w", "data").startswith("error: there is no job")
    ok("run", "answers.py")
    assert len(calls()) == 2 * ROWS


@pytest.mark.long
def test_a_running_job_keeps_what_it_has(run: Run) -> None:
    write_pipeline()
    Path("wait").touch()
    with Running("run", "answers.py", patience_s=PATIENCE_S) as running:
        while not Path("waiting").exists() and running.process.poll() is None:
            pass
        for command in (("gc",), ("delete", "--yes")):
            line = error(run, *command, "answers", "-w", "data")
            assert line.startswith("error: job 'answers' is already running in this workspace; ")
        Path("wait").unlink()
        assert running.wait()[0] == 0


@pytest.mark.parametrize("command", ["status", "inspect", "gc", "delete"])
def test_a_job_that_nobody_ran(ok: Ok, run: Run, bank: None, command: str) -> None:
    assert error(run, command, "nope") == (
        "error: there is no job 'nope' in ./headrace-data; check its name, and the workspace"
    )
    assert ok("pipeline", "status").split() == ["job", "outcome", "since", "seen", "cost", "what"]


@pytest.mark.parametrize("command", ["status", "inspect x", "gc x", "delete x"])
def test_a_workspace_that_is_not_there(run: Run, command: str) -> None:
    assert error(run, *command.split()).startswith("error: ./headrace-data is not a workspace; ")


@pytest.mark.long
def test_a_stage_that_the_job_does_not_have(run: Run, done: None) -> None:
    assert error(run, "inspect", "answers", "nope", "-w", "data") == (
        "error: job 'answers' has no stage 'nope'; name one of 'source', 'answer', 'sink'"
    )


@pytest.mark.long
def test_a_plan_of_a_file_without_pipelines(run: Run) -> None:
    assert error(run, "plan", "no.py").startswith("error: there is no file no.py; ")
    Path("empty.py").write_text("import headrace\n")
    assert error(run, "plan", "empty.py").startswith("error: empty.py defines no pipeline; ")
    write_pipeline()
    assert error(run, "plan", "answers.py", "nope") == (
        "error: no pipeline 'nope' is defined; use one of answers"
    )
