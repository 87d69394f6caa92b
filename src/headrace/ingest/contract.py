"""What a store gives the coordinator: how its writes merge, and how they reach storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NewType, Protocol, Self, TypeVar

Epoch = NewType("Epoch", int)
"""Numbers writes, from 1 on. Lives in memory only: a coordinator that opens begins at 1 again."""


class Delta(Protocol):
    """Writes that are not flushed yet. A writer makes one; the coordinator merges it into its own.

    What can be wrong with a write is found when its delta is made, in the thread of the writer. So
    merging cannot fail, and no write is applied by half.
    """

    @property
    def is_empty(self) -> bool: ...

    @property
    def size_bytes(self) -> int:
        """About how much memory it holds. Takes the same short time however large it is."""

    def merge(self, other: Self) -> None:
        """Apply the later writes of `other`, which nobody uses afterwards."""

    def copy(self) -> Self:
        """Return what it holds now, for readers: later merges into this delta do not change it.

        The rows themselves may be shared. Nobody merges into a copy.
        """


D = TypeVar("D", bound=Delta)
D_contra = TypeVar("D_contra", bound=Delta, contravariant=True)
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class FlushResult(Generic[S]):
    """What a flush made of a delta."""

    snapshot: S
    """Shows the delta and all that was flushed before. Readers share it; nothing changes it.

    The coordinator drops it when it publishes the next one. Readers may hold it for longer, so it
    must free itself when nobody refers to it any more.
    """
    sequence: int
    """Names the write in storage, for `FlushHandler.wait_durable`."""


class FlushHandler(Protocol[D_contra, S]):
    """Moves deltas into storage. The coordinator calls it from one thread, never twice at once."""

    def execute_flush(self, delta: D_contra, snapshot: S) -> FlushResult[S]:
        """Apply all of the delta in one atomic write. If it raises, none of it is there.

        The delta is frozen: readers may be looking at it, too. `snapshot` is the result of the
        flush before.
        """

    def wait_durable(self, sequence: int) -> None:
        """Return when that write and all before it survive a power failure.

        The coordinator may call it while the next flush runs, from another thread.
        """
