"""`headrace run` with pipelines: how runs end, what they say, and that nothing is paid twice."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

import headrace as hr
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import SPARK_S, Running, headrace
from tests.cli.pipeline_files import ROWS, calls, stored, write_pipeline

PATIENCE_S = 60.0


def error(run: Run, *arguments: str) -> str:
    result = run("run", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    return line


@pytest.mark.long
def test_a_pipeline_runs_to_its_end_and_a_second_run_pays_nothing(ok: Ok) -> None:
    write_pipeline()
    first = ok("run", "answers.py").splitlines()
    assert re.fullmatch(
        r"answers: done; answer 6/6, sink 6/6 units; 60 calls; cost 30; [\d.]+ s", first[-1]
    )
    assert sorted(stored()) == sorted(calls()) == list(range(ROWS))
    again = ok("run", "answers.py").splitlines()
    assert re.fullmatch(
        r"answers: done; answer 6/6, sink 6/6 units; 0 calls; cost 0 \(30 in all runs\); [\d.]+ s",
        again[-1],
    )
    assert len(calls()) == ROWS


@pytest.mark.long
def test_json_has_one_object_at_the_end(ok: Ok) -> None:
    write_pipeline(failing=(3, 17))
    last = json.loads(ok("run", "answers.py", "--json").splitlines()[-1])
    assert (last["job"], last["outcome"], last["cost"]) == ("answers", "done", (ROWS - 2) * 0.5)
    answer = last["stages"]["answer"]
    assert (answer["calls"], answer["rows_in"], answer["rows_out"]) == (ROWS, ROWS, ROWS - 2)
    assert (answer["units"], answer["units_total"], answer["dead_letters"]) == (6, 6, 2)


@pytest.mark.long
def test_a_budget_pauses_with_an_exit_code_of_its_own_and_a_larger_one_goes_on(
    run: Run, ok: Ok
) -> None:
    write_pipeline(budget=10)
    paused = run("run", "answers.py")
    assert (paused.exit_code, paused.stderr) == (4, "")
    assert paused.stdout.splitlines()[-1].startswith(
        "answers: paused: the job's budget of 10 is spent at stage 'answer': 10 is paid or in"
    )
    assert len(calls()) == 20
    assert run("run", "answers.py").exit_code == 4
    assert len(calls()) == 20
    write_pipeline(budget=100)
    ok("run", "answers.py")
    assert sorted(calls()) == list(range(ROWS))


@pytest.mark.crash
def test_ctrl_c_stops_it_and_the_next_run_pays_for_the_rest(here: Path, ok: Ok) -> None:
    write_pipeline()
    Path("wait").touch()
    with Running("run", "answers.py", "--json", patience_s=PATIENCE_S) as running:
        while not Path("waiting").exists() and running.process.poll() is None:
            pass
        # The call under way ends after the signal, and is recorded.
        running.process.send_signal(signal.SIGINT)
        Path("wait").unlink()
        code, out, aside = running.wait()
    assert (code, aside) == (130, "")
    stopped = json.loads(out)
    assert (stopped["outcome"], stopped["stages"]["answer"]["in_doubt"]) == ("stopped", 0)
    assert stopped["stages"]["answer"]["calls"] == len(calls()) < ROWS
    last = json.loads(ok("run", "answers.py", "--json"))
    assert last["stages"]["answer"]["results_before"] + last["stages"]["answer"]["calls"] == ROWS
    assert sorted(calls()) == sorted(stored()) == list(range(ROWS))


def test_a_row_that_fails_ends_the_run_with_one_line(run: Run) -> None:
    write_pipeline(failing=(3,))
    text = Path("answers.py").read_text().replace('on_error="dead_letter"', 'on_error="fail"')
    Path("answers.py").write_text(text)
    result = run("run", "answers.py")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("answers: failed: stage 'answer', unit ")
    [line] = result.stderr.splitlines()
    assert line.startswith("error: stage 'answer', unit ")
    assert "no answer" in line


@pytest.mark.long
def test_a_change_is_refused_until_a_choice_is_made(run: Run, ok: Ok) -> None:
    write_pipeline()
    ok("run", "answers.py")
    write_pipeline(version="2")
    line = error(run, "answers.py")
    assert line.startswith("error: job 'answers' is not as it was: the operator of stage 'answer'")
    assert len(calls()) == ROWS
    ok("run", "answers.py", "--on-change", "resume")
    assert len(calls()) == ROWS
    write_pipeline(version="3")
    ok("run", "answers.py", "--on-change", "recompute")
    assert len(calls()) == 2 * ROWS
    assert run("run", "answers.py", "--on-change", "sometimes").exit_code == 2


@pytest.mark.long
def test_a_job_that_runs_elsewhere_is_refused(run: Run) -> None:
    write_pipeline()
    Path("wait").touch()
    with Running("run", "answers.py", patience_s=PATIENCE_S) as running:
        while not Path("waiting").exists() and running.process.poll() is None:
            pass
        assert error(run, "answers.py") == (
            "error: job 'answers' is already running in this workspace; wait until it ends, or"
            " give this job another name"
        )
        Path("wait").unlink()
        assert running.wait()[0] == 0


@pytest.mark.long
def test_names_choose_among_pipelines(run: Run, ok: Ok) -> None:
    write_pipeline()
    text = Path("answers.py").read_text()
    Path("answers.py").write_text(text + "others = hr.pipeline('others', ws).source('*.py')\n")
    assert error(run, "answers.py", "-p", "nope") == (
        "error: no pipeline 'nope' is defined; use one of answers, others"
    )
    ok("run", "answers.py", "--pipeline", "answers")
    assert len(calls()) == ROWS
    assert error(run, "answers.py", "-t", "nope").startswith("error: no task 'nope' is defined")


def test_two_pipelines_of_one_name(run: Run) -> None:
    write_pipeline()
    text = Path("answers.py").read_text()
    Path("answers.py").write_text(text + "others = hr.pipeline('answers', ws).source('*.py')\n")
    assert error(run, "answers.py") == (
        "error: answers.py defines pipeline 'answers' twice; give each its own name"
    )


def test_a_job_that_is_built_by_hand_runs_too(ok: Ok) -> None:
    Path("by_hand.py").write_text(
        """
import pyarrow as pa
import headrace as hr
from headrace.pipeline.operators.operator import operator_spec
from headrace.pipeline.source.sources import TableSource

job = hr.Job("by-hand")
job.add_stage(hr.Stage("numbers", TableSource(pa.table({"n": [1, 2, 3]}))))
job.add_stage(hr.Stage("same", operator_spec("map", lambda row: row)), ["numbers"])
ws = hr.open("data")
run = hr.pipeline(job, ws)
"""
    )
    assert ok("run", "by_hand.py").startswith("by-hand: done; same 1/1 units; ")


@pytest.mark.spark
def test_pipelines_come_first_on_spark_and_then_tasks(here: Path) -> None:
    """A task reads the collection that a pipeline has written to."""
    write_pipeline()
    text = Path("answers.py").read_text().replace(".sink(store)", '.sink(ws.collection("got"))')
    text = text.replace('hr.open("data")\n', 'hr.open("data")\nws.collection("got", "n long")\n')
    Path("answers.py").write_text(
        text
        + """

@hr.materialization(ws, sources=["got"], sink=hr.parquet("kept"))
def kept(cut):
    return cut.got
"""
    )
    done = headrace("run", "answers.py", "--once", cwd=here, timeout_s=2 * SPARK_S)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    lines = done.stdout.decode().splitlines()
    assert [line.partition(":")[0] for line in lines if "done" in line] == ["answers", "kept"]
    assert sorted(hr.parquet("kept").table()["n"].to_pylist()) == list(range(ROWS))
    assert sorted(calls()) == list(range(ROWS))
