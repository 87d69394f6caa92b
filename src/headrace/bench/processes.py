"""Processes that a benchmark starts, their cores, and the CPU time and memory of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import headrace
from headrace.settings import KIB


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a Python process with pipes; it ends when its standard input does."""
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@contextmanager
def owner(location: Path) -> Iterator[int]:
    """Let another process own the workspace, as is usual when several use it; yield its id."""
    with child("-m", "headrace.bench.processes", str(location)) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid


def divide_cores(cores: Iterable[int]) -> tuple[set[int], set[int]]:
    """Return two halves of at least two cores each, or all cores twice if there are too few."""
    ordered = sorted(cores)
    half = len(ordered) // 2
    if half < 2:
        return set(ordered), set(ordered)
    return set(ordered[:half]), set(ordered[half:])


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Keep this thread, and all that it starts in the block, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def keep_on_cores(processes: Iterable[int], cores: set[int]) -> None:
    """Keep all threads of running processes, and what these start later, on the cores."""
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            # The thread may have ended since.
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


def cpu_s(processes: Iterable[int]) -> float:
    """Return the CPU seconds that the processes have used so far."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_mib(process: int | str) -> float:
    """Return the most memory that the process has had; `self` is this one."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / KIB
    raise ValueError(f"process {process} has no memory")


if __name__ == "__main__":
    with headrace.open(sys.argv[1]):
        print(flush=True)
        sys.stdin.read()
