"""Runs of a whole Session over a published collection, timed, with readers for its members."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from time import perf_counter
from typing import Protocol

import msgspec

import headrace
from headrace.bench.processes import child, cpu_s, owner, peak_mib
from headrace.settings import ServiceSettings, Settings
from headrace.shuffle.member.local_members import LocalMembers


@dataclass(frozen=True)
class RunTiming:
    seconds: float
    """From the opening of the Session until every document was read."""
    cpu_s: float
    """The CPU time of all processes."""
    peak_mib: float
    """The most memory of a member."""
    read_s: float
    """Until the readers had the documents of a checkpoint that the Session had shown."""
    release_s: float


class Readers(Protocol):
    """Read the documents of checkpoints, all members at once."""

    processes: list[int]
    """Processes of their own; empty if they run in this one."""

    def count(self, shuffle: headrace.Shuffle, checkpoint: headrace.NextCheckpoint) -> int:
        """Read the checkpoint, and return the number of its documents."""


class ReaderThreads:
    """Read in threads of this process."""

    def __init__(self, members: int, service: ServiceSettings, stack: ExitStack) -> None:
        self.processes: list[int] = []
        self._members = members
        self._threads = stack.enter_context(ThreadPoolExecutor(members))

    def count(self, shuffle: headrace.Shuffle, checkpoint: headrace.NextCheckpoint) -> int:
        def rows(member: int) -> int:
            return sum(batch.num_rows for _, batch in shuffle.read(member, checkpoint))

        return sum(self._threads.map(rows, range(self._members)))


class ReaderProcesses:
    """Read shares of checkpoints in a process for each member, as the executors of Spark do."""

    def __init__(self, members: int, service: ServiceSettings, stack: ExitStack) -> None:
        self._children = [
            stack.enter_context(child("-m", "headrace.bench.share_reader")) for _ in range(members)
        ]
        self.processes = [each.pid for each in self._children]
        for each in self._children:
            _tell(each, service)
        for each in self._children:
            _answer(each)

    def count(self, shuffle: headrace.Shuffle, checkpoint: headrace.NextCheckpoint) -> int:
        for each, share in zip(self._children, shuffle.shares(checkpoint), strict=True):
            _tell(each, share)
        return sum(_answer(each) for each in self._children)


def _tell(process: Popen[str], message: msgspec.Struct) -> None:
    assert process.stdin
    process.stdin.write(msgspec.json.encode(message).decode() + "\n")
    process.stdin.flush()


def _answer(process: Popen[str]) -> int:
    assert process.stdout
    return int(process.stdout.readline())


class ShuffleRuns:
    """Reads collections of a workspace that another process owns, through member processes."""

    def __init__(self, directory: Path, workspace: headrace.Workspace, owner: int) -> None:
        self.workspace = workspace
        self._directory = directory
        self._owner = owner

    def run(
        self,
        name: str,
        expected: int,
        *,
        members: int = 2,
        sync: bool = True,
        readers: type[ReaderThreads | ReaderProcesses] = ReaderThreads,
    ) -> RunTiming:
        """Read a whole collection, with one reader for each member."""
        cut = self.workspace.journals(headrace.selector(name))
        with (
            LocalMembers(members, self._directory, processes=True) as local,
            ExitStack() as stack,
        ):
            opened: Readers = readers(members, local.service, stack)
            processes = [os.getpid(), self._owner, *local.processes, *opened.processes]
            cpu, begin = cpu_s(processes), perf_counter()
            with headrace.Shuffle(
                self.workspace,
                [headrace.Binding(collection=name)],
                local.addresses,
                cut=cut,
                settings=headrace.ShuffleSettings(sync=sync),
                service=local.service,
            ) as shuffle:
                found, read_s, release_s = _drain(shuffle, opened)
                seconds = perf_counter() - begin
            assert found == expected, (found, expected)
            used = cpu_s(processes) - cpu
            most_mib = max(peak_mib(each) for each in local.processes)
            return RunTiming(seconds, used, most_mib, read_s, release_s)


def _drain(shuffle: headrace.Shuffle, readers: Readers) -> tuple[int, float, float]:
    """Read all checkpoints; return the number of documents, and the seconds of two steps."""
    found, read_s, release_s = 0, 0.0, 0.0
    for checkpoint in shuffle.drain():
        shown_s = perf_counter()
        found += readers.count(shuffle, checkpoint)
        read = perf_counter()
        shuffle.release(checkpoint)
        read_s += read - shown_s
        release_s += perf_counter() - read
    return found, read_s, release_s


@contextmanager
def shuffle_runs(directory: Path, settings: Settings | None = None) -> Iterator[ShuffleRuns]:
    """Yield runs over a new workspace below the directory, whose owner is another process."""
    location = directory / "workspace"
    with owner(location) as process, headrace.open(location, settings=settings) as workspace:
        yield ShuffleRuns(directory, workspace, process)
