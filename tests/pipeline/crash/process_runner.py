"""Runs workers as processes of their own, so that they can be killed."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle

from headrace.pipeline.contract import RunControl

PROJECT = Path(__file__).parents[3]


class ProcessRunner:
    """One process a worker; one that dies is started again.

    With `kill_every_s`, it kills a random worker with SIGKILL about that often.
    """

    def __init__(
        self, *, kill_every_s: float | None = None, kills_max: int = 0, seed: int = 0
    ) -> None:
        self._kill_every_s = kill_every_s
        self._kills_max = kills_max
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0

    def run(self, control: RunControl) -> None:
        threads = [
            threading.Thread(target=self._keep_running, args=(control, plan.stage, number))
            for plan in control.stages
            for number in range(plan.workers)
        ]
        over = threading.Event()
        killer = threading.Thread(target=self._kill, args=(over,))
        for thread in [*threads, killer]:
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        killer.join()

    def _keep_running(self, control: RunControl, stage: str, number: int) -> None:
        while not control.is_over(stage):
            name = f"{stage}.{number}.{secrets.token_hex(4)}"
            pickled = cloudpickle.dumps((control.remote_assignment(stage), name))
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.crash.process_runner"],
                stdin=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"},
            )
            with self._lock:
                self._running[name] = process
            process.communicate(pickled)
            with self._lock:
                del self._running[name]

    def _kill(self, over: threading.Event) -> None:
        if self._kill_every_s is None:
            return
        while not over.wait(self._random.uniform(0, 2 * self._kill_every_s)):
            with self._lock:
                if self.kills < self._kills_max and self._running:
                    self._running[self._random.choice(sorted(self._running))].kill()
                    self.kills += 1


def main() -> None:
    assignment, name = cloudpickle.loads(sys.stdin.buffer.read())
    assignment.run(name)


if __name__ == "__main__":
    main()
