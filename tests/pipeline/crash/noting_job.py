"""A job of three stages that note each row they process in files, which outlive every process.

source → `pay`: expensive → `shape`: on memory → `last`: durable
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import headrace as hr
from headrace.testing.crash import eventually
from tests.pipeline.jobs import numbers

_GATE_S = 600.0


class NotedRow(NamedTuple):
    row: int
    process: int


class Noting:
    """Passes rows on. It notes each, and then waits for the file that opens its gate."""

    version = "1"

    def __init__(self, folder: Path, stage: str, *, has_gate: bool) -> None:
        self._notes = folder / stage
        self._gate = _gate(folder, stage) if has_gate else None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        # One write of a short line at the end of the file: a kill leaves all of it or none.
        with self._notes.open("ab", buffering=0) as notes:
            notes.write(b"%d %d\n" % (row["n"], os.getpid()))
        if self._gate:
            eventually(self._gate.exists, _GATE_S, f"the file {self._gate}")
        return row


def noting_pipeline(workspace: hr.Workspace, folder: Path, rows: int) -> hr.Pipeline:
    return (
        hr.pipeline("noting", workspace)
        .source(numbers(rows), rows_per_unit=5)
        .map(Noting(folder, "pay", has_gate=False), name="pay", expensive=True, workers=2)
        .map(Noting(folder, "shape", has_gate=True), name="shape")
        .map(Noting(folder, "last", has_gate=True), name="last", durable=True)
    )


def _gate(folder: Path, stage: str) -> Path:
    return folder / f"{stage}.open"


def open_gate(folder: Path, stage: str) -> None:
    """Let the rows of a stage pass from now on."""
    _gate(folder, stage).touch()


def noted(folder: Path, stage: str) -> list[NotedRow]:
    """Return the rows that a stage has begun to process, in every run."""
    notes = folder / stage
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [NotedRow(*map(int, line.split())) for line in lines]


def times_noted(folder: Path, stage: str) -> Counter[int]:
    """Return how often each row was processed."""
    return Counter(each.row for each in noted(folder, stage))
