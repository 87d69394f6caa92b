"""How running tasks are shown: lines in a pipe, JSON, and a table that goes away on a terminal."""

from __future__ import annotations

import io
import json
import sys
from typing import Literal

import pytest

from headrace.cli.render.task_display import TaskDisplay
from headrace.spark import Progress


def progress(
    checkpoint: int, rows: int = 0, failure: str = "", ended: Literal["", "done"] = ""
) -> Progress:
    return Progress(
        checkpoint=checkpoint,
        rows=rows,
        rows_per_s=1234.5,
        behind_bytes=2048,
        shards=2,
        restarts=1 if failure or ended else 0,
        processes=() if failure else (7, 8),
        failure=failure,
        checkpoints=2,
        duration_s=12.34,
        output="collection moves",
        ended=ended,
    )


def show(display: TaskDisplay) -> None:
    with display:
        display.status("starting Spark")
        report = display.reporter("moves")
        for each in (
            progress(4),
            progress(4),
            progress(5, 1000),
            progress(5, 1000, "a member is gone"),
            progress(5, 1000),
            progress(6, 1040),
            progress(6, 1040, ended="done"),
        ):
            report(each)
        display.ended("moves", "stopped")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_has_a_line_for_each_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    show(TaskDisplay("text"))
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "moves: runs from checkpoint 4, 2 members",
        "moves: checkpoint 5, 1,000 rows, 1,234 rows/s, 2.0 KiB behind",
        "moves: checkpoint 6, 1,040 rows, 1,234 rows/s, 2.0 KiB behind",
        "moves: done at checkpoint 6: 1,040 rows in 2 checkpoints, 1 restart, 12.3 s, to collection"
        " moves",
    ]
    assert shown.err == "note: task moves is started again: a member is gone\n"


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    show(TaskDisplay("json"))
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert [(line["state"], line["checkpoint"], line["rows"]) for line in lines] == [
        ("running", 4, 0),
        ("running", 5, 1000),
        ("running", 6, 1040),
        ("done", 6, 1040),
    ]
    assert lines[0]["processes"] == [7, 8]
    assert shown.err == "note: task moves is started again: a member is gone\n"


def test_nothing_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show(TaskDisplay("nothing"))
    assert capsys.readouterr() == ("", "")


def test_a_task_that_never_began_is_only_said_to_be_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    TaskDisplay("text").ended("moves", "stopped")
    TaskDisplay("json").ended("moves", "stopped")
    assert capsys.readouterr().out == 'moves: stopped\n{"task":"moves","state":"stopped"}\n'


def test_a_terminal_is_left_with_what_stays_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", terminal)
    show(TaskDisplay("text"))
    assert screen(terminal.getvalue()) == [
        "note: task moves is started again: a member is gone",
        "moves: done at checkpoint 6: 1,040 rows in 2 checkpoints, 1 restart, 12.3 s, to collection"
        " moves",
    ]
    assert "2.0 KiB" in terminal.getvalue().partition("note:")[0]


def screen(written: str) -> list[str]:
    """The lines of a terminal after that was written to it."""
    lines = [""]
    row = 0
    position = 0
    while position < len(written):
        rest = written[position:]
        if rest.startswith("\x1b["):
            end = next(n for n, letter in enumerate(rest) if n > 1 and letter.isalpha())
            if rest[end] == "K":
                lines[row] = ""
            elif rest[end] == "A":
                row -= int(rest[2:end])
            position += end + 1
            continue
        if rest[0] == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif rest[0] == "\r":
            pass
        else:
            lines[row] += rest[0]
        position += 1
    return [line.rstrip() for line in lines if line]
