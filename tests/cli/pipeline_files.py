"""Files with pipelines for the command line, whose calls are counted in a file."""

from __future__ import annotations

from pathlib import Path

ROWS = 60
PER_UNIT = 10

PIPELINE = """
import os
import pathlib

import pyarrow as pa

import headrace as hr

ws = hr.open("data")


class Answer(hr.Operator):
    version = "{version}"

    def process(self, batch):
        for n in batch["n"].to_pylist():
            with open("calls.txt", "a") as calls:
                calls.write(f"{{n}}\\n")
            if n in {failing}:
                raise ValueError("no answer")
        if pathlib.Path("wait").exists():
            open("waiting", "w").close()
            while pathlib.Path("wait").exists():
                os.sched_yield()
        return pa.record_batch({{"n": batch["n"]}})


def store(rows, key):
    with open("stored.txt", "a") as stored:
        stored.writelines(f"{{n}}\\n" for n in rows["n"].to_pylist())


answers = (
    hr.pipeline("answers", ws{budget})
    .source(pa.table({{"n": list(range({rows}))}}), rows_per_unit={per_unit})
    .map_batches(Answer, name="answer", batch_size=1, expensive=True, cost=0.5,
                 on_error="dead_letter", retries=0)
    .sink(store)
)
"""


def write_pipeline(
    file: str = "answers.py",
    *,
    rows: int = ROWS,
    budget: float | None = None,
    failing: tuple[int, ...] = (),
    version: str = "1",
) -> None:
    """Write a file that defines the pipeline `answers` of paid calls."""
    text = PIPELINE.format(
        rows=rows,
        per_unit=PER_UNIT,
        failing=set(failing) or "()",
        version=version,
        budget="" if budget is None else f", budget={budget}",
    )
    Path(file).write_text(text)


def calls() -> list[int]:
    """Return the rows that were paid for, in order."""
    path = Path("calls.txt")
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def stored() -> list[int]:
    path = Path("stored.txt")
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []
