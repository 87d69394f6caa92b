"""A bank whose transfers a task publishes once more, and the drivers of that task, which die."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal, Self

import pyarrow.compute as pc
import pytest

import headrace
from headrace.errors import PeerLostError
from headrace.testing.crash import Child, eventually
from tests.spark.bank import Bank
from tests.spark.crash.deadly import Death
from tests.spark.crash.processes import descendants, process_at

Victim = Literal["driver", "jvm", "member", "source"]
WAIT_S = 180.0
_PAUSE_S = 0.05
_LOOK_S = 0.2
_SOURCE = "python_streaming_source_runner"
DRIVER = """
from tests.spark.crash.driver import Driver
driver = Driver(root, folder, death, master=master, shards=shards)
"""


class Company:
    def __init__(self, folder: Path, seed: int, *, master: str = "") -> None:
        print(f"seed {seed}")
        self._folder = folder
        self._master = master
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._torn: list[str] = []
        self._applied = 0
        self._lives = 0
        with ExitStack() as stack:
            self.workspace = stack.enter_context(headrace.open(folder / "workspace"))
            self.bank = Bank(self.workspace)
            self.workspace.collection(
                "movements", "number long, account string, cents long", key="account", journals=2
            )
            for work in (self._publish, self._look):
                thread = threading.Thread(target=work)
                stack.callback(thread.join)
                thread.start()
            stack.callback(self._stopping.set)
            self._running = stack.pop_all()

    def _publish(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            self.bank.transfer(1)

    def _look(self) -> None:
        """Whoever reads what the task publishes sees whole batches, which sum to zero."""
        while not self._stopping.wait(_LOOK_S):
            seen = self.workspace.table("movements")
            self._applied = seen.num_rows
            if seen.num_rows and (total := pc.sum(seen["cents"]).as_py()):
                self._torn.append(f"{seen.num_rows} documents sum to {total}")

    def die(self, death: Death) -> None:
        """A driver that ends at a step of the commit protocol, or whose source does."""
        with self._driver(death) as driver:
            driver.start("driver.run(once=False)")
            if death.target == "all":
                assert driver.wait(WAIT_S) == -signal.SIGKILL
            else:
                self._until_it_went_on(2)

    def kill(self, *victims: Victim) -> None:
        """Processes of a query that has been running for a while, one after the other.

        After a member or a source, the driver must go on by itself.
        """
        with self._driver(None) as driver:
            driver.start("driver.run(once=False)")
            for victim in victims:
                self._until_it_went_on(self._chance.randrange(1, 4))
                self._kill(driver, victim)
            if victims[-1] in ("member", "source"):
                self._until_it_went_on(2)

    def _kill(self, driver: Child, victim: Victim) -> None:
        found = descendants(driver.pid)
        if victim == "driver":
            driver.kill()
        elif victim == "jvm":
            os.kill(next(each for each, name in found.items() if "java" in name), signal.SIGKILL)
            with pytest.raises(PeerLostError, match="the JVM of Spark is gone"):
                driver.answer(WAIT_S)
        elif victim == "source":
            os.kill(next(each for each, name in found.items() if _SOURCE in name), signal.SIGKILL)
        else:
            addresses = (self._folder / f"life-{self._lives}" / "members").read_text().split()
            os.kill(process_at(self._chance.choice(addresses)), signal.SIGKILL)

    def _until_it_went_on(self, times: int) -> None:
        for _ in range(times):
            eventually(partial(self._has_more_than, self._applied), WAIT_S, "another batch")

    def _has_more_than(self, documents: int) -> bool:
        return self._applied > documents

    def finish(self) -> None:
        """What is left is applied by a driver that lives; then everything is compared."""
        self._stopping.set()
        with self._driver(None) as driver:
            driver.run("driver.run(once=True)", WAIT_S)
        table = self.workspace.table("movements")
        found = zip(*(table[name].to_pylist() for name in ("number", "cents")), strict=True)
        assert sorted(found) == self.bank.movements()
        assert not self._torn, self._torn[:3]

    def _driver(self, death: Death | None) -> Child:
        self._lives += 1
        return Child(
            DRIVER,
            root=self._folder / "workspace",
            folder=self._folder / f"life-{self._lives}",
            death=death,
            master=self._master,
            shards=self._chance.randrange(1, 3),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()
