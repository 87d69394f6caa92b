"""The contract of sinks, which tasks write to.

The id of a micro-batch is its checkpoint: task, generation and number. Spark may run a micro-batch
again, and so may another process that was replaced. A sink that is exactly once stores the
checkpoint atomically with the rows, and so knows whether it holds them. If several processes write
a checkpoint, one of them is first, and it does not matter which.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import UsageError
from headrace.journal.workspace import Workspace


class CheckpointId(NamedTuple):
    """The id of a micro-batch. It stays the same however often the micro-batch is run."""

    task: str
    generation: str
    number: int
    """Counts from 1, without gaps."""

    def __str__(self) -> str:
        return f"checkpoint {self.number} of task {self.task!r}, generation {self.generation}"


class Target(Protocol):
    """A sink that was opened for one run of a task. Only one thread may use it."""

    def last(self) -> int | None:
        """Return the newest checkpoint of the generation that the target holds; 0 if it holds none.

        None if the target does not know.
        """

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        """Apply the rows. They are durable when this returns.

        A target that is exactly once does not apply a checkpoint that it holds, whichever process
        applied it, and refuses a checkpoint that does not follow the last.
        """

    def close(self) -> None: ...


@runtime_checkable
class ReopenableTarget(Target, Protocol):
    """A target that needs a conversation with the owner of the journals, and can begin another."""

    def is_lost(self) -> bool:
        """Return True if the owner is gone or was silent since the target was opened.

        Then the target can commit nothing any more.
        """

    def reopen(self) -> None:
        """Begin again with the next owner, as `Sink.open` does. Then `last` is up to date."""


class Sink(Protocol):
    """Where the rows of a task go, as its author writes it down. Nothing is open yet."""

    @property
    def is_exactly_once(self) -> bool: ...

    def open(self, spark: SparkSession, workspace: Workspace, task: CheckpointId) -> Target:
        """Open the sink for a run of the task, from that checkpoint on.

        A run that had it open before does no harm: the sink refuses what that run still writes, or
        accepts it as the next checkpoint, which this run then does not write again.
        """

    def __str__(self) -> str:
        """Return text such as `collection totals` or `Parquet files in ./movements`."""


def is_due(checkpoint: CheckpointId, opened: CheckpointId, last: int, location: str) -> bool:
    """Return True if the checkpoint is the next for a location; False if the location holds it.

    Raises UsageError if the checkpoint belongs to another task or generation, or leaves a gap.
    """
    if checkpoint[:2] != opened[:2]:
        raise UsageError(
            f"{checkpoint} was given to {location}, which was opened for generation"
            f" {opened.generation} of task {opened.task!r}",
            do="open it for that task",
        )
    if not 1 <= checkpoint.number <= last + 1:
        raise UsageError(
            f"{checkpoint} does not follow {last}, the last that {location} holds",
            do="restore what is missing there, or reset the task and give it another location",
        )
    return checkpoint.number > last
