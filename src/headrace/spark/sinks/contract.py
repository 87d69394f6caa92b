"""What a task writes to.

A micro-batch is known by the checkpoint that it is: its task, generation and number. Spark may run
it again, and so may another process that was given up. A sink that is exactly once stores the
checkpoint atomically with the rows, and so knows whether it has them: of all who write a checkpoint
one is first, and it does not matter which.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import UsageError
from headrace.journal.workspace import Workspace


class CheckpointId(NamedTuple):
    """Stays the same however often its micro-batch is run."""

    task: str
    generation: str
    number: int
    """From 1 on, without gaps."""

    def __str__(self) -> str:
        return f"checkpoint {self.number} of task {self.task!r}, generation {self.generation}"


class Target(Protocol):
    """A sink that was opened for one run of a task. For one thread."""

    def last(self) -> int | None:
        """The number of the newest checkpoint of the generation that it holds: 0 if none is.

        None if it does not know.
        """

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        """Apply the rows; when it returns they are durable.

        Exactly once: a checkpoint that it holds is not applied again, whoever applied it, and one
        that does not follow the last is refused.
        """

    def close(self) -> None: ...


@runtime_checkable
class ReopenableTarget(Target, Protocol):
    """One that lives by a conversation with the owner of the journals, and can begin another."""

    def is_lost(self) -> bool:
        """Whether the owner is gone, or was silent, since it was opened: nothing can be committed
        any more."""

    def reopen(self) -> None:
        """Begin again with the next owner, as `Sink.open` does; then `last` tells what it holds."""


class Sink(Protocol):
    """Where rows go, as the author of a task writes it down: nothing is opened yet."""

    @property
    def is_exactly_once(self) -> bool: ...

    def open(self, spark: SparkSession, workspace: Workspace, task: CheckpointId) -> Target:
        """For a run of the task from that checkpoint on.

        Whoever had it open before does no harm: what it still writes is refused, or is the
        checkpoint that was to come, and then is not written again.
        """

    def __str__(self) -> str:
        """Such as `collection totals` or `parquet files in ./movements`."""


def is_due(checkpoint: CheckpointId, opened: CheckpointId, last: int, place: str) -> bool:
    """Whether the checkpoint comes after the last that the place holds; False if it is held.

    Refused is one that is not of the task that it was opened for, or leaves a gap.
    """
    if checkpoint[:2] != opened[:2]:
        raise UsageError(
            f"{checkpoint} was given to {place}, which was opened for generation"
            f" {opened.generation} of task {opened.task!r}",
            do="open it for that task",
        )
    if not 1 <= checkpoint.number <= last + 1:
        raise UsageError(
            f"{checkpoint} does not follow {last}, the last that {place} holds",
            do="restore what is missing there, or reset the task and give it another place",
        )
    return checkpoint.number > last
