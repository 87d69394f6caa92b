"""The bank's act of `headrace demo`: a task on Spark applies transfers, and a member is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import headrace as hr
from headrace.cli.acts.bank import Audit, Bank, compare
from headrace.cli.acts.contract import DemoAct
from headrace.cli.acts.demo_spark import MEMBERS, DemoSpark
from headrace.cli.acts.publishing_thread import GROUPS, PublishingThread
from headrace.cli.interruption import run_aside
from headrace.cli.render.task_display import TaskDisplay
from headrace.cli.render.units import counted

if TYPE_CHECKING:
    from headrace.spark import Progress

_TASK = "movements"
_CHECKPOINTS_BEFORE_KILL = 3
"""The demo kills a member after this many checkpoints, if there are so many."""
_PATIENCE_S = 120.0
"""The demo counts what is missing as lost when Spark applied nothing for this long."""


class BankOutcome(NamedTuple):
    """What the bank did, and what was counted that must not happen."""

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

    def fields(self) -> dict[str, object]:
        """Return what is printed, by its name."""
        return {
            "transfers committed": f"{self.transfers:,}",
            "transfers given up half-way": f"{self.given_up:,}",
            "documents": f"{self.documents:,}",
            "checkpoints": f"{self.checkpoints:,}",
            "members killed": self.kills,
            "recoveries": self.recoveries,
            "checkpoints that did not sum to zero": self.torn_checkpoints,
            "documents twice": self.duplicates,
            "documents lost": self.lost,
            "documents never committed": self.uncommitted,
            "time": f"{self.seconds:.1f} s",
        }

    def verdict(self) -> str:
        """Return the line that says whether the guarantees held."""
        if self.is_good:
            kills = counted(self.kills, "kill")
            return (
                f"The bank held: {self.documents:,} documents, each applied once, in checkpoints"
                f" that sum to zero, through {kills}."
            )
        wrong = {"lost": self.lost, "twice": self.duplicates, "never committed": self.uncommitted}
        counts = [f"{counted(count, 'document')} {how}" for how, count in wrong.items() if count]
        if self.torn_checkpoints:
            counts.append(f"{counted(self.torn_checkpoints, 'checkpoint')} not summing to zero")
        return f"The bank did not hold: {', '.join(counts)}. Please report this with the seed."


class BankAct(DemoAct):
    """Runs the bank and its task until Spark has applied everything; kills a member meanwhile."""

    def __init__(
        self, scratch: Path, transfers: int, seed: int, display: TaskDisplay, spark: DemoSpark
    ) -> None:
        self._scratch = scratch
        self._transfers = transfers
        self._seed = seed
        self._display = display
        self._spark = spark
        self._report = display.reporter(_TASK)
        self._audit = Audit()
        self._applied_some = threading.Event()
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
                shards=MEMBERS,
            )(self._audit.movements)
            self._publishing = PublishingThread(
                bank.transfer, self._transfers, {GROUPS // 2: self._applied_some}
            )
            with self._publishing.running():
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
        spark = self._spark.session()
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
            self._applied_some.set()
        is_done = self._publishing.is_done
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
