"""A task that applies the transfers of a bank once more, and whose processes are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Literal, Self

import pytest

import headrace
from headrace.errors import PeerLostError
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.testing.crash import Child, eventually
from tests.spark.bank import Bank
from tests.spark.crash.death import Death
from tests.spark.crash.driver import FAILURES, READS, STOP
from tests.spark.crash.outputs import Kind, Seen, output
from tests.spark.crash.process_tree import descendants, is_stopped, parent, process_at
from tests.spark.crash.read_recorder import Read, recorded_reads

Victim = Literal["driver", "jvm", "member", "source"]
"""Of a run; beside them there is the owner of the journals."""
WAIT_S = 240.0
_PAUSE_S = 0.1
_LOOK_S = 0.3
_SOURCE = "python_streaming_source_runner"
OWNER = "import headrace; workspace = headrace.open(root)"
HEIR = """
import fcntl
from unittest import mock
with mock.patch.object(fcntl, "LOCK_NB", 0):
    import headrace
    workspace = headrace.open(root)
"""
"""Stands by until the owner is gone: the kernel wakes it before others know that they may try."""
DRIVER = """
from tests.spark.crash.driver import Driver
driver = Driver(folder, life, death, kind=kind, master=master, shards=shards)
"""


class CrashingTask:
    def __init__(
        self, folder: Path, seed: int, kind: Kind = "collection", *, master: str = ""
    ) -> None:
        print(f"seed {seed}")
        self._folder = folder
        self._kind: Kind = kind
        self._master = master
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._torn: list[Seen] = []
        self._applied = 0
        self._lives = 0
        self._newest: Run | None = None
        with ExitStack() as stack:
            self._owner = stack.enter_context(Child(OWNER, root=folder / "workspace"))
            self._owner.run("None")
            self.workspace = stack.enter_context(headrace.open(folder / "workspace"))
            self.bank = Bank(self.workspace)
            self.workspace.collection(
                "movements", "number long, account string, cents long", key="account", journals=2
            )
            self._output = output(kind, self.workspace, folder)
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
        """Whoever reads what the task applies sees whole batches, which sum to zero."""
        while not self._stopping.wait(_LOOK_S):
            try:
                seen = self._output.look()
            except PeerLostError:
                continue  # the owner of the journals was killed
            self._applied = seen.movements
            if seen.cents:
                self._torn.append(seen)

    # -- its drivers -----------------------------------------------------------------------

    def driver(self, death: Death | None = None, *, shards: int = 0, once: bool = False) -> Run:
        """One that runs; without `shards` with as many as chance says."""
        self._lives += 1
        life = self._folder / f"life-{self._lives}"
        child = Child(
            DRIVER,
            folder=self._folder,
            life=life,
            death=death,
            kind=self._kind,
            master=self._master,
            shards=shards or self._chance.randrange(1, 3),
        )
        child.start(f"driver.run(once={once})")
        self._newest = Run(child, life, self._chance)
        return self._newest

    def die(self, death: Death) -> None:
        """A driver that ends at a step of the commit protocol, or whose source does."""
        with self.driver(death) as run:
            if death.target == "all":
                assert run.child.wait(WAIT_S) == -signal.SIGKILL
            else:
                self.goes_on(2)

    def kill(self, *victims: Victim | Literal["owner"]) -> None:
        """Processes of a query that has been running for a while, one after the other.

        After a member, a source or the first owner of the journals, the driver must go on by
        itself.
        """
        with self.driver() as run:
            for victim in victims:
                self.goes_on(self._chance.randrange(1, 4))
                if victim == "owner":
                    assert self._owner.is_alive
                    self._owner.kill()
                else:
                    run.kill(victim)
            if victims[-1] in ("member", "source", "owner"):
                self.goes_on(2)

    def kill_owners(self, count: int) -> int:
        """One after the other, as long as it is not a part of the task that comes next.

        The task must go on by itself. Returns how many were killed.
        """
        root = self._folder / "workspace"
        for killed in range(count):
            heir = self._running.enter_context(Child(HEIR, root=root))
            eventually(partial(_waits_for_a_lock, heir.pid), WAIT_S, "an heir that stands by")
            self._owner.kill()
            self.goes_on(2)
            owner = WorkspaceDirectory(root).owner()
            if owner is None or owner.process != heir.pid:
                return killed + 1
            self._owner = heir
        return count

    def goes_on(self, times: int, timeout_s: float = WAIT_S) -> None:
        """Waits for so many batches of the newest driver, which must not end."""
        for _ in range(times):
            more = partial(self._has_more_than, self._applied)
            eventually(more, timeout_s, "another batch")

    def _has_more_than(self, movements: int) -> bool:
        assert self._newest
        self._newest.check()
        return self._applied > movements

    def finish(self, run: Run | None = None) -> None:
        """What is left is applied by a driver that lives; then everything is compared."""
        self._stopping.set()
        if run:
            run.stop()
            run.child.run("driver.run(once=True)", WAIT_S)
        else:
            with self.driver(once=True) as last:
                last.child.answer(WAIT_S)
        self._output.check(self.bank)
        assert not self._torn, self._torn[:3]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()


class Run:
    """A driver and its processes. Leaves none of them, stopped or not."""

    def __init__(self, child: Child, life: Path, chance: random.Random) -> None:
        self.child = child
        self._life = life
        self._chance = chance
        self._stopped: list[int] = []

    @property
    def members(self) -> list[str]:
        """Where they are."""
        return (self._life / "members").read_text().split()

    @property
    def reads(self) -> list[Read]:
        """On a cluster: of Queues, by its executors."""
        return recorded_reads(self._life / READS)

    @property
    def failures(self) -> list[str]:
        """Why its query was started again, each time."""
        noted = self._life / FAILURES
        return noted.read_text().splitlines() if noted.exists() else []

    def check(self) -> None:
        """Raises what has ended it."""
        with suppress(TimeoutError):
            self.child.answer(0)
            raise ChildProcessError("the driver has ended")

    def found(self, name: str) -> int:
        """The process of the driver's that has this in its command line; it may be starting."""

        def look() -> int | None:
            found = descendants(self.child.pid).items()
            return next((each for each, line in found if name in line), None)

        return eventually(look, WAIT_S, f"a process {name}")

    def kill(self, victim: Victim) -> None:
        if victim == "driver":
            self.child.kill()
        elif victim == "jvm":
            _kill(partial(self.found, "java"))
            with pytest.raises(PeerLostError, match="the JVM of Spark is gone"):
                self.child.answer(WAIT_S)
        elif victim == "source":
            _kill(partial(self.found, _SOURCE))
        else:
            _kill(self._a_member)

    def stop_a_member(self) -> list[int]:
        """It, which is to end."""
        member = self._a_member()
        os.kill(member, signal.SIGSTOP)
        return [member]

    def _a_member(self) -> int:
        """Of those that run; they may be starting."""
        chosen = self._chance.random()

        def look() -> int | None:
            with suppress(FileNotFoundError, ProcessLookupError):
                if members := self.members:
                    return process_at(members[int(chosen * len(members))])
            return None

        return eventually(look, WAIT_S, "a member")

    def kill_the_daemon(self) -> list[int]:
        """Whose children the members are: they are to end."""
        members = [process_at(each) for each in self.members]
        (daemon,) = {parent(each) for each in members}
        os.kill(daemon, signal.SIGKILL)
        return members

    def freeze(self) -> None:
        """Once it has stopped at its step, everything of it."""
        eventually(self._is_at_its_step, WAIT_S, "the step at which it stops")
        self._stopped = [self.child.pid, *descendants(self.child.pid)]
        _send(signal.SIGSTOP, self._stopped)

    def _is_at_its_step(self) -> bool:
        reached = self._life / "reached"
        return reached.exists() and (text := reached.read_text()) != "" and is_stopped(int(text))

    def thaw(self) -> None:
        stopped, self._stopped = self._stopped, []
        _send(signal.SIGCONT, stopped)

    def stop(self) -> None:
        """After the batch that it is at."""
        (self._life / STOP).touch()
        self.child.answer(WAIT_S)
        (self._life / STOP).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        _send(signal.SIGKILL, self._stopped)
        self.child.__exit__(*exception)


def _waits_for_a_lock(process: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {process} " in line for line in lines)


def _kill(find: Callable[[], int]) -> None:
    """What is found may end by itself before it is hit."""

    def is_hit() -> bool:
        with suppress(ProcessLookupError):
            os.kill(find(), signal.SIGKILL)
            return True
        return False

    eventually(is_hit, WAIT_S, "a process to kill")


def _send(number: signal.Signals, processes: Sequence[int]) -> None:
    """Some may have been ended by the others, which go on, or went on, for a moment."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
