"""How running pipelines are shown: lines in a pipe, one JSON object, a table that goes away."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from headrace.cli.render.pipeline_display import PipelineDisplay, StageRates
from headrace.cli.render.units import format_cost, format_rough_time
from headrace.pipeline.master.stage_state import StageCounts
from headrace.pipeline.status.job_status import JobStatus, RunOutcome, StageProgress
from tests.cli.render.test_task_display import Terminal, screen


def status(seconds: float, units: int, outcome: RunOutcome = "running") -> JobStatus:
    paid = StageProgress(
        upstreams=("source",),
        expensive=True,
        units=20 + units,
        units_before=20,
        units_total=120,
        dead_letters=1,
        calls=10 * units,
        calls_under_way=4 if outcome == "running" else 0,
        calls_found=7,
        cost=units / 2,
    )
    sink = StageProgress(upstreams=("paid",), units=20, units_before=20)
    counts = {"paid": StageCounts(rows_in=10 * units), "sink": StageCounts()}
    return JobStatus(
        "captions", outcome, 1000.0, 1000.0 + seconds, counts,
        progress={"paid": paid, "sink": sink}, cost=units / 2, cost_in_all=10 + units / 2,
    )  # fmt: skip


def show(display: PipelineDisplay) -> None:
    with display:
        display.status("captions: preparing")
        for each in (
            status(1, 0),
            status(6, 10),
            status(7, 11),
            status(12, 11),
            status(18, 20),
            status(19, 100, "done"),
        ):
            display.report(each)
        logging.getLogger("headrace").warning("job captions: %s", "few slots")
        display.ended("captions")


def test_a_pipe_has_a_line_now_and_then_if_something_has_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(PipelineDisplay())
    shown = capsys.readouterr()
    calls = "4 in flight, 7 found in the ledger"
    assert shown.out.splitlines() == [
        f"captions: paid 30/120, sink 20/? units; 100 calls, {calls}; cost 5 (15 in all runs);"
        " 1 dead letter; ETA 54 s",
        f"captions: paid 40/120, sink 20/? units; 200 calls, {calls}; cost 10 (20 in all runs);"
        " 1 dead letter; ETA 1 min 12 s",
        "captions: done; paid 120/120, sink 20/? units; 1000 calls, 7 found in the ledger; cost 50"
        " (60 in all runs); 1 dead letter; 19.0 s",
    ]
    assert shown.err == "note: job captions: few slots\n"


def test_json_has_nothing_but_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    show(PipelineDisplay(as_json=True))
    last = json.loads(capsys.readouterr().out)
    assert (last["outcome"], last["duration_s"], last["cost"]) == ("done", 19, 50)
    paid = last["stages"]["paid"]
    assert (paid["units"], paid["calls"], paid["rows_in"]) == (120, 1000, 1000)


def test_a_terminal_is_left_with_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", terminal)
    show(PipelineDisplay())
    left = screen(terminal.getvalue())
    assert left[0] == "note: job captions: few slots"
    assert left[1].startswith("captions: done; paid 120/120")
    table = terminal.getvalue().partition("note:")[0]
    assert "in flight" in table
    assert "40/120" in table


def test_a_rate_is_that_of_the_last_half_minute() -> None:
    rates = StageRates()
    for seconds, units in ((0, 0), (30, 30), (60, 30), (90, 60)):
        rates.add(status(seconds, units))
    rate = rates.rate("paid")
    assert (rate.rows_per_s, rate.time_left_s) == (10, 40)
    assert rates.rate("sink").time_left_s is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.4, "4 s"), (75, "1 min 15 s"), (1200, "20 min"), (7260, "2 h 1 min"), (400_000, "4 d")],
)
def test_a_time_left_is_as_exact_as_it_can_be(seconds: float, text: str) -> None:
    assert format_rough_time(seconds) == text


def test_money_has_the_digits_that_it_needs() -> None:
    shown = [format_cost(cost) for cost in (0, 5, 0.25, 1234567.5, 0.000002)]
    assert shown == ["0", "5", "0.25", "1,234,567.5", "0.000002"]
