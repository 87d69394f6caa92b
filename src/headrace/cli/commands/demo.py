"""`headrace demo`: a bank on Spark and a pipeline of paid calls, both killed, and what was lost."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import headrace as hr
from headrace.cli.demo_bank import Audit, Bank, BankOutcome, TransferThread, compare
from headrace.cli.demo_calls import CallsAct, CallsOutcome, ServerBill
from headrace.cli.interruption import run_aside
from headrace.cli.render.output import JsonOption, as_example, print_fields, print_json, print_line
from headrace.cli.render.task_display import Form, TaskDisplay

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


class Act(StrEnum):
    BANK = "bank"
    CALLS = "calls"


def register(app: typer.Typer) -> None:
    app.command(epilog=as_example("headrace demo --act calls --rows 1000"))(demo)


def demo(
    act: Annotated[
        Act | None, typer.Option(show_default=False, help="Run this act only. Default: both.")
    ] = None,
    transactions: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many transfers the bank makes.")
    ] = 2000,
    rows: Annotated[
        int, typer.Option(min=10, metavar="N", help="How many rows a call is paid for.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="The same seed makes the same transfers.")] = 1,
    json: JsonOption = False,
) -> None:
    """Run a bank and a pipeline of paid calls, kill parts of them, and count what went wrong.

    The bank: a transfer is a transaction over journals of two collections. While the demo makes
    transfers, a task of two members on Spark appends them to Parquet files; what it sees at each
    checkpoint must sum to zero. The demo kills one member, and at the end compares the files with
    what was committed.

    The calls: a pipeline pays a server on this machine for an answer to every row. The demo kills
    it half-way and runs it again, and at the end compares rows and ledger with the server's bill.

    A last line for each act and the exit code (0 or 1) say whether the guarantees held.
    """
    form: Form = "nothing" if json else "text"
    outcomes: dict[str, BankOutcome | CallsOutcome] = {}
    for each in [act] if act else Act:
        with (
            # After a second Ctrl-C, Spark may still be writing there.
            tempfile.TemporaryDirectory(
                prefix="headrace-demo-", ignore_cleanup_errors=True
            ) as scratch,
            TaskDisplay(form) as display,
        ):
            outcomes[each] = _run(each, Path(scratch).resolve(), transactions, rows, seed, display)
        if not json:
            print_fields(outcomes[each].fields())
    if json:
        print_json({each: _as_json(outcome) for each, outcome in outcomes.items()})
    else:
        for outcome in outcomes.values():
            print_line(outcome.verdict())
    if not all(outcome.is_good for outcome in outcomes.values()):
        raise typer.Exit(1)


def _run(
    act: Act, scratch: Path, transactions: int, rows: int, seed: int, display: TaskDisplay
) -> BankOutcome | CallsOutcome:
    if act is Act.BANK:
        return _BankAct(scratch, transactions, seed, display).run()
    return CallsAct(scratch, rows, display).run()


def _as_json(outcome: BankOutcome | CallsOutcome) -> dict[str, object]:
    return {
        name: value._asdict() if isinstance(value, ServerBill) else value
        for name, value in outcome._asdict().items()
    } | {"is_good": outcome.is_good}


class _BankAct:
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

    def run(self) -> BankOutcome:
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
        return BankOutcome(
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
