"""The installed `headrace`, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Self

HEADRACE = str(Path(sys.executable).with_name("headrace"))
PATIENCE_S = 120.0
SPARK_S = 240.0
"""Spark takes its time to start, and much more where others work."""


ALSO = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    "PYTHONFAULTHANDLER": "1",
}
"""In the environment: a JVM gives up on the best machine code, and starts sooner; a process that
hangs can be asked where."""


def headrace(
    *arguments: str, input: bytes = b"", cwd: Path | None = None, timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[bytes]:
    """Runs it to its end."""
    return subprocess.run(
        [HEADRACE, *arguments],
        env=os.environ | ALSO,
        input=input,
        cwd=cwd,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


class Running:
    """One that runs until it is told otherwise, and at the latest until the end of the block."""

    def __init__(
        self, *arguments: str, stdin: int = subprocess.DEVNULL, patience_s: float = PATIENCE_S
    ) -> None:
        self._patience_s = patience_s
        self.process = subprocess.Popen(
            [HEADRACE, *arguments],
            env=os.environ | ALSO,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Whoever runs the tests in the background may have it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self._out = _Lines(self.process.stdout, patience_s)
        self._aside = _Lines(self.process.stderr, patience_s)

    def line(self) -> str:
        """The next line that it prints."""
        return self._out.next()

    def note(self) -> str:
        """The next line that it prints on stderr."""
        return self._aside.next()

    def children(self) -> set[int]:
        """The processes that it started and that still run."""
        return {pid for pid, parent in _living() if parent == self.process.pid}

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Sends a signal and waits: the exit code, and what stdout and stderr had not shown yet."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str, str]:
        """Waits for its end, as `end` does."""
        try:
            code = self.process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(PATIENCE_S)
            raise AssertionError(f"it hangs:\n{self._aside.rest()}") from None
        return code, self._out.rest(), self._aside.rest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for lines in (self._out, self._aside):
            lines.close()
        if self.process.stdin:
            self.process.stdin.close()


class _Lines:
    """What a stream brings, taken as it comes."""

    def __init__(self, stream: IO[bytes] | None, patience_s: float) -> None:
        assert stream
        self._patience_s = patience_s
        self._stream = stream
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stream:
            self._lines.put(line.decode())

    def next(self) -> str:
        return self._lines.get(timeout=self._patience_s)

    def rest(self) -> str:
        """What comes until nobody holds the stream: a process outlives the one that started it."""
        self._reader.join(self._patience_s)
        assert not self._reader.is_alive(), "a process that it started still runs"
        return "".join(self._lines.get() for _ in range(self._lines.qsize()))

    def close(self) -> None:
        self._reader.join()
        self._stream.close()


def _living() -> Iterator[tuple[int, int]]:
    """The id of every process, and that of the one that started it."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        # One that ends while it is looked at is none.
        with suppress(FileNotFoundError, ProcessLookupError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                yield int(path.parent.name), int(parent)
