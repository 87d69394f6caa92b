"""Steps on the topics of a workspace: produce messages and commit offsets. Blocking, any thread.

A group's committed offset is the payload of a publisher named after group, topic and partition.
The transaction that appends a step's outputs carries it, and whoever opens the publisher fences
the worker that held it before.

If the owner of the workspace dies during a step, the next owner tells whether it committed. If it
did not, nothing of it is there, and the step is repeated. Only if no owner can tell in time, the
caller gets an InDoubtError.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import msgspec

from headrace.decoders import decode_msgpack
from headrace.errors import HeadraceError, InDoubtError, NotFoundError, PublishError
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX
from headrace.journal.publisher import Publisher, Transaction
from headrace.journal.workspace import Workspace
from headrace.queues.contract import OffsetCommit, Output
from headrace.queues.local_layout import (
    STEP_BYTES_MAX,
    CommittedOffset,
    Messages,
    PartitionId,
    check_step,
    first_offset,
    group_outputs,
    offset_publisher,
    offset_publishers,
    steps_of,
    to_batch,
)
from headrace.queues.local_reader import find_next_owner
from headrace.queues.local_topics import LocalTopics, repeat_if_lost
from headrace.queues.state import check_commit, check_expected


class LocalSteps:
    """The steps of this process."""

    def __init__(self, workspace: Workspace, topics: LocalTopics) -> None:
        self.bytes_max = min(
            STEP_BYTES_MAX, workspace.settings.journal.transaction_buffer_bytes // 2
        )
        self._workspace = workspace
        self._topics = topics
        self._lock = threading.Lock()
        self._holds: dict[tuple[str, PartitionId], _Hold] = {}

    # -- producing -------------------------------------------------------------------------

    def append(self, step: Sequence[Messages]) -> list[list[int]]:
        """Append messages in one transaction; returns their offsets."""
        self._check(step)

        def append_once() -> list[list[int]]:
            return self._commit(self._workspace.publisher().begin(), step, b"")

        return repeat_if_lost(self._workspace, append_once)

    def append_batch(self, messages: Messages) -> list[int]:
        """Append messages in as few transactions as their sizes allow; returns their offsets.

        Raises InDoubtError if some were appended, and then no more could be.
        """
        offsets: list[int] = []
        if not messages.values:
            self._check([messages])
        for part in steps_of(messages, self.bytes_max):
            try:
                offsets += self.append([part])[0]
            except HeadraceError as error:
                if not offsets:
                    raise
                raise InDoubtError(
                    f"{len(offsets)} of {len(messages.values)} messages were appended, and the"
                    f" next were not: {error.what}",
                    do=f"produce those from number {len(offsets)} on; before that {error.do}",
                ) from error
        return offsets

    def produce_and_commit(self, outputs: Sequence[Output], commit: OffsetCommit) -> list[int]:
        step, numbers = group_outputs(outputs)
        self._check(step)
        place = self._topics.partition(commit.topic, commit.partition)
        end = self._topics.bounds(place, through=commit.offset)[1]
        check_commit(commit.group, commit.topic, commit.partition, commit.offset, end)
        found = self._commit_offset(step, commit, place)
        offsets = [0] * len(outputs)
        for mine, theirs in zip(numbers, found, strict=True):
            for number, offset in zip(mine, theirs, strict=True):
                offsets[number] = offset
        return offsets

    def commit_offset(self, group: str, topic: str, offset: int, partition: int) -> None:
        found = self.committed(group, topic, partition)
        self.produce_and_commit([], OffsetCommit(group, topic, offset, found, partition))

    def _commit_offset(
        self, step: Sequence[Messages], commit: OffsetCommit, place: PartitionId
    ) -> list[list[int]]:
        for _ in range(OWNERS_LOST_MAX):
            hold = self._hold(commit, place)
            try:
                return self._commit_held(hold, step, commit)
            except InDoubtError:
                self._let_go(commit.group, place, hold)
                raise
            except HeadraceError as error:
                is_lost = isinstance(error, PublishError) and hold.publisher.is_lost()
                self._let_go(commit.group, place, hold)
                if not is_lost:
                    raise
                # The owner that gave us the publisher is gone, and nothing of the step is there.
                find_next_owner(self._workspace)
        return self._commit_held(self._hold(commit, place), step, commit)

    def _commit_held(
        self, hold: _Hold, step: Sequence[Messages], commit: OffsetCommit
    ) -> list[list[int]]:
        with hold.lock:
            check_expected(commit, hold.committed)
            payload = CommittedOffset(commit.offset, self._topics.record(commit.topic).incarnation)
            encoded = msgspec.msgpack.encode(payload)
            offsets = self._commit(hold.publisher.begin(), step, encoded)
            hold.committed = commit.offset
            return offsets

    def _check(self, step: Sequence[Messages]) -> None:
        for messages in step:
            self._topics.partition(*messages.to)
        check_step(step, self.bytes_max)

    def _commit(
        self, transaction: Transaction, step: Sequence[Messages], payload: bytes
    ) -> list[list[int]]:
        """Append messages and commit; returns their offsets."""
        try:
            now_ms = time.time_ns() // 1_000_000
            for messages in step:
                collection = self._topics.collection(messages.to.topic)
                transaction.append(collection, to_batch(messages, now_ms))
            pending = transaction.commit_nowait(payload)
        except BaseException as error:
            transaction.rollback()
            if isinstance(error, NotFoundError):
                self._forget(step)
            raise
        frames = iter(pending.offsets())
        offsets: list[list[int]] = []
        for messages in step:
            offsets.append([])
            while len(offsets[-1]) < len(messages.values):
                _, documents, position = next(frames)
                first = first_offset(position)
                offsets[-1] += range(first, first + documents)
        return offsets

    def _forget(self, step: Sequence[Messages]) -> None:
        for messages in step:
            self._topics.forget(messages.to.topic)

    # -- offsets of groups -----------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        self._topics.record(topic, fresh=True)
        name = offset_publisher(self._topics.partition(topic, partition), group)
        return self._decode(topic, self._workspace.payloads(name).get(name, b""))

    def least_committed(self, topic: str, partition: int) -> int | None:
        self._topics.record(topic, fresh=True)
        prefix = offset_publisher(self._topics.partition(topic, partition), "")
        found = self._workspace.payloads(prefix).values()
        offsets = [self._decode(topic, payload) for payload in found]
        return min((offset for offset in offsets if offset is not None), default=None)

    def committed_by_all(self, topic: str) -> dict[tuple[int, str], int]:
        """Return what each group has committed, by partition and group."""
        self._topics.record(topic, fresh=True)
        prefix = offset_publishers(topic)
        found: dict[tuple[int, str], int] = {}
        for name, payload in self._workspace.payloads(prefix).items():
            partition, _, group = name.removeprefix(prefix).partition(":")
            if (offset := self._decode(topic, payload)) is not None:
                found[int(partition), group] = offset
        return found

    def _decode(self, topic: str, payload: bytes) -> int | None:
        if not payload:
            return None
        known = decode_msgpack(payload, CommittedOffset)
        return known.offset if known.incarnation == self._topics.record(topic).incarnation else None

    def _hold(self, commit: OffsetCommit, place: PartitionId) -> _Hold:
        """Return the publisher that this process holds for the group, or take it over.

        Taking over fences whoever holds it, so the expected offset is compared first: a worker
        that is behind must not disturb the one that went on.
        """
        key = commit.group, place
        with self._lock:
            if found := self._holds.get(key):
                return found
            check_expected(commit, self.committed(commit.group, *place))
            publisher = self._workspace.publisher(offset_publisher(place, commit.group))
            hold = _Hold(publisher, self._decode(place.topic, publisher.payload))
            self._holds[key] = hold
            return hold

    def _let_go(self, group: str, place: PartitionId, hold: _Hold) -> None:
        """Forget a publisher after a failure: the next step takes it over anew."""
        with self._lock:
            if self._holds.get((group, place)) is hold:
                del self._holds[group, place]
        hold.publisher.close()

    def close(self) -> None:
        with self._lock:
            holds, self._holds = list(self._holds.values()), {}
        for hold in holds:
            hold.publisher.close()


class _Hold:
    """The publisher of a group's offset in one partition, held by this process."""

    def __init__(self, publisher: Publisher, committed: int | None) -> None:
        self.publisher = publisher
        self.committed = committed
        self.lock = threading.Lock()
