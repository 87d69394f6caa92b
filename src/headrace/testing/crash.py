"""Tools for crash tests: processes to kill, disks that kill, and seeds that repeat a run.

A `Child` is a Python process that evaluates what a test sends it, until the test kills it. It is
spawned and never forked: a forked copy of a process that uses Flight hangs.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any, Literal, Self, TypeVar

from headrace.log import AppendFile, Disk

T = TypeVar("T")

SEED_VARIABLE = "HEADRACE_SEED"
_LOOK_AGAIN_S = 0.01
_LINGER_S = 0.05


def chosen_seed(default: int | None = None) -> int:
    """Return and print the seed of this run: HEADRACE_SEED, else the default, else a new one."""
    given = os.environ.get(SEED_VARIABLE)
    seed = int(given) if given else random.SystemRandom().getrandbits(32)
    if not given and default is not None:
        seed = default
    print(f"repeat this run with {SEED_VARIABLE}={seed}")
    return seed


def eventually(check: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Call `check` again and again; return its first true value.

    Raises TimeoutError if there is none in time; `what` says what was expected.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(_LOOK_AGAIN_S)
    return value


class Child:
    """A process that evaluates the code it is sent, with all names that it got before."""

    def __init__(self, setup: str = "", **names: Any) -> None:
        """The process runs `setup` first; nobody waits for that."""
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.testing.crash", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        self._unanswered = 0
        if setup:
            self.start(setup, **names)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, code: str, timeout_s: float = 60, **names: Any) -> Any:
        """Return the value of `code`, evaluated there, or raise what it raises.

        The value of a statement is None.
        """
        self.start(code, **names)
        return self.answer(timeout_s)

    def start(self, code: str, **names: Any) -> None:
        """Send `code` and do not wait for it; `answer` returns its value."""
        self._connection.send((code, names))
        self._unanswered += 1

    def answer(self, timeout_s: float = 60) -> Any:
        """Return the outcome of the newest `start`. Raises if an earlier one failed."""
        deadline = time.monotonic() + timeout_s
        while self._unanswered:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"process {self.pid} did not answer within {timeout_s} s")
            succeeded, value = self._connection.recv()
            self._unanswered -= 1
            if not succeeded:
                raise value
        return value

    def kill(self) -> None:
        """End the process at once, with no chance to clean up."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float) -> int:
        """Wait until the process has ended by itself; return its exit code."""
        return self._process.wait(timeout_s)

    @property
    def is_stopped(self) -> bool:
        """True if a signal has stopped the process and none has resumed it."""
        flags = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
        return self.is_alive and os.waitid(os.P_PID, self.pid, flags) is not None

    def stop(self) -> None:
        """Suspend the process; return when it is suspended."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._connection.close()


@dataclass(slots=True)
class KillPoint:
    """The change to a disk, counted from 0, at which the process dies."""

    change: int
    when: Literal["before", "torn", "after"]
    """Torn: a write writes `share` of its bytes; any other change does not happen."""
    share: float = 0.5
    _changes: int = field(default=0, init=False)

    @classmethod
    def random(cls, chance: random.Random, changes: int) -> Self:
        when: list[Literal["before", "torn", "after"]] = ["before", "torn", "after"]
        return cls(chance.randrange(changes), chance.choice(when), chance.random())

    def passes(self) -> bool:
        """Count one change; return True if the process dies at it."""
        self._changes += 1
        return self._changes == self.change + 1


class DeadlyDisk:
    """A disk that kills its process, uncleanly, at one of its changes."""

    def __init__(self, disk: Disk, point: KillPoint) -> None:
        self._disk = disk
        self._point = point
        self._lock = threading.Lock()
        self.names, self.map, self.path = disk.names, disk.map, disk.path

    def create(self, name: str) -> AppendFile:
        return _DeadlyFile(self, self.change(lambda: self._disk.create(name)))

    def open(self, name: str) -> AppendFile:
        return _DeadlyFile(self, self._disk.open(name))

    def unlink(self, name: str) -> None:
        self.change(lambda: self._disk.unlink(name))

    def sync(self) -> None:
        self.change(self._disk.sync)

    def change(self, do: Callable[[], T], do_part: Callable[[float], None] | None = None) -> T:
        with self._lock:
            strikes = self._point.passes()
        if strikes and self._point.when != "after":
            if self._point.when == "torn" and do_part:
                do_part(self._point.share)
            # A message that was sent too early gets the time to arrive, so that the test sees it.
            time.sleep(_LINGER_S)
            end_uncleanly()
        value = do()
        if strikes:
            end_uncleanly()
        return value


class _DeadlyFile:
    def __init__(self, disk: DeadlyDisk, file: AppendFile) -> None:
        self._disk = disk
        self._file = file
        self.size, self.close = file.size, file.close

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        def write_part(share: float) -> None:
            whole = b"".join(parts)
            self._file.write([whole[: int(len(whole) * share)]])

        self._disk.change(lambda: self._file.write(parts), write_part)

    def sync(self) -> None:
        self._disk.change(self._file.sync)

    def truncate(self, size: int) -> None:
        self._disk.change(lambda: self._file.truncate(size))

    def punch(self, start: int, length: int) -> None:
        self._disk.change(lambda: self._file.punch(start, length))


def end_uncleanly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _obey(connection: Connection) -> None:
    """Evaluate requests in order, in the child. The end of the connection ends the process."""
    asked: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, asked), daemon=True).start()
    names: dict[str, Any] = {}
    while True:
        code, given = asked.get()
        names |= given
        try:
            answer = True, _evaluate(code, names)
        except Exception as error:  # noqa: BLE001  the parent raises it
            answer = False, error
        connection.send(answer)


def _listen(connection: Connection, asked: queue.SimpleQueue[tuple[str, dict[str, Any]]]) -> None:
    try:
        while True:
            asked.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


def _evaluate(code: str, names: dict[str, Any]) -> Any:
    try:
        expression = compile(code, "<request>", "eval")
    except SyntaxError:
        exec(compile(code, "<request>", "exec"), names)
        return None
    return eval(expression, names)


if __name__ == "__main__":
    _obey(Connection(int(sys.argv[1])))
