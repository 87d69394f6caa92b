"""`headrace demo`: a bank moves money between journals, and a task on Spark never sees half."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import headrace as hr
from headrace.cli.demo_bank import Audit, Bank, TransferThread, compare
from headrace.cli.interruption import run_aside
from headrace.cli.render.output import JsonOption, as_example, print_fields, print_json, print_line
from headrace.cli.render.task_display import TaskDisplay
from headrace.cli.render.units import counted

if TYPE_CHECKING:
    from headrace.spark import Progress

_TASK = "movements"
_SHARDS = 2
_CHECKPOINTS_BEFORE_KILL = 3
"""The demo kills a member after this many checkpoints, if there are so many."""
_PATIENCE_S = 120.0
"""The demo counts what is missing as lost when Spark applied nothing for this long."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # The demo ends before better machine code would pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


class DemoOutcome(NamedTuple):
    """What the demo did, and what it counted that must not happen."""

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
    seed: Annotated[int, typer.Option(help="The same seed makes the same transfers.")] = 1,
    json: JsonOption = False,
) -> None:
    """Run a bank on Spark, kill a part of it, and count what was lost or repeated.

    A transfer is a transaction over journals of two collections. While the demo makes transfers, a
    task of two members on Spark appends them to Parquet files; what it sees at each checkpoint must
    sum to zero. The demo kills one member, and at the end compares the files with what was
    committed. The last line and the exit code (0 or 1) say whether the guarantees held.
    """
    with (
        # After a second Ctrl-C, Spark may still be writing there.
        tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as scratch,
        TaskDisplay("nothing" if json else "text") as display,
    ):
        outcome = _Demo(Path(scratch).resolve(), transactions, seed, display).run()
    if json:
        print_json(outcome._asdict())
    else:
        _print_outcome(outcome)
    if not outcome.is_good:
        raise typer.Exit(1)


class _Demo:
    """Runs the bank and its task until Spark has applied everything; kills a member meanwhile."""

    def __init__(self, scratch: Path, transfers: int, seed: int, display: TaskDisplay) -> None:
        self._scratch = scratch
        self._transfers = transfers
        self._seed = seed
        self._display = display
        self._report = display.reporter(_TASK)
        self._audit = Audit()
        self._is_stopping = False
        self._progress_s = time.monotonic()
        self._checkpoint = 0
        self._kills = 0
        self._recoveries = 0

    def run(self) -> DemoOutcome:
        begin = time.perf_counter()
        display = self._display
        display.status("starting Spark")
        display.note(f"{self._transfers:,} transfers are made while a task on Spark applies them")
        sink = hr.parquet(self._scratch / "movements")
        with hr.open(self._scratch / "bank") as workspace:
            self._bank = bank = Bank(workspace, self._seed)
            self._task = hr.materialization(
                workspace,
                sources=[bank.debits, bank.credits],
                sink=sink,
                name=_TASK,
                shards=_SHARDS,
            )(self._audit.movements)
            self._transfer_thread = TransferThread(bank, self._transfers)
            with self._transfer_thread.running():
                run_aside(self._apply, self._stop)
            lost, duplicates, uncommitted = compare(bank.documents(), sink.table())
        return DemoOutcome(
            transfers=self._transfers - bank.rolled_back,
            given_up=bank.rolled_back,
            documents=len(bank.committed),
            checkpoints=self._checkpoint,
            kills=self._kills,
            recoveries=self._recoveries,
            torn_checkpoints=len(self._audit.torn),
            duplicates=duplicates,
            lost=lost,
            uncommitted=uncommitted,
            seconds=time.perf_counter() - begin,
        )

    def _apply(self) -> None:
        settings = _SETTINGS | {
            "spark.local.dir": str(self._scratch),
            "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
        }
        from headrace.spark.spark_session import temporary_session

        with temporary_session(_SHARDS, conf=settings, log=self._scratch / "spark.log") as spark:
            self._display.status("starting members")
            if not self._is_stopping:
                self._task.run(spark, watch=self._watch)

    def _stop(self) -> None:
        self._is_stopping = True
        self._display.status("stopping")
        self._task.stop()

    def _watch(self, progress: Progress) -> None:
        self._report(progress)
        if progress.ended:
            return
        self._recoveries = progress.restarts
        if progress.checkpoint != self._checkpoint or progress.failure:
            self._checkpoint = progress.checkpoint
            self._progress_s = time.monotonic()
        if self._checkpoint:
            self._transfer_thread.saw_documents()
        is_done = self._transfer_thread.is_done
        if not self._is_stopping:
            self._display.status(f"{self._bank.transfers:,} transfers are made")
        if self._kills == 0:
            enough = 1 if is_done else _CHECKPOINTS_BEFORE_KILL
            if progress.processes and self._checkpoint >= enough:
                self._kill(progress.processes[-1])
        elif is_done and self._recoveries and not progress.failure and self._is_over():
            self._task.stop()

    def _kill(self, process: int) -> None:
        os.kill(process, signal.SIGKILL)
        self._kills += 1
        self._display.note(f"a member is killed: kill -9 {process}")

    def _is_over(self) -> bool:
        applied = self._audit.documents(self._checkpoint)
        is_stuck = time.monotonic() - self._progress_s > _PATIENCE_S
        return applied >= len(self._bank.committed) or is_stuck


def _print_outcome(outcome: DemoOutcome) -> None:
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
    print_line(verdict(outcome))


def verdict(outcome: DemoOutcome) -> str:
    """Return the last line, which says whether the guarantees held."""
    if outcome.is_good:
        kills = counted(outcome.kills, "kill")
        return (
            f"It held: {outcome.documents:,} documents, each applied once, in checkpoints that sum"
            f" to zero, through {kills}."
        )
    wrong = {
        "lost": outcome.lost,
        "twice": outcome.duplicates,
        "never committed": outcome.uncommitted,
    }
    counts = [f"{counted(count, 'document')} {how}" for how, count in wrong.items() if count]
    if outcome.torn_checkpoints:
        counts.append(f"{counted(outcome.torn_checkpoints, 'checkpoint')} not summing to zero")
    return f"It did not hold: {', '.join(counts)}. Please report this with the seed."
