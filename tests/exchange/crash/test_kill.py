"""Writers are killed at every change that they make; readers see a complete attempt or none."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import NotFoundError
from headrace.exchange import AttemptCleanup, MapOutputReader, verify
from headrace.storage import Objects, open_objects
from tests.exchange.crash.dying_writer import FIRST, SECOND
from tests.exchange.outputs import PARTITIONS, TASK, Rows, keys_of, stored, write

CHANGES = 72
"""At least as many as the writer makes."""
SAMPLE = {31, 40, 63}
"""The second index, and both publications."""
FAR_MS = 1 << 50


def run_writer(directory: Path, change: int, when: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.exchange.crash.dying_writer", directory, str(change), when],
        capture_output=True,
        text=True,
        timeout=120,
    )


def rows(objects: Objects) -> Rows | None:
    """Return all rows of the latest attempt; None if there is none."""
    reader = MapOutputReader(objects)
    try:
        index = reader.resolve(TASK)
    except NotFoundError:
        return None
    return {each: keys_of(reader.read(index, each)) for each in range(PARTITIONS)}


def whole(rows: Rows) -> Rows:
    return {each: list(rows.get(each, [])) for each in range(PARTITIONS)}


def test_a_writer_makes_no_more_changes_than_are_tried(tmp_path: Path) -> None:
    finished = run_writer(tmp_path / "objects", 1 << 30, "before")
    assert max(SAMPLE) < int(finished.stdout) <= CHANGES, finished.stderr
    assert rows(open_objects(str(tmp_path / "objects"))) == whole(SECOND)


@pytest.mark.parametrize(
    ("change", "when"),
    [
        pytest.param(change, when, marks=[] if change in SAMPLE else [pytest.mark.deep])
        for change in range(CHANGES)
        for when in ("before", "after")
    ],
)
def test_a_killed_writer_leaves_a_complete_attempt_or_none(  # proves G19
    tmp_path: Path, change: int, when: str
) -> None:
    died = run_writer(tmp_path / "objects", change, when)
    objects = open_objects(str(tmp_path / "objects"))
    if died.returncode == 0:  # it makes fewer changes
        assert rows(objects) == whole(SECOND)
        return
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert rows(objects) in (None, whole(FIRST), whole(SECOND))
    assert verify(objects, 1).damages == []
    found = rows(objects)
    again = write(objects, {3: [9]})
    assert again.is_mine is (found is None)
    assert rows(objects) == (found or whole({3: [9]}))
    AttemptCleanup(objects, now_ms=lambda: FAR_MS).cleanup_expired_attempts(0)
    assert rows(objects) == (found or whole({3: [9]}))
    left = {key.split("/")[4] for key in stored(objects, TASK.directory)}
    assert left == {str(again.output.attempt)}
