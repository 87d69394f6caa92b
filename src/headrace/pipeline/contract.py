"""What the parts of a pipeline expect of each other.

A worker opens the operator of its stage once and hands it the rows of one unit after another. The
operator splits the rows into calls. If its calls are expensive, it asks the ledger before it makes
them, and records what they returned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

import msgspec
import pyarrow as pa

OnError = Literal["fail", "dead_letter"]

InDoubtPolicy = Literal["resend", "hold", "retry"]
"""What to do about a call that may have been made and paid, because nobody knows how it ended.

`resend` makes it again with the same idempotency key; `hold` does not make it until somebody
decides; `retry` makes it again too, and counts it as one that may be paid twice.
"""


# -- the ledger ----------------------------------------------------------------------------------


class ClaimStatus(StrEnum):
    """What the caller of `Ledger.claim` is to do about a call."""

    RESULT = "result"
    """Nothing: `Claimed.result` holds what an earlier call returned."""
    CALL = "call"
    """Make the call: nobody has begun it."""
    IN_DOUBT = "in doubt"
    """Make the call again with the same idempotency key: one was begun, and its end is unknown."""
    HELD = "held"
    """Do not make it: it is in doubt, and the operator declared in_doubt="hold"."""
    LATER = "later"
    """Make the other calls of this answer, record them, and then claim this one again. It waits for
    one of them (an equal call, or the budget that it uses up) or for another owner."""


class Claimed(NamedTuple):
    """The ledger's answer for one call."""

    status: ClaimStatus
    idempotency_key: str
    result: bytes | None = None


class RecordedCall(NamedTuple):
    """What a call returned, and what it cost."""

    call: int
    result: bytes
    cost: float


class CallTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator declares about its calls."""

    in_doubt: InDoubtPolicy = "resend"
    reuse_equal: bool = False
    """True if calls of the stage with equal content share one result, so one payment."""
    cost: float | None = None
    """What each call costs; None if only its answer tells."""
    budget: float | None = None
    """The stage makes no call that may exceed this; None for no limit of its own."""
    name: str = ""
    """The stage as its user knows it, for messages."""


class Ledger(Protocol):
    """The ledger of one run, as an operator in any process sees it.

    `stage` is `OperatorContext.ledger_stage`. A call is named by its number within its unit, which
    begins at 0 and does not depend on earlier attempts. Its content is a hash of its input.
    """

    async def declare(self, stage: str, terms: CallTerms) -> None:
        """Set the terms of the stage's calls. Every worker declares the same, before it claims."""

    async def claim(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]], *, owner: str
    ) -> list[Claimed]:
        """Claim calls, given as (call, content), before they are made.

        The content is made by `ledger.content_hash`. If at least one of the calls may be made now,
        returns at once, with LATER for those that may not. Otherwise waits while other owners with
        live leases make them, and raises BudgetError if the budget does not allow another call. An
        owner that claims again what it has claimed gives up its earlier attempt, which is in doubt.
        """

    async def find(
        self, stage: str, unit: str, calls: Sequence[tuple[int, bytes]]
    ) -> list[bytes | None]:
        """Return the recorded result of each call, given as (call, content); claims nothing."""

    async def record(self, stage: str, unit: str, results: Sequence[RecordedCall]) -> None:
        """Store results. When this returns, they are durable."""

    async def fail(self, stage: str, unit: str, calls: Sequence[int], error: str) -> None:
        """Give up claimed calls that failed for certain, and may be made again."""

    async def doubt(self, stage: str, unit: str, calls: Sequence[int]) -> None:
        """Give up claimed calls that may have been made, such as those that timed out."""

    async def release(self, stage: str, unit: str, calls: Sequence[int]) -> None:
        """Give back claimed calls that were not made."""


class RateLimit(Protocol):
    """A limit that all workers of a run share. `name` is the one that the operator declares."""

    async def acquire(self, name: str, *, requests: int = 1, tokens: int = 0) -> None:
        """Wait until the limit allows so many requests and tokens."""

    async def penalize(self, name: str, retry_after_s: float) -> None:
        """Let nobody acquire for this long, because a server asked for it."""


# -- operators -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What a worker gives the operator that it opens."""

    stage: str
    worker: str
    """Names the worker among all workers that ever ran: the owner of its claims."""
    ledger_stage: str = ""
    """The stage for the ledger. It changes when results that are recorded must not be reused."""
    ledger: Ledger | None = None
    """None if the operator is not expensive."""
    rate_limit: RateLimit | None = None


class DeadRow(NamedTuple):
    """A row that an operator gave up."""

    row: int
    """The number of the row in its unit."""
    error: str
    attempts: int


class Processed(NamedTuple):
    """What an operator made of the rows of one unit."""

    table: pa.Table | None
    """None if there are no rows."""
    dead: Sequence[DeadRow] = ()
    calls: int = 0
    reused: int = 0
    """Calls that were not made because the ledger had their results."""
    cost: float = 0.0


class UnitRows(NamedTuple):
    """The rows of one unit, as an operator gets them."""

    unit: str
    table: pa.Table
    skip: frozenset[int] = frozenset()
    """Numbers of rows to leave out: they are known to kill the process. They keep their numbers,
    so calls keep theirs."""
    probe: Probe | None = None
    """If given, process row by row (one call at a time), and await this before each call."""
    numbers: tuple[int, ...] = ()
    """The numbers of the rows in their unit, ascending; empty if they are 0, 1, 2 and so on. Rows
    that are processed again keep their numbers, so calls keep their idempotency keys."""


class Probe(Protocol):
    """Tells the master which rows are about to be processed, and waits until it knows."""

    async def __call__(self, rows: Sequence[int]) -> None: ...


class OpenOperator(Protocol):
    """An operator after its set-up, in a worker. One task at a time uses it."""

    async def process(self, rows: UnitRows) -> Processed:
        """Process a unit. Raises if a row fails and the operator does not keep dead letters.

        Raises UnitError for what the rows are to blame for, BudgetError if the budget is spent.
        """

    async def close(self) -> None: ...


class StageOperator(Protocol):
    """An operator as it travels to workers, by cloudpickle."""

    @property
    def expensive(self) -> bool: ...

    @property
    def on_error(self) -> OnError: ...

    def fingerprint(self) -> str:
        """Identify everything that results depend on: the declared version, or else the source of
        the function, and the settings that change results."""

    async def open(self, context: OperatorContext) -> OpenOperator:
        """Set the operator up, in the worker that is to use it."""


# -- runners -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a runner needs to know of a stage to start its workers."""

    stage: str
    workers: int
    resources: dict[str, float] = field(default_factory=dict)
    takes_all: bool = False
    """True if the stage has no workers: the runner computes it from all rows at once."""
    phase: int = 0
    """Counts from 0. A phase begins when the stages of the phases before it are over."""
    is_shuffle: bool = False
    """True if a stage that takes all rows is a query, whose tasks run in threads or on Spark."""


class WorkerAssignment(Protocol):
    """Everything that a worker needs to run its stage."""

    @property
    def stage(self) -> str: ...

    def run(self, worker: str) -> None:
        """Run the worker's loop until the master lets it leave. Raises what ended it otherwise."""


class RunControl(Protocol):
    """A run of a job, as its runner sees it. Any thread may use it."""

    @property
    def stages(self) -> Sequence[StagePlan]:
        """All stages, each after those that it reads from."""

    def assignment(self, stage: str) -> WorkerAssignment:
        """Return what a worker in a thread of this process runs."""

    def remote_assignment(self, stage: str) -> WorkerAssignment:
        """Return what a worker in another process runs. It travels by cloudpickle."""

    def is_over(self, stage: str) -> bool:
        """True if workers of the stage have nothing more to do in this run."""

    def run_in_turn(self, stages: Collection[str]) -> None:
        """Tell the master that slots are few: a worker of these stages that finds no work leaves,
        and the runner starts workers of another stage."""

    def stop(self) -> None:
        """Let the calls under way end, and the run after them. The next run goes on there."""

    def worker_failed(self, stage: str, error: BaseException) -> None:
        """Tell the master that a worker ended with an error of its own. The run fails."""


class Runner(Protocol):
    """Starts the workers of a run, and starts them again when they die."""

    def run(self, control: RunControl) -> None:
        """Return when all stages are over."""
