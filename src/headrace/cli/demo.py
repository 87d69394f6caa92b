"""`headrace demo`: the bank. Money moves between journals, and a task on Spark never sees half."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import headrace as hr
from headrace.cli.bank import Audit, Bank, Flow, compare
from headrace.cli.engine import spark_for
from headrace.cli.output import JsonOption, as_example, print_fields, print_json
from headrace.cli.progress import Display

if TYPE_CHECKING:
    from headrace.spark import Progress, Task

_SHARDS = 2
_CHECKPOINTS_BEFORE = 3
"""So many are applied before a member is killed, if there is so much to apply."""
_PATIENCE_S = 30.0
"""When nothing more was applied for so long, what is missing is lost."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # It ends before better machine code would pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


class Outcome(NamedTuple):
    """What happened, and what must not have."""

    transfers: int
    given_up: int
    documents: int
    checkpoints: int
    kills: int
    recoveries: int
    torn_checkpoints: int
    duplicates: int
    lost: int
    uncommitted: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return not (self.torn_checkpoints or self.duplicates or self.lost or self.uncommitted)


def register(app: typer.Typer) -> None:
    app.command(epilog=as_example("headrace demo --transactions 10000"))(demo)


def demo(
    transactions: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many transfers to make.")
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Makes the same transfers again.")] = 1,
    json: JsonOption = False,
) -> None:
    """Run a bank on Spark, kill a part of it, and count what was lost or repeated.

    Transfers are transactions over journals of two collections. A task of two members on Spark
    appends them to Parquet files while they are made; at every checkpoint what it sees must sum to
    zero. One member is killed on the way. In the end the files are compared with what was
    committed.
    """
    logging.getLogger("headrace").setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-demo-") as scratch,
        Display("nothing" if json else "text") as display,
    ):
        outcome = _run(Path(scratch).resolve(), transactions, seed, display)
    if json:
        print_json(outcome._asdict())
    else:
        _print_outcome(outcome)
    if not outcome.is_good:
        raise typer.Exit(1)


def _run(scratch: Path, transfers: int, seed: int, display: Display) -> Outcome:
    begin = time.perf_counter()
    audit = Audit()
    sink = hr.parquet(scratch / "movements")
    settings = _SETTINGS | {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    display.status("starting Spark")
    display.note(f"{transfers:,} transfers are made while a task of {_SHARDS} members applies them")
    with hr.open(scratch / "bank") as workspace:
        bank = Bank(workspace, seed)
        flow = Flow(bank, transfers)
        make = hr.materialization(
            workspace, sources=[bank.debits, bank.credits], sink=sink, shards=_SHARDS
        )
        with (
            flow.flowing(),
            spark_for(_SHARDS, conf=settings, log=scratch / "spark.log") as spark,
        ):
            display.status("starting members")
            watcher = _Watcher(make(audit.movements), bank, flow, audit, display)
            watcher.run(spark)
        lost, duplicates, uncommitted = compare(bank.documents(), sink.table())
    return Outcome(
        transfers=transfers - bank.given_up,
        given_up=bank.given_up,
        documents=len(bank.committed),
        checkpoints=watcher.checkpoint,
        kills=watcher.kills,
        recoveries=watcher.recoveries,
        torn_checkpoints=len(audit.torn),
        duplicates=duplicates,
        lost=lost,
        uncommitted=uncommitted,
        seconds=time.perf_counter() - begin,
    )


class _Watcher:
    """Runs the task until all is applied, and kills a member of it on the way."""

    def __init__(self, task: Task, bank: Bank, flow: Flow, audit: Audit, display: Display) -> None:
        self._task = task
        self._bank = bank
        self._flow = flow
        self._audit = audit
        self._display = display
        self._report = display.reporter(task.name)
        self._moved_at = time.monotonic()
        self.checkpoint = 0
        self.kills = 0
        self.recoveries = 0

    def run(self, spark: Any) -> None:
        self._task.run(spark, watch=self._watch)

    def _watch(self, progress: Progress) -> None:
        self._report(progress)
        self.recoveries = progress.restarts
        if progress.checkpoint != self.checkpoint or progress.failure:
            self.checkpoint = progress.checkpoint
            self._moved_at = time.monotonic()
        if self.checkpoint:
            self._flow.saw_some()
        is_done = self._flow.is_done
        made = "all transfers are made" if is_done else f"{self._bank.made:,} transfers are made"
        self._display.status(made)
        if not self.kills and self.checkpoint and progress.processes:
            if is_done or self.checkpoint >= _CHECKPOINTS_BEFORE:
                self._kill(progress.processes[-1])
        elif is_done and self.recoveries and not progress.failure and self._is_over():
            self._task.stop()

    def _kill(self, process: int) -> None:
        os.kill(process, signal.SIGKILL)
        self.kills += 1
        self._display.note(f"a member was killed: kill -9 {process}")

    def _is_over(self) -> bool:
        applied = self._audit.documents(self.checkpoint)
        is_stuck = time.monotonic() - self._moved_at > _PATIENCE_S
        return applied >= len(self._bank.committed) or is_stuck


def _print_outcome(outcome: Outcome) -> None:
    print_fields(
        {
            "transfers committed": f"{outcome.transfers:,}",
            "transfers given up half-way": f"{outcome.given_up:,}",
            "documents": f"{outcome.documents:,}",
            "checkpoints": f"{outcome.checkpoints:,}",
            "members killed": outcome.kills,
            "recoveries": outcome.recoveries,
            "checkpoints that did not sum to zero": outcome.torn_checkpoints,
            "documents twice": outcome.duplicates,
            "documents lost": outcome.lost,
            "documents never committed": outcome.uncommitted,
            "time": f"{outcome.seconds:.1f} s",
        }
    )
