"""What every queue backend promises: topics with partitions, offsets, and one atomic step.

A topic is an ordered log of messages per partition. A consumer group keeps one committed offset
per partition: the offset of the next message that it has not yet processed. Offsets ascend and
may have gaps, so `offset + 1` follows every message, and nothing else is to be read from them.

`produce_and_commit` is the step that makes a stage exactly-once: outputs and the input offset
become durable together or not at all. It compares the committed offset with the one that its caller
expects, so a worker that was given up, and wakes up later, is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import msgspec
import pyarrow as pa

from headrace.journal.location.workspace_ref import WorkspaceRef

RECORD_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
    ]
)
"""What `fetch_batch` returns: the columns of `Record`."""


class Record(NamedTuple):
    """One message as a consumer gets it."""

    offset: int
    key: bytes | None
    value: bytes
    timestamp: int
    """Milliseconds since 1970, from the clock of the process that took the message."""


class Output(NamedTuple):
    """One message to produce."""

    topic: str
    value: bytes
    key: bytes | None = None
    partition: int = 0


class OffsetCommit(NamedTuple):
    """Moves a group's committed offset of one partition from `expected` to `offset`."""

    group: str
    topic: str
    offset: int
    expected: int | None
    """None if the group has committed nothing there yet."""
    partition: int = 0


class QueueEndpoint(msgspec.Struct, frozen=True):
    """Where a queue backend is: `endpoint.connect` makes a backend of it in any process.

    It is small, and travels by pickle or msgspec. It holds the token, so keep it secret.
    """

    address: str = ""
    """Where topics in memory are served; empty for topics of a workspace."""
    token: str = ""
    workspace: WorkspaceRef | None = None


class QueueBackend(ABC):
    """Topics of one backend. Any task of one event loop may use it."""

    @abstractmethod
    async def start(self) -> None:
        """Start the backend, or connect to it. Starting twice does nothing."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop it and free what it holds. Stopping twice does nothing."""

    @abstractmethod
    def endpoint(self) -> QueueEndpoint:
        """Return where other processes reach the same topics; UsageError if they cannot."""

    @abstractmethod
    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic. One that exists with as many partitions stays as it is.

        Raises ExistsError if it exists with another number of partitions.
        """

    @abstractmethod
    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, its messages and what groups committed there."""

    @abstractmethod
    async def topics(self) -> dict[str, int]:
        """Return all topics, each with its number of partitions."""

    @abstractmethod
    async def produce(
        self, topic: str, value: bytes, key: bytes | None = None, *, partition: int = 0
    ) -> int:
        """Append one message and return its offset, once the backend keeps it.

        Messages that tasks produce at the same time share one write. After an InDoubtError nobody
        knows whether the message is there; after any other error of Headrace it is not. Topics in
        the memory of another process may also be lost (PeerLostError), with or without it.
        """

    @abstractmethod
    async def produce_batch(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int = 0,
    ) -> list[int]:
        """Append messages in order and return their offsets.

        A durable backend may take a large batch in several parts. If a part fails after others
        were appended, it raises InDoubtError, which says how many messages are there.
        """

    @abstractmethod
    async def fetch(
        self,
        topic: str,
        offset: int,
        max_records: int = 100,
        *,
        partition: int = 0,
        timeout_ms: int = 0,
    ) -> list[Record]:
        """Return the first messages at or after `offset`.

        The offset is one that the topic gave: that of a message, the one after it, or where the
        topic begins or ends. Others need not exist, because offsets may have gaps. If there is no
        message, wait up to `timeout_ms` for one. Raises BehindRetentionError if
        `truncate_before` removed messages at or after `offset`.
        """

    @abstractmethod
    async def fetch_batch(
        self,
        topic: str,
        offset: int,
        max_records: int = 100,
        *,
        partition: int = 0,
        timeout_ms: int = 0,
    ) -> pa.RecordBatch:
        """Return what `fetch` returns, as columns: see RECORD_SCHEMA."""

    @abstractmethod
    async def begin_offset(self, topic: str, *, partition: int = 0) -> int:
        """Return the offset at which the kept messages begin."""

    @abstractmethod
    async def end_offset(self, topic: str, *, partition: int = 0) -> int:
        """Return an offset that follows every message there is now."""

    @abstractmethod
    async def commit_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0
    ) -> None:
        """Set the group's committed offset, whatever it was."""

    @abstractmethod
    async def get_committed_offset(
        self, group: str, topic: str, *, partition: int = 0
    ) -> int | None:
        """Return the group's committed offset; None if it has committed nothing."""

    @abstractmethod
    async def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> int | None:
        """Return the least committed offset of all groups; None if no group has committed.

        Messages below it have been processed by every group that ever committed.
        """

    @abstractmethod
    async def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int]:
        """Append all outputs and move the offset, together or not at all.

        Returns the offsets of the outputs. Raises FencedError, and does nothing, if the committed
        offset is not the expected one. After an InDoubtError ask for the committed offset: if the
        step took effect, the committed offset is the new one, and a second attempt is refused.
        """

    @abstractmethod
    async def truncate_before(self, topic: str, offset: int, *, partition: int = 0) -> None:
        """Remove the messages below `offset`. The backend may keep some of them for a while."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()
