"""`headrace demo`: the bank. Money moves between journals, and a task on Spark never sees half."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import headrace as hr
from headrace.cli.demo_bank import Audit, Bank, Flow, compare
from headrace.cli.interruption import aside
from headrace.cli.output import JsonOption, as_example, print_fields, print_json, print_line
from headrace.cli.spark_engine import spark_for
from headrace.cli.task_display import Display
from headrace.cli.units import counted

if TYPE_CHECKING:
    from headrace.spark import Progress

_TASK = "movements"
_SHARDS = 2
_CHECKPOINTS_BEFORE = 3
"""So many are applied before a member is killed, if there is so much to apply."""
_PATIENCE_S = 120.0
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
    committed. The last line says whether it held, and so does the exit code: 0 or 1.
    """
    with (
        # Who gives up waiting for its end leaves Spark writing there.
        tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True) as scratch,
        Display("nothing" if json else "text") as display,
    ):
        outcome = _Demo(Path(scratch).resolve(), transactions, seed, display).run()
    if json:
        print_json(outcome._asdict())
    else:
        _print_outcome(outcome)
    if not outcome.is_good:
        raise typer.Exit(1)


class _Demo:
    """The bank, and the task that is run until all is applied; a member is killed on the way."""

    def __init__(self, scratch: Path, transfers: int, seed: int, display: Display) -> None:
        self._scratch = scratch
        self._transfers = transfers
        self._seed = seed
        self._display = display
        self._report = display.reporter(_TASK)
        self._audit = Audit()
        self._is_stopping = False
        self._moved_at = time.monotonic()
        self._checkpoint = 0
        self._kills = 0
        self._recoveries = 0

    def run(self) -> Outcome:
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
            self._flow = Flow(bank, self._transfers)
            with self._flow.flowing():
                aside(self._apply, self._stop)
            lost, duplicates, uncommitted = compare(bank.documents(), sink.table())
        return Outcome(
            transfers=self._transfers - bank.given_up,
            given_up=bank.given_up,
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
        with spark_for(_SHARDS, conf=settings, log=self._scratch / "spark.log") as spark:
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
            self._moved_at = time.monotonic()
        if self._checkpoint:
            self._flow.saw_some()
        is_done = self._flow.is_done
        if not self._is_stopping:
            self._display.status(f"{self._bank.made:,} transfers are made")
        if self._kills == 0:
            enough = 1 if is_done else _CHECKPOINTS_BEFORE
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
    print_line(verdict(outcome))


def verdict(outcome: Outcome) -> str:
    """The last line: whether it held."""
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
