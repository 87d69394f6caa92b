"""The parts of a simulated run: everything that a worker calls, in one thread, step by step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import FencedError, InDoubtError, PeerLostError, StorageError
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.messages import Answer, AskWork, ClaimWork, Join, Leave, Request
from headrace.pipeline.master.state import JobState, TruncateTopic
from headrace.queues.contract import OffsetCommit, Output, Record
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics
from headrace.testing.pipeline.job_kinds import JobKind


class Faults(Protocol):
    """Decides what goes wrong, and counts what happens."""

    def happens(self, probability: float) -> bool: ...

    def count(self, kind: JobKind) -> None: ...


class StepPoint:
    """Hands control back to the simulator."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class ProcessDeath(BaseException):
    """The end of a worker's process."""


class FakeTable:
    """Rows without Arrow: a simulation has thousands of tables."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = list(rows)

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def take(self, numbers: Sequence[int]) -> FakeTable:
        return FakeTable([self.rows[n] for n in numbers])


class FakePayloads:
    """Payloads in a dict."""

    def __init__(self) -> None:
        self._kept: dict[str, FakeTable] = {}
        self._count = 0

    def put(self, stage: str, unit: str, table: FakeTable, *, durable: bool = True) -> str:
        self._count += 1
        ref = f"{'durable' if durable else 'scratch'}/{stage}/{unit}/{self._count}"
        self._kept[ref] = table
        return ref

    def delete_scratch(self, refs: Sequence[str]) -> None:
        for ref in refs:
            if ref.startswith("scratch/"):
                self._kept.pop(ref, None)

    def get(self, ref: str) -> FakeTable:
        return self._kept[ref]


class SimulatedBackend(MemoryBackend):
    """Every call is a step, and a commit may fail so that nobody knows whether it took effect."""

    def __init__(self, held: MemoryTopics, faults: Faults) -> None:
        super().__init__(held)
        self._faults = faults

    async def fetch(self, *args: Any, **options: Any) -> list[Record]:
        await StepPoint()
        return await super().fetch(*args, **options)

    async def end_offset(self, *args: Any, **options: Any) -> int:
        await StepPoint()
        return await super().end_offset(*args, **options)

    async def get_committed_offset(self, *args: Any, **options: Any) -> int | None:
        await StepPoint()
        return await super().get_committed_offset(*args, **options)

    async def produce_batch(self, *args: Any, **options: Any) -> list[int]:
        await StepPoint()
        offsets = await super().produce_batch(*args, **options)
        self.held.validate()
        if self._faults.happens(0.01):
            self._faults.count(JobKind.PRODUCE_IN_DOUBT)
            raise PeerLostError("the answer to a produce is lost")
        await StepPoint()
        return offsets

    async def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int]:
        await StepPoint()
        if self._faults.happens(0.03):
            self._faults.count(JobKind.COMMIT_FAILED)
            raise StorageError("the disk is full")
        try:
            offsets = await super().produce_and_commit(outputs, commit)
        except FencedError:
            self._faults.count(JobKind.COMMIT_REFUSED)
            raise
        finally:
            self.held.validate()
        self._faults.count(JobKind.COMMIT)
        if self._faults.happens(0.05):
            self._faults.count(JobKind.COMMIT_IN_DOUBT)
            raise InDoubtError("the owner is lost")
        await StepPoint()
        return offsets


def truncate(topics: MemoryTopics, cut: TruncateTopic) -> None:
    topics.truncate_before(cut.topic, cut.offset, cut.partition)
    topics.validate()


class SimulatedControl:
    """The conversation of one worker. Once it is cut off, the worker learns nothing more."""

    def __init__(self, master: Master, faults: Faults) -> None:
        self._master = master
        self._faults = faults
        self.worker = ""
        self.is_cut_off = False
        self.has_left = False

    async def ask(self, request: Request) -> Answer:
        await StepPoint()
        if self.is_cut_off:
            raise PeerLostError("the master has given this worker up")
        if isinstance(request, Join):
            answer = self._master.join(request)
            self.worker = "" if isinstance(answer, Leave) else request.worker
        elif isinstance(request, AskWork):
            answer = self._master.handle(self.worker, AskWork(0))
        else:
            answer = self._master.handle(self.worker, request)
        self._master.look(JobState.validate)
        if isinstance(answer, ClaimWork) and answer.isolate:
            self._faults.count(JobKind.ISOLATED)
        self.has_left |= isinstance(answer, Leave)
        await StepPoint()
        return answer

    def cut_off(self) -> None:
        if self.is_cut_off:
            return
        self.is_cut_off = True
        if self.worker:
            (self._master.leave if self.has_left else self._master.lose)(self.worker)
            self._master.look(JobState.validate)


@dataclass
class SimulatedWorker:
    """A worker between two steps."""

    stage: str
    control: SimulatedControl
    running: Coroutine[Any, Any, None]
    end_calls: Callable[[], None]
    """Ends the worker's lease in the ledger."""
    turns_left: int = field(default=10**9)
    """A zombie ends after so many turns."""
    asleep: int = 0
    """A zombie wakes up after so many turns, as a process that was stopped."""

    def step(self) -> bool:
        """Run until the next step; False if the worker has ended."""
        if self.asleep:
            self.asleep -= 1
            return True
        try:
            self.running.send(None)
        except (StopIteration, ProcessDeath, PeerLostError):
            return False
        self.turns_left -= 1
        return self.turns_left > 0

    def end(self) -> None:
        """The process is gone, and everybody knows."""
        self.control.cut_off()
        self.end_calls()
        self.running.close()


class LaterWork:
    """A coroutine that runs when it is awaited, and is closed if nobody awaits it."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, Any]:
        return self._work.__await__()

    def __del__(self) -> None:
        self._work.close()


async def in_step(function: Any, *args: Any) -> Any:
    await StepPoint()
    result = function(*args)
    await StepPoint()
    return result


async def sleep_step(_: float) -> None:
    await StepPoint()


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")
