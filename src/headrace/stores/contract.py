"""What every store does for sinks, readers and the process that serves it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.stores.checkpoint_record import StoreCheckpoint


class Store(ABC):
    """One store that is open in this process. Any thread may use it."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """`timeseries` or `vectors`."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns that `scan` yields, and that `write` and `apply` take."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> int:
        """Take rows and return their epoch for `flush`. Raises QueueFullError if too much waits.

        Rows that cannot be stored raise DocumentError, and then none of them is taken.
        """

    @abstractmethod
    def flush(self, epoch: int | None = None) -> None:
        """Return when the writes up to that epoch are durable; all writes so far if it is None."""

    @abstractmethod
    def generation(self, task: str) -> str:
        """Return the generation that writes as a task; empty if none does."""

    @abstractmethod
    def take(self, task: str, generation: str, instead_of: str | None = None) -> int:
        """Begin to write as a task: return the last checkpoint of the generation that is stored.

        From now on, every other generation that wrote as this task before is refused. With
        `instead_of`, raises FencedError if yet another generation writes as the task by now.
        """

    @abstractmethod
    def apply(self, rows: pa.RecordBatch, checkpoint: StoreCheckpoint) -> bool:
        """Store the rows and the checkpoint in one atomic write. It is durable when this returns.

        Returns False, and changes nothing, if the store holds the checkpoint already. Raises
        FencedError if another generation took the task over, and UsageError if the checkpoint does
        not follow the last one.
        """

    @abstractmethod
    def scan(self, **selection: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one snapshot that the selection keeps; see the store for its words."""

    @abstractmethod
    def stat(self) -> dict[str, int | float | str]:
        """Return figures for people: rows, bytes, oldest and newest."""

    @abstractmethod
    def close(self) -> None:
        """Flush, and free the store for other processes. Closing twice does nothing."""
