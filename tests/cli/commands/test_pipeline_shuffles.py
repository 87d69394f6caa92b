"""`headrace run` and `headrace pipeline` of a pipeline that shuffles: its tasks, and its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.exchange import MapOutputWriter
from headrace.pipeline.run import message_scan
from tests.cli.conftest import Ok, Run

pytestmark = pytest.mark.long

SHOP = """
import pyarrow as pa

import headrace as hr
from headrace.exchange import MapOutputWriter
from headrace.errors import StorageError
from headrace.pipeline.run import message_scan

message_scan.TASK_ROWS = 10
ws = hr.open("data")
rows = pa.table({"key": [n % 3 for n in range(40)], "n": list(range(40))})
names = hr.pipeline("names", ws).source(pa.table({"key": [0, 1], "name": ["a", "b"]}), name="names")
shop = (
    hr.pipeline("shop", ws)
    .source(rows, rows_per_unit=10)
    .join(names, on="key", partitions=2)
    .group_by("name", partitions=3)
    .agg(total=("n", "sum"))
)
"""
FAILING = """
left = 6
publish = MapOutputWriter.publish


def fail(self):
    global left
    left -= 1
    if left < 0:
        raise StorageError("the disk is full", do="free some space")
    return publish(self)


MapOutputWriter.publish = fail
"""


@pytest.fixture(autouse=True)
def shop(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file runs in this process: the fixture undoes what it sets."""
    monkeypatch.setattr(message_scan, "TASK_ROWS", message_scan.TASK_ROWS)
    Path("shop.py").write_text(SHOP)


def test_tasks_are_shown_and_those_of_a_run_that_failed_are_reused(
    ok: Ok, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that is joined to another is run as its part alone."""
    before = ok("pipeline", "plan", "shop.py")
    assert before.count("run ") == 1
    assert "join(inner, on key); 2 partitions" in before
    [plan] = json.loads(ok("pipeline", "plan", "shop.py", "--json"))
    assert [each["tasks_published"] for each in plan["stages"]] == [0, 0]
    Path("failing.py").write_text(SHOP + FAILING)
    with monkeypatch.context() as patch:
        patch.setattr(MapOutputWriter, "publish", MapOutputWriter.publish)
        failed = run("run", "failing.py")
    assert failed.exit_code == 1
    assert "error: stage 'join': the disk is full; free some space" in failed.stderr
    [plan] = json.loads(ok("pipeline", "plan", "shop.py", "--json"))
    assert [each["tasks_published"] for each in plan["stages"]] == [6, 0]
    assert "; 11 tasks, 6 reused; " in ok("run", "shop.py")
    rows = ok("pipeline", "status", "shop", "-w", "data").splitlines()[-2:]
    assert [row.split()[-2:] for row in rows] == [["7", "6"], ["4", "0"]]


def test_the_files_of_a_shuffle_are_counted_and_freed(ok: Ok) -> None:
    done = ok("run", "shop.py")
    assert "names" not in done.split("shop: ")[0]
    assert "shop: done; join 5/5, group-by " in done
    assert " units; 11 tasks; " in done
    header, _, grouped = ok("pipeline", "status", "shop", "-w", "data").splitlines()[1:]
    assert header.split()[-2:] == ["tasks", "reused"]
    assert grouped.split()[-2:] == ["4", "0"]
    assert json.loads(ok("pipeline", "inspect", "shop", "-w", "data", "--json"))["shuffle_bytes"]
    assert "shuffle files" in ok("pipeline", "inspect", "shop", "-w", "data")
    garbage = ok("pipeline", "gc", "shop", "-w", "data", "--dry-run")
    assert garbage.count("shuffle files") == 2
    assert ok("pipeline", "gc", "shop", "-w", "data", "--yes").startswith(
        "shop: removed 0 topics, "
    )
    assert list(Path("data/objects/shuffle").rglob("*.ipc")) == []
