"""A standalone Spark cluster on loopback: a master and workers, as processes of this one."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

import pyspark

CORES = 3
_START_S = 60.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class Cluster:
    """Ends with everything that it started."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        with ExitStack() as stack:
            master = stack.enter_context(_Daemon(folder, "master.Master", "--port", "0"))
            self.master = master.until(_MASTER)[1]
            self.workers = [stack.enter_context(self._worker(number)) for number in range(workers)]
            for worker in self.workers:
                worker.until(_REGISTERED)
            self._running = stack.pop_all()

    def _worker(self, number: int) -> _Daemon:
        work = self._folder / f"work-{number}"
        size = ("--cores", str(CORES), "--memory", "1g", "--work-dir", str(work))
        return _Daemon(self._folder, "worker.Worker", *size, self.master)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()


class _Daemon:
    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        local = folder / "local"
        local.mkdir(parents=True, exist_ok=True)
        variables = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(local),
            "SPARK_NO_DAEMONIZE": "1",
        }
        self._process = subprocess.Popen(
            [
                *(home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}"),
                *("--host", "127.0.0.1", "--webui-port", "0", *arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self._lines.put(line)

    def until(self, pattern: re.Pattern[str]) -> re.Match[str]:
        said = []
        while True:
            try:
                said.append(self._lines.get(timeout=_START_S))
            except Empty:
                raise TimeoutError(f"not said: {pattern.pattern}\n{''.join(said)}") from None
            if found := pattern.search(said[-1]):
                return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._listening.join(30)
        assert self._process.stderr
        self._process.stderr.close()
