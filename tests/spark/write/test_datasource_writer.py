"""DataFrames and streams written to a collection: whole, once, or not at all."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.types import StructType

import headrace
from headrace import selector
from headrace.errors import HeadraceError, PublishError, UsageError
from headrace.journal.contract import Frame
from headrace.journal.documents.schema import parse_schema
from headrace.journal.sequencer import Flags
from headrace.spark.source.datasource import HeadraceSource
from headrace.spark.worker_process import check_version
from headrace.spark.write import transaction_process
from headrace.spark.write.commit_payload import QueryBatch
from tests.spark.write.started_process import start_processes

END_S = 90.0
ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def numbers(workspace: headrace.Workspace) -> headrace.Workspace:
    workspace.collection("numbers", "id long NOT NULL, note string", key="id", journals=2)
    return workspace


def writing(rows: DataFrame, location: headrace.Workspace, **options: str) -> DataFrameWriter:
    given = {"workspace": str(location.directory), "collection": "numbers", **options}
    return rows.write.format("headrace").mode("append").options(**given)


def seen(workspace: headrace.Workspace) -> list[int]:
    return sorted(workspace.table("numbers")["id"].to_pylist())


def frames(workspace: headrace.Workspace) -> dict[str, list[Frame]]:
    """Return what every journal has, in its order."""
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
    """Each task writes everything and then fails. Its second attempt does not fail."""

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task
        if task.attemptNumber() == 0:
            raise ValueError("once")

    # A task sends when it has some megabytes.
    rows = spark.range(0, 6, 1, 2).selectExpr("id", "repeat('long', 500000) as note")
    spark.conf.set(ROWS_AT_ONCE, 1)
    try:
        writing(rows.mapInArrow(fail_once, "id long, note string"), numbers).save()
    finally:
        spark.conf.unset(ROWS_AT_ONCE)
    assert seen(numbers) == list(range(6))
    pending = [f for each in frames(numbers).values() for f in each if f.flags is Flags.CONTINUE]
    assert sum(frame.documents for frame in pending) > 6, "nothing was rolled back"


def test_a_dataframe_without_rows_is_written(
    spark: SparkSession, numbers: headrace.Workspace
) -> None:
    writing(spark.range(0), numbers).save()
    assert not any(frames(numbers).values())


class Held:
    """A write whose task waits until the test has done something to other processes."""

    def __init__(self, spark: SparkSession, workspace: headrace.Workspace, pipes: Path) -> None:
        self._waiting, self._go = str(pipes / "waiting"), str(pipes / "go")
        os.mkfifo(self._waiting)
        os.mkfifo(self._go)
        rows = spark.range(0, 10, 1, 1).mapInArrow(_held(self._waiting, self._go), "id long")
        self._writer = writing(rows, workspace)

    def save(self, meanwhile: Callable[[], None]) -> None:
        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(self._hold, meanwhile)
            try:
                self._writer.save()
            finally:
                done.result()

    def _hold(self, meanwhile: Callable[[], None]) -> None:
        # Opened for both, a pipe is there at once, whoever has its other end.
        with open(self._waiting, "r+b", 0) as waiting, open(self._go, "r+b", 0) as go:
            is_waiting, _, _ = select.select([waiting], [], [], END_S)
            assert is_waiting
            try:
                meanwhile()
            finally:
                go.write(b"go\n")


def _held(waiting: str, go: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task
        if task.attemptNumber() == 0:
            Path(waiting).write_text("waiting")
            with open(go) as let_go:
                let_go.readline()

    return hold


def transaction_processes() -> list[tuple[int, int]]:
    """Return (process, parent) of each transaction process below this process."""
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
        if b"headrace.spark.write.transaction_process" in command:
            found.append(process)

    def is_ours(process: int) -> bool:
        return process == os.getpid() or (process in parents and is_ours(parents[process]))

    return [(process, parents[process]) for process in found if is_ours(process)]


@pytest.mark.crash
def test_a_write_is_whole_or_not_there_whatever_is_killed(
    spark: SparkSession, numbers: headrace.Workspace, tmp_path: Path
) -> None:
    """A write needs its transaction process, but not the process that planned it. # proves G14"""
    ends = []

    def kill(is_planning: bool) -> None:
        [(holder, planning)] = transaction_processes()
        ends.append(os.pidfd_open(holder))
        os.kill(planning if is_planning else holder, signal.SIGKILL)

    for victim in ("planning", "transaction process"):
        (pipes := tmp_path / victim).mkdir()
        held = Held(spark, numbers, pipes)
        if victim == "planning":
            held.save(partial(kill, True))
        else:
            with pytest.raises(Exception, match=r"has ended|nobody knows"):
                held.save(partial(kill, False))
        assert seen(numbers) == list(range(10))
    for end in ends:
        # Without a process to plan for, and no write left, it ends by itself.
        assert select.select([end], [], [], END_S)[0]
        os.close(end)
    writing(spark.range(10, 11), numbers).save()
    assert seen(numbers) == list(range(11))


class Lines:
    """A stream of a directory, in which each file is a micro-batch."""

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
        """Run all batches that there are, and return their numbers."""
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
        """Remove what Spark would not have written if it had been killed before."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.root / "checkpoint" / "commits" / name).unlink()


def test_a_stream_goes_on_and_a_batch_that_is_run_again_is_not_written_again(
    spark: SparkSession, numbers: headrace.Workspace, tmp_path: Path
) -> None:
    """A batch without rows counts, too: the next batch must follow it. # proves G14"""
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
    with pytest.raises(Exception, match="another checkpoint directory; use the checkpoint"):
        lines.run("other", publisher="p")
    assert seen(numbers) == [1]


@pytest.fixture(scope="module")
def planning() -> Iterator[None]:
    """Let this process plan writes, as a process of Spark does."""
    with start_processes() as found, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_process, "_mine", found.transactions)
        yield


WRONG_WRITES: list[tuple[str, dict[str, str], str]] = [
    ("id long, more string", {}, "collection 'numbers': the data has field 'more'"),
    ("note string", {}, "collection 'numbers' needs column 'id', which the rows do not have"),
    ("id string", {}, "collection 'numbers': field 'id' is string in the data"),
    ("id long, note struct<a int>", {}, "collection 'numbers': field 'note' is struct"),
    (
        "id long",
        {"collection": "no"},
        ".* has no collection 'no', .*; create it with `headrace coll",
    ),
    ("id long", {"collection": ""}, 'needs a collection to write to; add .option."collection"'),
    ("id long", {"workspace": ""}, r"needs a workspace; add .*save\(\)"),
    ("id long", {"workspace": "nowhere"}, "nowhere.*; "),
    ("id long", {"task": "t"}, "format 'headrace' has no option 'task'; use one of collection"),
    ("id long", {"publisher": "p"}, "format 'headrace' has no option 'publisher'"),
]


@pytest.mark.parametrize(("columns", "options", "said"), WRONG_WRITES)
@pytest.mark.usefixtures("planning")
def test_a_wrong_write_says_so_before_any_work(
    numbers: headrace.Workspace, columns: str, options: dict[str, str], said: str
) -> None:
    given = {"workspace": str(numbers.directory), "collection": "numbers", **options}
    with pytest.raises(HeadraceError, match=said):
        HeadraceSource(given).writer(_struct(columns), overwrite=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("overwrite", "said"),
    [(False, "needs a publisher.*; add"), (True, "only ever added; use .* outputMode")],
)
def test_a_wrong_stream_says_so(numbers: headrace.Workspace, overwrite: bool, said: str) -> None:
    given = {"workspace": str(numbers.directory), "collection": "numbers", "queryName": "q"}
    with pytest.raises(UsageError, match=said):
        HeadraceSource(given).streamWriter(_struct("id long"), overwrite)


@pytest.mark.long
@pytest.mark.usefixtures("planning")
def test_an_aborted_batch_is_gone_though_no_task_said_who_holds_it(
    numbers: headrace.Workspace,
) -> None:
    given = {"workspace": str(numbers.directory), "collection": "numbers", "publisher": "p"}
    source = HeadraceSource(given)
    planned = source.streamWriter(_struct("id long"), False).planned
    assert planned
    committing = pickle.loads(pickle.dumps(source)).streamWriter(_struct("id long"), False)
    assert committing.planned is None
    committing.abort([None], 0)
    with pytest.raises(PublishError):
        planned.write.commit([], QueryBatch("q", 0))
    assert numbers.publisher("stream/p").payload == b""


def test_a_collection_is_only_added_to(spark: SparkSession, numbers: headrace.Workspace) -> None:
    with pytest.raises(Exception, match="documents are only ever added; use mode"):
        writing(spark.range(3), numbers).mode("overwrite").save()
    with pytest.raises(Exception, match=r'"ErrorIfExists" mode\. Please use either the "Append"'):
        writing(spark.range(3), numbers).mode("error").save()


def _struct(ddl: str) -> StructType:
    return from_arrow_schema(parse_schema(ddl))


@pytest.mark.long
def test_executors_must_run_the_same_version() -> None:
    with pytest.raises(UsageError, match=r"driver runs Headrace 0\.0, and this executor"):
        check_version("0.0")
