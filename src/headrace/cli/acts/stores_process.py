"""The process of `headrace demo` that has both stores open until it is killed.

    python -m headrace.cli.acts.stores_process STORE STORE

is that process. It prints a line once the stores are open, and ends with its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from headrace.errors import HeadraceError
from headrace.stores.service.store_access import open_store

_READY = "open"


class StoresProcess:
    """Has the stores open before anybody else, so that all others work through it."""

    def __init__(self, *stores: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.acts.stores_process", *map(str, stores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # In a session of its own, so that Ctrl-C does not reach it.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_open(self) -> None:
        assert self._process.stdout
        if not self._process.stdout.readline():
            raise HeadraceError(
                f"the process that opens the stores of the demo ended with code"
                f" {self._process.wait()}",
                do="mend what it printed and run the demo again",
            )

    def kill(self) -> bool:
        """End it at once, as `kill -9` does. Return False if it had ended before."""
        was_alive = self._process.poll() is None
        self._process.kill()
        self._process.wait()
        return was_alive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()


def main(*stores: str) -> None:
    with ExitStack() as stack:
        for store in stores:
            stack.enter_context(open_store(store))
        print(_READY, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
