"""Who runs a task and how its last run ended, also after the worst end."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.errors import DataError, UsageError
from headrace.files import lock
from headrace.spark import Progress
from headrace.spark.tasks import run_record
from headrace.spark.tasks.run_record import (
    RunRecord,
    RunRecorder,
    check_not_running,
    forget_runs,
    last_run,
    runs_folder,
    stop_run,
)
from headrace.testing.crash import Child

WAIT_S = 60.0


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "workspace") as opened:
        yield opened


def ignore() -> None:
    """Do nothing: nobody asks this run to stop."""


def progress(checkpoint: int) -> Progress:
    return Progress(
        checkpoint=checkpoint, rows=7, rows_per_s=0.0, behind_bytes=0, shards=1, restarts=2
    )


def newest(workspace: hr.Workspace) -> RunRecord:
    record = last_run(workspace, "t")
    assert record is not None
    return record


def test_a_run_is_running_until_it_says_how_it_ended(workspace: hr.Workspace) -> None:
    assert last_run(workspace, "t") is None
    with RunRecorder(workspace, "t", 1, ignore) as recorder:
        recorder.report(progress(5))
        record = newest(workspace)
        assert (record.state, record.checkpoint, record.rows, record.restarts) == (
            *("running", 5, 7),
            2,
        )
        with pytest.raises(UsageError, match="task 't' runs as process"):
            check_not_running(workspace, "t")
        recorder.end(None)
    assert newest(workspace).state == "stopped"
    check_not_running(workspace, "t")
    with RunRecorder(workspace, "t", 2, ignore) as recorder:
        recorder.end(ValueError("two\nlines"))
    assert (newest(workspace).state, newest(workspace).error) == ("failed", "ValueError: two lines")
    forget_runs(workspace, "t")
    assert last_run(workspace, "t") is None


@pytest.mark.crash
def test_a_run_that_was_killed_has_failed(workspace: hr.Workspace) -> None:
    with Child() as child:
        child.run(
            "import headrace as hr\n"
            "from headrace.spark.tasks.run_record import RunRecorder\n"
            "ws = hr.open(location)\n"
            "recorder = RunRecorder(ws, 't', 1, lambda: None)",
            location=str(workspace.directory),
        )
        assert newest(workspace).state == "running"
        assert newest(workspace).process == child.pid
        child.kill()
    [path] = runs_folder(workspace, "t").glob("*.lock")
    # Somebody else looks at the same moment.
    looking = lock(path, fcntl.LOCK_SH)
    record = newest(workspace)
    os.close(looking)
    assert record.state == "failed"
    assert record.since == record.seen
    assert record.error.startswith(f"its process {record.process} was killed")
    check_not_running(workspace, "t")


def test_whoever_runs_it_last_counts_and_the_one_before_says_nothing_more(
    workspace: hr.Workspace,
) -> None:
    with RunRecorder(workspace, "t", 1, ignore) as replaced:
        with RunRecorder(workspace, "t", 2, ignore) as recorder:
            recorder.report(progress(3))
            replaced.report(progress(9))
            replaced.end(ValueError("taken over"))
            assert (newest(workspace).state, newest(workspace).checkpoint) == ("running", 3)
            recorder.end(None)
        assert newest(workspace).state == "stopped"
    assert {each.stem for each in runs_folder(workspace, "t").iterdir()} == {f"{2:020d}"}


def test_one_that_begins_late_takes_nothing_from_whoever_took_over(
    workspace: hr.Workspace,
) -> None:
    with RunRecorder(workspace, "t", 2, ignore) as recorder:
        recorder.report(progress(3))
        with RunRecorder(workspace, "t", 1, ignore) as late:
            late.report(progress(9))
            late.end(None)
        assert (newest(workspace).state, newest(workspace).checkpoint) == ("running", 3)


@pytest.mark.parametrize("is_half_way", [False, True])
def test_a_run_that_is_replaced_while_it_is_looked_at_is_not_taken_for_killed(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch, is_half_way: bool
) -> None:
    is_locked, successors = run_record._is_locked, list[RunRecorder]()

    def look_late(path: Path) -> bool:
        if not successors:
            record = path.with_suffix(".json").read_bytes()
            successors.append(RunRecorder(workspace, "t", 2, ignore))
            if is_half_way:  # its lock is removed and its record is not yet
                path.with_suffix(".json").write_bytes(record)
        return is_locked(path)

    with RunRecorder(workspace, "t", 1, ignore):
        monkeypatch.setattr(run_record, "_is_locked", look_late)
        assert newest(workspace).state == "running"
        successors[0].close()


def test_a_record_that_is_damaged_is_named(workspace: hr.Workspace) -> None:
    with RunRecorder(workspace, "t", 1, ignore) as recorder:
        recorder.end(None)
    [path] = runs_folder(workspace, "t").glob("*.json")
    path.write_bytes(b"{}")
    with pytest.raises(DataError, match=f"{path} is damaged: .*; delete it"):
        last_run(workspace, "t")


@pytest.mark.parametrize(("every_s", "rows"), [(-1.0, 8), (3600.0, 7)])
def test_a_run_that_stands_still_writes_seldom_that_it_lives(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch, every_s: float, rows: int
) -> None:
    monkeypatch.setattr(run_record, "_SEEN_EVERY_S", every_s)
    with RunRecorder(workspace, "t", 1, ignore) as recorder:
        recorder.report(progress(5))
        recorder.report(msgspec.structs.replace(progress(5), rows=8))
        assert newest(workspace).rows == rows


def requests(workspace: hr.Workspace) -> list[Path]:
    return list(runs_folder(workspace, "t").glob("*.stop"))


def test_a_run_hears_that_it_is_asked_to_stop(workspace: hr.Workspace) -> None:
    asked = threading.Event()

    def run() -> None:
        with RunRecorder(workspace, "t", 1, asked.set) as recorder:
            begun.set()
            assert asked.wait(WAIT_S)
            recorder.report(progress(4))
            recorder.end(None)
            assert told.wait(WAIT_S)

    assert stop_run(workspace, "t", WAIT_S) is None
    begun, told = threading.Event(), threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(WAIT_S)
    ended = stop_run(workspace, "t", WAIT_S)
    assert requests(workspace) == []
    told.set()
    thread.join()
    assert ended is not None
    assert (ended.state, ended.checkpoint) == ("stopped", 4)
    assert stop_run(workspace, "t", WAIT_S) is None


def test_whoever_asks_a_run_to_stop_does_not_wait_for_its_successor(
    workspace: hr.Workspace,
) -> None:
    successors: list[RunRecorder] = []

    def be_replaced() -> None:
        if not successors:
            successors.append(RunRecorder(workspace, "t", 2, ignore))

    with RunRecorder(workspace, "t", 1, be_replaced):
        left = stop_run(workspace, "t", WAIT_S / 2)
    assert left is not None
    assert left.state == "running"
    successors[0].close()


def test_a_run_leaves_no_request_of_somebody_who_was_killed(workspace: hr.Workspace) -> None:
    asked = threading.Event()
    with RunRecorder(workspace, "t", 1, asked.set):
        (runs_folder(workspace, "t") / f"{1:020d}.stop").touch()
        assert asked.wait(WAIT_S)
    assert requests(workspace) == []


def test_a_run_that_does_not_stop_is_named(workspace: hr.Workspace) -> None:
    with (
        RunRecorder(workspace, "t", 1, ignore),
        pytest.raises(UsageError, match="task 't' still runs after 0 s as process"),
    ):
        stop_run(workspace, "t", 0.0)


def test_a_run_that_was_killed_in_another_container_of_this_machine_has_failed(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container has its own host name. They share the kernel, which knows the lock."""
    with RunRecorder(workspace, "t", 1, ignore):
        monkeypatch.setattr("socket.gethostname", lambda: "another-container")
        assert newest(workspace).state == "running"
    assert newest(workspace).state == "failed"
    check_not_running(workspace, "t")


def test_a_run_on_another_machine_is_believed(workspace: hr.Workspace) -> None:
    with RunRecorder(workspace, "t", 1, ignore):
        record = newest(workspace)
    elsewhere = msgspec.structs.replace(
        record, host=f"not-{record.host}", kernel="another", state="running"
    )
    path = runs_folder(workspace, "t") / f"{1:020d}.json"
    path.write_bytes(msgspec.json.encode(elsewhere))
    assert newest(workspace) == elsewhere
    assert not elsewhere.is_here
    with pytest.raises(UsageError, match="or run it here"):
        check_not_running(workspace, "t")
