"""The installed `headrace`, as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Self

HEADRACE = str(Path(sys.executable).with_name("headrace"))
PATIENCE_S = 30.0


def headrace(*arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Runs it to its end."""
    return subprocess.run(
        [HEADRACE, *arguments], input=input, capture_output=True, timeout=PATIENCE_S, check=False
    )


class Running:
    """One that runs until it is told otherwise, and at the latest until the end of the block."""

    def __init__(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [HEADRACE, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Whoever runs the tests in the background may have it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line.decode())

    def line(self) -> str:
        """The next line that it prints."""
        return self._lines.get(timeout=PATIENCE_S)

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Sends a signal and waits: the exit code, what was printed and not yet seen, stderr."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        assert self.process.stderr
        rest = "".join(self._lines.get() for _ in range(self._lines.qsize()))
        return code, rest, self.process.stderr.read().decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
