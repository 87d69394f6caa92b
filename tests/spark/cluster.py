"""A standalone Spark cluster on loopback: a master and workers, as processes of this one.

What runs on one worker takes those of the others for other machines. Of the project they have the
tests alone, as far as that is in the environment: the rest must be shipped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

import pyspark

from tests.spark.crash.process_tree import descendants

WORKERS, CORES = 2, 3
APPLICATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": str(WORKERS * CORES),
    # Spark runs nothing before all executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.executor.defaultJavaOptions": os.environ.get("SPARK_DAEMON_JAVA_OPTS", ""),
}
"""The configuration of an application that runs on the whole cluster."""
_START_S = 60.0
_HERE = Path(__file__).parent
_EXECUTOR = "CoarseGrainedExecutorBackend"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class Cluster:
    """A cluster that ends everything that it started."""

    def __init__(
        self, folder: Path, workers: int = WORKERS, cores: int = CORES, gpus: int = 0
    ) -> None:
        """Each worker has `gpus` that are made up: Spark believes what a script says."""
        self._folder = folder
        self._cores = cores
        self._gpus = gpus
        with ExitStack() as stack:
            master = stack.enter_context(
                _Daemon(folder, "127.0.0.1", {}, "master.Master", "--port", "0")
            )
            self.master = master.until(_MASTER)[1]
            self.workers = [stack.enter_context(self._worker(number)) for number in range(workers)]
            for worker in self.workers:
                worker.until(_REGISTERED)
            self._running = stack.pop_all()

    def _worker(self, number: int) -> _Daemon:
        size = ("--cores", str(self._cores), "--memory", "1g")
        work = ("--work-dir", str(self.directory(number)))
        variables = {
            "PYTHONPATH": os.pathsep.join((str(_HERE / "other_machine"), str(_HERE.parent.parent))),
            "TEST_MACHINE": machine(number),
        }
        if self._gpus:
            variables["SPARK_WORKER_OPTS"] = self._gpu_options(number)
        # Spark speculates on other hosts only.
        host = f"127.0.0.{number + 1}"
        return _Daemon(self._folder, host, variables, "worker.Worker", *size, *work, self.master)

    def _gpu_options(self, number: int) -> str:
        script = self._folder / f"gpus-{number}.sh"
        addresses = json.dumps([f"{machine(number)}-gpu-{n}" for n in range(self._gpus)])
        script.write_text(f'#!/bin/sh\necho \'{{"name": "gpu", "addresses": {addresses}}}\'\n')
        script.chmod(0o755)
        option = "-Dspark.worker.resource.gpu"
        return f"{option}.amount={self._gpus} {option}.discoveryScript={script}"

    def directory(self, worker: int) -> Path:
        """Return the directory below which the executors of a worker run."""
        return self._folder / f"work-{worker}"

    def worker_of(self, directory: str) -> int:
        """Return the worker on which the process with that directory runs."""
        numbers = range(len(self.workers))
        return next(n for n in numbers if Path(directory).is_relative_to(self.directory(n)))

    def kill_worker(self, number: int) -> None:
        """End a worker and all that runs on it, as the loss of a machine does."""
        lost = [self.workers[number].pid, *descendants(self.workers[number].pid)]
        # What is stopped starts nothing anew.
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for process in lost:
                with suppress(ProcessLookupError):
                    os.kill(process, sent)

    def replace_worker(self, number: int) -> None:
        """Start another worker in the place of one that was killed."""
        self.workers[number] = self._running.enter_context(self._worker(number))
        self.workers[number].until(_REGISTERED)

    def executors(self) -> list[int]:
        """Return the JVMs of the workers."""
        below = (each for worker in self.workers for each in descendants(worker.pid).items())
        return [process for process, line in below if _EXECUTOR in line]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()


def machine(worker: int) -> str:
    """Return the name of the machine that a worker takes itself for."""
    return f"machine-{worker}"


class _Daemon:
    def __init__(
        self, folder: Path, host: str, variables: Mapping[str, str], name: str, *arguments: str
    ) -> None:
        home = Path(pyspark.__file__).parent
        local = folder / "local"
        local.mkdir(parents=True, exist_ok=True)
        always = {
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(local),
            "SPARK_NO_DAEMONIZE": "1",
        }
        self._process = subprocess.Popen(
            [
                *(home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}"),
                *("--host", host, "--webui-port", "0", *arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **always, **variables},
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
