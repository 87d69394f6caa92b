"""A peer in a process of its own, which a test can kill or stop.

`python -m tests.transport.peer_process serve` prints its address and closes when its input ends;
`serve-carelessly` leaves closing to the interpreter's exit. `call ADDRESS` sends a message, prints
`heard`, waits in a receive and prints what the receive raised.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from headrace.errors import HeadraceError
from headrace.transport import Client, Server
from tests.transport.echo_service import REPLIES, SWIFT, Echo, Say


class Peer:
    """Runs `tests.transport.peer_process`; leaves no process behind."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.transport.peer_process", *arguments],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def line(self, timeout_s: float = 30) -> str:
        """Return the next line that it prints."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        assert ready, f"nothing was printed within {timeout_s} s"
        return self._process.stdout.readline().decode().strip()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def stop(self) -> None:
        """Stop the process, and wait until it has stopped."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def finish(self, timeout_s: float) -> tuple[int, str]:
        """End its input; return its exit code and stderr, within the time."""
        _, errors = self._process.communicate(timeout=timeout_s)
        return self._process.returncode, errors.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()


def _serve(*, careful: bool) -> None:
    server = Server({"echo": Echo()}, SWIFT)
    print(server.address, flush=True)
    sys.stdin.read()
    if careful:
        server.close(grace_s=0.3)


def _call(address: str) -> None:
    client = Client(address, SWIFT)
    channel = client.converse("echo", REPLIES)
    channel.send(Say("hello"))
    channel.receive()
    print("heard", flush=True)
    begun = time.monotonic()
    try:
        channel.receive()
    except HeadraceError as error:
        print(type(error).__name__, f"{time.monotonic() - begun:.2f}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            _serve(careful=True)
        case ["serve-carelessly"]:
            _serve(careful=False)
        case ["call", address]:
            _call(address)
