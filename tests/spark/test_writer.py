"""DataFrames and streams written to a collection: whole, once, or not at all."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter

import headrace
from headrace import selector
from headrace.errors import UsageError
from headrace.journal.sequencer import Flags
from headrace.spark.versions import check_version

END_S = 30.0


@pytest.fixture
def numbers(workspace: headrace.Workspace) -> headrace.Workspace:
    workspace.collection("numbers", "id long NOT NULL, note string", key="id", journals=2)
    return workspace


def writing(rows: DataFrame, workspace: headrace.Workspace, **options: str) -> DataFrameWriter:
    given = {"workspace": str(workspace.directory), "collection": "numbers", **options}
    return rows.write.format("headrace").mode("append").options(**given)


def seen(workspace: headrace.Workspace) -> list[int]:
    return sorted(workspace.table("numbers")["id"].to_pylist())


def frames(workspace: headrace.Workspace) -> dict[str, list[headrace.journal.contract.Frame]]:
    """As they stand, of every journal."""
    journals = workspace.journals(selector("numbers"))
    return {each.name: list(workspace.frames(each, committed=False)) for each in journals}


def test_all_tasks_of_a_write_join_one_transaction(
    spark: SparkSession, numbers: headrace.Workspace
) -> None:
    writing(spark.range(0, 100, 1, 4), numbers).save()
    assert seen(numbers) == list(range(100))
    written = frames(numbers)
    producers = {f.producer for each in written.values() for f in each if f.flags is Flags.CONTINUE}
    acks = [frame for each in written.values() for frame in each if frame.flags is Flags.ACK]
    hints = {np.asarray(ack.hints).tobytes() for ack in acks}
    assert (len(written), len(producers), len(acks), len(hints)) == (2, 4, 8, 1)


def test_nothing_of_a_write_that_fails_is_seen(
    spark: SparkSession, numbers: headrace.Workspace
) -> None:
    def fail_at_9(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 9 in batch["id"].to_pylist():
                raise ValueError("nine")
            yield batch

    rows = spark.range(0, 10, 1, 2).mapInArrow(fail_at_9, "id long")
    with pytest.raises(Exception, match="nine"):
        writing(rows, numbers).save()
    assert seen(numbers) == []
    for name, written in frames(numbers).items():
        assert not written or written[-1].flags is Flags.ACK, f"{name} has an open span"


def test_attempts_that_failed_contribute_nothing(
    spark: SparkSession, numbers: headrace.Workspace
) -> None:
    """Each task writes everything, then fails; its second attempt does not."""

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task
        if task.attemptNumber() == 0:
            raise ValueError("once")

    # Each is more than a task keeps before it sends.
    rows = spark.range(0, 8, 1, 2).selectExpr("id", "repeat('long', 500000) as note")
    writing(rows.mapInArrow(fail_once, "id long, note string"), numbers).save()
    assert seen(numbers) == list(range(8))
    pending = [f for each in frames(numbers).values() for f in each if f.flags is Flags.CONTINUE]
    assert sum(frame.documents for frame in pending) > 8, "nothing was rolled back"


def test_a_dataframe_without_rows_is_written(
    spark: SparkSession, numbers: headrace.Workspace
) -> None:
    writing(spark.range(0), numbers).save()
    assert not any(frames(numbers).values())


class Held:
    """A write whose task waits until it is let go, in a thread of its own."""

    def __init__(self, spark: SparkSession, workspace: headrace.Workspace, pipes: Path) -> None:
        self._waiting, self._go = str(pipes / "waiting"), str(pipes / "go")
        os.mkfifo(self._waiting)
        os.mkfifo(self._go)
        rows = spark.range(0, 10, 1, 1).mapInArrow(_held(self._waiting, self._go), "id long")
        self._writer = writing(rows, workspace)
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        with open(self._waiting) as waiting:
            waiting.read()

    def _run(self) -> None:
        try:
            self._writer.save()
        except Exception as error:  # noqa: BLE001  looked at by the test
            self.failure = error

    def let_go(self) -> None:
        with open(self._go, "w"):
            pass
        self._thread.join(END_S)
        assert not self._thread.is_alive()


def _held(waiting: str, go: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task
        if task.attemptNumber() == 0:
            with open(waiting, "w"):
                pass
            with open(go) as let_go:
                let_go.read()

    return hold


def coordinators() -> list[tuple[int, int]]:
    """(process, parent) of each that there is below this process."""
    parents: dict[int, int] = {}
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            stat = (directory / "stat").read_text()
            command = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        process, parent = int(directory.name), int(stat.rpartition(")")[2].split()[1])
        parents[process] = parent
        if b"headrace.spark.coordinator" in command:
            found.append(process)

    def is_ours(process: int) -> bool:
        return process == os.getpid() or (process in parents and is_ours(parents[process]))

    return [(process, parents[process]) for process in found if is_ours(process)]


def test_a_write_is_whole_or_not_there_whatever_is_killed(
    spark: SparkSession, numbers: headrace.Workspace, tmp_path: Path
) -> None:
    """The process that planned it is not needed any more; its coordinator is. # proves G14"""
    for victim in ("planning", "coordinator"):
        (pipes := tmp_path / victim).mkdir()
        held = Held(spark, numbers, pipes)
        [(coordinator, planning)] = coordinators()
        end = os.pidfd_open(coordinator)
        os.kill(planning if victim == "planning" else coordinator, signal.SIGKILL)
        held.let_go()
        assert bool(held.failure) == (victim == "coordinator")
        assert seen(numbers) == list(range(10))
        # It ended by itself when there was no write left.
        assert select.select([end], [], [], END_S)[0]
        os.close(end)
    writing(spark.range(10, 11), numbers).save()
    assert seen(numbers) == list(range(11))


class Lines:
    """A stream of a directory: a file is a micro-batch."""

    def __init__(self, spark: SparkSession, workspace: headrace.Workspace, root: Path) -> None:
        self._spark = spark
        self._workspace = workspace
        self.root = root
        (root / "lines").mkdir()

    def add(self, *numbers: int) -> None:
        name = f"{len(list((self.root / 'lines').iterdir())):03}"
        text = "\n".join(json.dumps({"id": number}) for number in numbers)
        (self.root / "lines" / name).write_text(text)

    def run(
        self, checkpoint: str = "checkpoint", where: str = "id >= 0", **options: str
    ) -> list[int]:
        """Everything that is there; the numbers of the batches that were run."""
        rows = (
            self._spark.readStream.schema("id long")
            .option("maxFilesPerTrigger", 1)
            .json(str(self.root / "lines"))
        )
        given = {"workspace": str(self._workspace.directory), "collection": "numbers", **options}
        query = (
            rows.where(where)
            .writeStream.format("headrace")
            .options(**given)
            .option("checkpointLocation", str(self.root / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [each["batchId"] for each in query.recentProgress]

    def forget_commit(self, batch: int) -> None:
        """As if Spark had been killed before it wrote it down."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.root / "checkpoint" / "commits" / name).unlink()


def test_a_stream_goes_on_and_a_batch_that_is_run_again_is_not_written_again(
    spark: SparkSession, numbers: headrace.Workspace, tmp_path: Path
) -> None:
    """A batch without rows counts too: the next one must follow it. # proves G14"""
    lines = Lines(spark, numbers, tmp_path)
    lines.add(1, 2)
    lines.add(-1)
    assert lines.run(publisher="p") == [0, 1]
    lines.add(3)
    assert lines.run(publisher="p") == [2]
    assert seen(numbers) == [1, 2, 3]
    for batch in (2, 2):
        lines.forget_commit(batch)
        assert lines.run(publisher="p") == [batch]
    assert seen(numbers) == [1, 2, 3]


def test_a_batch_that_failed_is_written_when_it_is_run_again(
    spark: SparkSession, numbers: headrace.Workspace, tmp_path: Path
) -> None:
    lines = Lines(spark, numbers, tmp_path)
    lines.add(1)
    with pytest.raises(Exception, match="not this time"):
        lines.run(where="assert_true(id < 0, 'not this time') is null", publisher="p")
    assert lines.run(publisher="p") == [0]
    assert seen(numbers) == [1]


def test_another_checkpoint_directory_is_another_query(
    spark: SparkSession, numbers: headrace.Workspace, tmp_path: Path
) -> None:
    lines = Lines(spark, numbers, tmp_path)
    lines.add(1)
    lines.run(publisher="p")
    with pytest.raises(Exception, match="another checkpoint directory; use the directory that"):
        lines.run("other", publisher="p")
    assert seen(numbers) == [1]
    lines.run("third", publisher="q")
    assert seen(numbers) == [1, 1]


WRONG_WRITES: list[tuple[str, dict[str, str], str]] = [
    ("id, 'a' as more", {}, "collection 'numbers': the data has field 'more'"),
    ("'a' as note", {}, "collection 'numbers' needs column 'id', which the rows do not have"),
    ("'a' as id", {}, "collection 'numbers': field 'id' is string in the data"),
    ("id, struct(id) as note", {}, "collection 'numbers': field 'note' is struct"),
    ("id", {"collection": "none"}, "no collection 'none' in .*; create it with `headrace collec"),
    ("id", {"collection": ""}, 'which collection to write to; add .option."collection"'),
    ("id", {"workspace": ""}, r"was not told which workspace to use; add .*save\(\)"),
    ("id", {"workspace": "nowhere"}, "nowhere.*; "),
    ("id", {"task": "t"}, "format 'headrace' has no option 'task'; use some of collection, path"),
    ("id", {"publisher": "p"}, "format 'headrace' has no option 'publisher'"),
]


@pytest.mark.parametrize(("columns", "options", "said"), WRONG_WRITES)
def test_a_wrong_write_says_so_before_any_work(
    spark: SparkSession,
    numbers: headrace.Workspace,
    columns: str,
    options: dict[str, str],
    said: str,
) -> None:
    rows = spark.range(3).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=said):
        writing(rows, numbers, **options).save()
    assert seen(numbers) == []


def test_a_collection_is_only_added_to(spark: SparkSession, numbers: headrace.Workspace) -> None:
    with pytest.raises(Exception, match="documents are only ever added; use mode"):
        writing(spark.range(3), numbers).mode("overwrite").save()
    with pytest.raises(Exception, match=r'"ErrorIfExists" mode\. Please use either the "Append"'):
        writing(spark.range(3), numbers).mode("error").save()


def test_a_stream_needs_a_publisher(
    spark: SparkSession, numbers: headrace.Workspace, tmp_path: Path
) -> None:
    lines = Lines(spark, numbers, tmp_path)
    lines.add(1)
    with pytest.raises(Exception, match=r"needs a publisher.*; add"):
        lines.run()


def test_executors_must_run_the_same_version() -> None:
    with pytest.raises(UsageError, match=r"driver runs Headrace 0\.0, and this executor"):
        check_version("0.0")
