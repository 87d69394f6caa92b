"""The one line that a run ends with."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from headrace.spark import Progress
from headrace.spark.tasks.progress import print_line, summary


def ended(rows: int, checkpoints: int, restarts: int, output: str = "") -> Progress:
    return Progress(
        checkpoint=1007,
        rows=rows,
        rows_per_s=0.0,
        behind_bytes=0,
        shards=2,
        restarts=restarts,
        checkpoints=checkpoints,
        duration_s=12.345,
        output=output,
        ended="stopped",
    )


def test_it_says_what_was_done_and_where_it_is() -> None:
    assert summary("moves", ended(1, 1, 1)) == (
        "moves: stopped at checkpoint 1,007: 1 row in 1 checkpoint, 1 restart, 12.3 s"
    )
    assert summary("moves", ended(2000, 3, 0, "collection moves")) == (
        "moves: stopped at checkpoint 1,007: 2,000 rows in 3 checkpoints, no restarts, 12.3 s,"
        " to collection moves"
    )


def test_a_program_that_logs_has_it_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headrace"):
        print_line("moves: done")
    assert caplog.messages == ["moves: done"]


@pytest.mark.long
def test_a_script_prints_it() -> None:
    script = "from headrace.spark.tasks.progress import print_line; print_line('moves: done')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"moves: done\n")
