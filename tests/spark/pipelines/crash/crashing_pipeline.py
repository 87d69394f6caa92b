"""A paid job whose processes are killed until it is done, and what must hold of it then."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Self

import headrace as hr
from headrace.testing.crash import Child, eventually
from tests.spark.crash.crashing_task import WAIT_S, Run
from tests.spark.crash.process_tree import descendants, is_gone, parent
from tests.spark.pipelines.crash.moody_server import MoodyServer
from tests.spark.pipelines.crash.paid_job import (
    RUNNING,
    expected,
    ledger_totals,
)

Victim = Literal["worker", "driver", "jvm"]
DRIVER = """
from tests.spark.pipelines.crash.paid_job import PaidDriver
driver = PaidDriver(life, master)
"""
_DAEMON = "pyspark.daemon"
_CALLS_MAX = 25
_EARLY_S = 4.0
_LATE_S = 0.3


class Figures(NamedTuple):
    """What a crash test came to."""

    kills: Counter[str]
    rows: int
    calls: int
    repeated: int
    """Calls that were paid again."""
    in_doubt: int

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of a {name}" for name, count in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills ({kills}); {self.rows} rows, {self.calls} paid calls,"
            f" {self.repeated} of them repeated, {self.in_doubt} in doubt"
        )


class CrashingPipeline:
    """One job. Every driver runs it until somebody kills a process, or it is done."""

    def __init__(self, folder: Path, seed: int, rows: int, honours_keys: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._chance = random.Random(seed)
        self._rows = rows
        self._honours_keys = honours_keys
        self._lives = 0
        self._left: set[int] = set()
        self.kills: Counter[str] = Counter()
        with ExitStack() as stack:
            bill = folder / "bill.ndjson"
            server = MoodyServer(bill, self._chance.getrandbits(32), honours_keys=honours_keys)
            self.server = stack.enter_context(server)
            self._running = stack.pop_all()

    def kill(self, *victims: Victim) -> bool:
        """Start a driver and kill processes of it. Return False if the job was done before."""
        with self._start() as life:
            for victim in victims:
                if not self._reaches_a_point(life):
                    return False
                driver = life.run.child.pid
                self._left |= descendants(driver).keys()
                if victim == "worker":
                    self._kill_a_worker(driver)
                else:
                    life.run.kill(victim)
                self.kills[victim] += 1
        return True

    def finish(self) -> None:
        """Let a driver live until the job is done."""
        with self._start() as life:
            eventually(life.is_done, WAIT_S, "the end of the job")

    def _start(self) -> _Life:
        self._lives += 1
        folder = self._folder / f"life-{self._lives}"
        child = Child(DRIVER, life=folder, master="")
        child.start(
            "driver.run(folder, url, rows)",
            folder=self._folder,
            url=self.server.paid.url,
            rows=self._rows,
        )
        return _Life(Run(child, folder, self._chance), folder)

    def _reaches_a_point(self, life: _Life) -> bool:
        """Wait for a random moment: soon after the start, or some calls later."""
        is_early = self._chance.random() < 1 / 3
        more, delay_s = self._chance.randrange(_CALLS_MAX), self._chance.random()
        if is_early:
            eventually(lambda: life.is_done() or life.is_running, WAIT_S, "a run")
            return not life.is_done(delay_s * _EARLY_S)
        wanted = self.server.calls + more
        eventually(lambda: life.is_done() or self.server.calls >= wanted, WAIT_S, "more calls")
        return not life.is_done(delay_s * _LATE_S)

    def _kill_a_worker(self, driver: int) -> None:
        chosen = self._chance.random()

        def is_hit() -> bool:
            processes = descendants(driver)
            daemons = [each for each, line in processes.items() if _DAEMON in line]
            with suppress(ProcessLookupError, FileNotFoundError):
                workers = sorted(each for each in daemons if parent(each) in daemons)
                if workers:
                    os.kill(workers[int(chosen * len(workers))], signal.SIGKILL)
                    return True
            return False

        eventually(is_hit, WAIT_S, "a worker to kill")

    def check(self) -> Figures:
        """Compare what the sink holds and what was paid with what must be."""
        out = hr.parquet(self._folder / "out").table()
        found = sorted(zip(out["id"].to_pylist(), out["answer"].to_pylist(), strict=True))
        assert found == expected(self._rows)
        with hr.open(self._folder / "workspace") as workspace:
            totals = ledger_totals(workspace)
        assert totals.results == self._rows
        paid = self.server.paid.paid()
        assert paid.keys() == {f"row-{n}" for n in range(self._rows)}
        repeated = self.server.paid.repeated
        assert repeated <= totals.doubts
        if self._honours_keys:
            assert repeated == 0
        return Figures(self.kills, self._rows, paid.total(), repeated, totals.doubts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()
        for process in self._left:
            eventually(partial(is_gone, process), WAIT_S, f"the end of process {process}")


class _Life:
    """A driver and its files. Leaves no process."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self._folder = folder
        self._is_done = False

    @property
    def is_running(self) -> bool:
        return (self._folder / RUNNING).exists()

    def is_done(self, timeout_s: float = 0) -> bool:
        """Return True if the job is done within this time. Raises what the driver failed with."""
        if not self._is_done:
            with suppress(TimeoutError):
                self.run.child.answer(timeout_s)
                self._is_done = True
        return self._is_done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.run.__exit__(*exception)
