"""What the coordinator's state asks its actor to do, and what the actor reports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple

from headrace.errors import HeadraceError
from headrace.ingest.contract import D, Epoch, FlushResult, S


class EpochRange(NamedTuple):
    """Epochs from `start` up to, and without, `end`."""

    start: Epoch
    end: Epoch

    @property
    def last(self) -> Epoch:
        return Epoch(self.end - 1)

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class FlushTrigger(StrEnum):
    """Why a flush began. If there are several reasons, the first of these counts."""

    REQUEST = "request"
    TIMER = "timer"
    SIZE = "size"


# What the actor does


@dataclass(frozen=True, slots=True)
class StartFlush(Generic[D, S]):
    """Call `execute_flush`; report `FlushSucceeded` or `FlushFailed`."""

    delta: D
    snapshot: S
    epochs: EpochRange


@dataclass(frozen=True, slots=True)
class StartSync:
    """Call `wait_durable`; report `SyncSucceeded` or `SyncFailed`."""

    sequence: int
    last: Epoch


@dataclass(frozen=True, slots=True)
class PublishSnapshot(Generic[S]):
    """Show this snapshot to all readers."""

    snapshot: S
    epoch: Epoch
    """It shows every write up to this one."""


@dataclass(frozen=True, slots=True)
class AnswerWaiters:
    """Tell these waiters that their epochs are durable, or why they never will be."""

    waiters: tuple[Any, ...]
    error: HeadraceError | None


@dataclass(frozen=True, slots=True)
class RefuseWrites:
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class StopThreads:
    """Nothing is left to do."""


CoordinatorEffect = (
    StartFlush[Any, Any]
    | StartSync
    | PublishSnapshot[Any]
    | AnswerWaiters
    | RefuseWrites
    | StopThreads
)

# What the actor reports


@dataclass(frozen=True, slots=True)
class FlushSucceeded(Generic[S]):
    result: FlushResult[S]
    took_s: float


@dataclass(frozen=True, slots=True)
class FlushFailed:
    error: BaseException


@dataclass(frozen=True, slots=True)
class SyncSucceeded:
    took_s: float


@dataclass(frozen=True, slots=True)
class SyncFailed:
    error: BaseException


Completion = FlushSucceeded[Any] | FlushFailed | SyncSucceeded | SyncFailed
