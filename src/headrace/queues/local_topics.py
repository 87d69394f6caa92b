"""Topics on the journals of a workspace: what is stored where. Blocking, for any thread.

A topic is a collection, and each partition one journal of it. A message's offset is made of the
offset of its frame in the journal and of its place in that frame, so whoever has an offset knows
where to read. The messages of one step travel as one write of the journal: a frame per partition
and their commit, next to each other. So messages are committed in the order of their offsets.

A group's committed offset is the payload of a publisher named after group, topic and partition.
The transaction that appends a step's outputs carries it, and whoever opens the publisher fences
the worker that held it before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from headrace.errors import DataError, HeadraceError, UsageError
from headrace.ids import JournalId
from headrace.journal.collection import Collection
from headrace.journal.committed_documents import committed
from headrace.journal.contract import Frame, JournalInfo
from headrace.journal.names import selector
from headrace.journal.publisher import Publisher, Transaction
from headrace.journal.workspace import Workspace
from headrace.queues.contract import RECORD_SCHEMA, OffsetCommit, Output
from headrace.queues.state import (
    check_commit,
    check_expected,
    check_offset,
    check_partitions,
    check_same_partitions,
    no_partition,
    no_topic,
)
from headrace.settings import MIB

_INDEX_BITS = 20
"""An offset's low bits say which message of its frame it is: a frame has far fewer."""
_INDEX_MASK = (1 << _INDEX_BITS) - 1

STEP_BYTES_MAX = 2 * MIB
"""The most that one step may produce: it must travel as one write of the journal."""
_FETCH_BYTES = 1 * MIB

_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
    ]
)


class TopicRecord(msgspec.Struct, frozen=True):
    """What a workspace knows of a topic: the payload of the publisher that is named after it."""

    partitions: int
    """0 if the topic was deleted."""
    incarnation: int
    """Counts how often a topic of this name was created: offsets of an earlier one are void."""


class CommittedOffset(msgspec.Struct, frozen=True):
    """The payload of the publisher that is named after group, topic and partition."""

    offset: int
    incarnation: int


class PartitionId(NamedTuple):
    topic: str
    partition: int


class LocalTopics:
    """The topics of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._lock = threading.Lock()
        self._known: dict[str, TopicRecord] = {}
        self._journals: dict[PartitionId, JournalInfo] = {}
        self._holds: dict[tuple[str, PartitionId], _Hold] = {}
        self._decoded: tuple[JournalId, int, pa.RecordBatch] | None = None
        """The frame that was read last: a consumer that takes few messages at once reads on."""

    # -- topics ----------------------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        found = self._workspace.payloads(_topic_publisher(""))
        records = {
            name.removeprefix(_topic_publisher("")): msgspec.msgpack.decode(data, type=TopicRecord)
            for name, data in found.items()
        }
        return {topic: each.partitions for topic, each in records.items() if each.partitions}

    def create(self, topic: str, partitions: int) -> None:
        check_partitions(topic, partitions)
        # The publisher of the topic lets one process at a time create or delete it.
        publisher = self._workspace.publisher(_topic_publisher(topic))
        try:
            present = _decode_topic(publisher.payload)
            if present.partitions:
                check_same_partitions(topic, present.partitions, partitions)
                return
            self._workspace.collection(_collection(topic), _SCHEMA, partition_by="partition")
            created = TopicRecord(partitions, present.incarnation + 1)
            publisher.begin().commit(msgspec.msgpack.encode(created))
        finally:
            publisher.close()

    def delete(self, topic: str) -> None:
        present = self._record(topic, fresh=True)
        publisher = self._workspace.publisher(_topic_publisher(topic))
        try:
            deleted = TopicRecord(0, present.incarnation)
            publisher.begin().commit(msgspec.msgpack.encode(deleted))
            self._workspace.delete_collection(_collection(topic))
        finally:
            publisher.close()
        with self._lock:
            self._known.pop(topic, None)
            self._journals = {k: info for k, info in self._journals.items() if k.topic != topic}

    def _record(self, topic: str, *, fresh: bool = False) -> TopicRecord:
        if fresh or topic not in self._known:
            name = _topic_publisher(topic)
            self._known[topic] = _decode_topic(self._workspace.payloads(name).get(name, b""))
        record = self._known[topic]
        if not record.partitions:
            del self._known[topic]
            raise no_topic(topic)
        return record

    def _check(self, topic: str, partition: int) -> PartitionId:
        record = self._record(topic)
        if not 0 <= partition < record.partitions:
            raise no_partition(topic, partition, record.partitions)
        return PartitionId(topic, partition)

    # -- producing -------------------------------------------------------------------------

    def append(self, outputs: Sequence[Output]) -> list[int]:
        """Append messages in one transaction; returns their offsets."""
        for output in outputs:
            self._check(output.topic, output.partition)
        transaction = self._workspace.publisher().begin()
        return self._commit(transaction, outputs, b"")

    def produce_and_commit(self, outputs: Sequence[Output], commit: OffsetCommit) -> list[int]:
        for output in outputs:
            self._check(output.topic, output.partition)
        place = self._check(commit.topic, commit.partition)
        end = self.bounds(*place)[1]
        check_commit(commit.group, commit.topic, commit.partition, commit.offset, end)
        hold = self._hold(commit, place)
        payload = self._offset_payload(commit.topic, commit.offset)
        try:
            with hold.lock:
                check_expected(commit, hold.committed)
                offsets = self._commit(hold.publisher.begin(), outputs, payload)
                hold.committed = commit.offset
                return offsets
        except HeadraceError:
            self._let_go(commit.group, place, hold)
            raise

    def commit_offset(self, group: str, topic: str, offset: int, partition: int) -> None:
        found = self.committed(group, topic, partition)
        self.produce_and_commit([], OffsetCommit(group, topic, offset, found, partition))

    def _commit(
        self, transaction: Transaction, outputs: Sequence[Output], payload: bytes
    ) -> list[int]:
        """Append the outputs and commit; returns the offset of each output."""
        try:
            _check_size(outputs)
            grouped = _by_partition(outputs)
            for place, numbers in grouped.items():
                collection = self._workspace.collection(_collection(place.topic))
                batch = _to_batch(place.partition, [outputs[n] for n in numbers])
                transaction.append(collection, batch)
            pending = transaction.commit_nowait(payload)
        except BaseException:
            transaction.rollback()
            raise
        frames = pending.offsets()
        if frames is None:
            raise DataError(
                "the owner of the workspace was lost, and the next one knows no offsets",
                do="fetch the messages: they are there",
            )
        offsets = [0] * len(outputs)
        remaining = iter(frames)
        for numbers in grouped.values():
            at = 0
            while at < len(numbers):
                _, documents, begin = next(remaining)
                for index in range(documents):
                    offsets[numbers[at + index]] = (begin << _INDEX_BITS) | index
                at += documents
        return offsets

    # -- offsets of groups -----------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        place = self._check(topic, partition)
        name = _offset_publisher(place, group)
        return self._decode_offset(topic, self._workspace.payloads(name).get(name, b""))

    def least_committed(self, topic: str, partition: int) -> int | None:
        prefix = _offset_publisher(self._check(topic, partition), "")
        found = self._workspace.payloads(prefix).values()
        offsets = [self._decode_offset(topic, payload) for payload in found]
        return min((offset for offset in offsets if offset is not None), default=None)

    def _decode_offset(self, topic: str, payload: bytes) -> int | None:
        if not payload:
            return None
        known = msgspec.msgpack.decode(payload, type=CommittedOffset)
        return known.offset if known.incarnation == self._record(topic).incarnation else None

    def _offset_payload(self, topic: str, offset: int) -> bytes:
        return msgspec.msgpack.encode(CommittedOffset(offset, self._record(topic).incarnation))

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
            publisher = self._workspace.publisher(_offset_publisher(place, commit.group))
            hold = _Hold(publisher, self._decode_offset(place.topic, publisher.payload))
            self._holds[key] = hold
            return hold

    def _let_go(self, group: str, place: PartitionId, hold: _Hold) -> None:
        """Forget a publisher after a failure: the next step takes it over anew."""
        with self._lock:
            if self._holds.get((group, place)) is hold:
                del self._holds[group, place]
        hold.publisher.close()

    # -- reading ---------------------------------------------------------------------------

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return where the messages of a partition begin and end now."""
        info = self._journal(self._check(topic, partition), fresh=True)
        if info is None:
            return 0, 0
        return info.begin << _INDEX_BITS, info.head << _INDEX_BITS

    def fetch(self, topic: str, offset: int, most: int, partition: int) -> pa.RecordBatch:
        """Return up to `most` messages at or after `offset`."""
        place = self._check(topic, partition)
        info = self._journal(place, fresh=False)
        if info is None or offset >= info.head << _INDEX_BITS:
            info = self._journal(place, fresh=True)
        begin, end = (info.begin, info.head) if info else (0, 0)
        check_offset(topic, partition, offset, begin << _INDEX_BITS, end << _INDEX_BITS)
        if info is None:
            return pa.RecordBatch.from_pylist([], RECORD_SCHEMA)
        collection = self._workspace.collection(_collection(topic))
        found: list[pa.RecordBatch] = []
        for records in self._records(collection, info, offset):
            found.append(records.slice(0, most))
            most -= found[-1].num_rows
            if not most:
                break
        return pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], RECORD_SCHEMA)

    def _records(
        self, collection: Collection, info: JournalInfo, offset: int
    ) -> Iterator[pa.RecordBatch]:
        position, index = offset >> _INDEX_BITS, offset & _INDEX_MASK
        decoded = self._decoded
        if decoded and decoded[:2] == (info.id, position):
            yield decoded[2].slice(index)
            # The frame itself is read again below, and passed over.
            index = decoded[2].num_rows
        for frame in self._frames(info, position):
            batch = self._decode(collection, frame)
            yield batch.slice(index if frame.offset == position else 0)

    def _frames(self, info: JournalInfo, position: int) -> Iterator[Frame]:
        """Yield committed frames from a position on."""
        pending: list[Frame] = []
        while position < info.head:
            frames = self._workspace.fetch(info, position, _FETCH_BYTES).result()
            if not frames:
                return
            position = frames[-1].end
            pending += frames
            # A step is one write, so only the last of them can be cut off by the fetch.
            done = list(committed(pending))
            yield from done
            last = done[-1].offset if done else -1
            pending = [each for each in pending if each.offset > last] if done else pending

    def _decode(self, collection: Collection, frame: Frame) -> pa.RecordBatch:
        decoded = self._decoded
        if decoded and decoded[:2] == (frame.journal, frame.offset):
            return decoded[2]
        batch = collection.decode(frame.body, frame.schema)
        first = frame.offset << _INDEX_BITS
        offsets = pa.array(range(first, first + batch.num_rows), pa.int64())
        columns = [offsets, *(batch.column(name) for name in RECORD_SCHEMA.names[1:])]
        records = pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
        self._decoded = frame.journal, frame.offset, records
        return records

    def _journal(self, place: PartitionId, *, fresh: bool) -> JournalInfo | None:
        if fresh or place not in self._journals:
            wanted = selector(_collection(place.topic), {"partition": [place.partition]})
            found = self._workspace.journals(wanted)
            if not found:
                return None
            with self._lock:
                self._journals[place] = found[0]
        return self._journals[place]

    def heads_moved(self, heads: Mapping[JournalId, int]) -> None:
        """Take over heads that a watch saw."""
        with self._lock:
            for place, info in self._journals.items():
                if (head := heads.get(info.id)) is not None and head > info.head:
                    self._journals[place] = msgspec.structs.replace(info, head=head)

    def truncate_before(self, topic: str, offset: int, partition: int) -> None:
        """Remove the frames whose messages all lie below `offset`."""
        place = self._check(topic, partition)
        info = self._journal(place, fresh=True)
        if info is None:
            return
        position = min(offset >> _INDEX_BITS, info.head)
        if position > info.begin:
            self._workspace.trim(info, position)
            self._journal(place, fresh=True)

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


def _collection(topic: str) -> str:
    return f"queues/{topic}"


def _topic_publisher(topic: str) -> str:
    return f"queue-topic:{topic}"


def _offset_publisher(place: PartitionId, group: str) -> str:
    return f"queue-offset:{place.topic}:{place.partition}:{group}"


def _decode_topic(payload: bytes) -> TopicRecord:
    return msgspec.msgpack.decode(payload, type=TopicRecord) if payload else TopicRecord(0, 0)


def _by_partition(outputs: Sequence[Output]) -> dict[PartitionId, list[int]]:
    """The numbers of the outputs for each partition."""
    grouped: dict[PartitionId, list[int]] = {}
    for number, output in enumerate(outputs):
        grouped.setdefault(PartitionId(output.topic, output.partition), []).append(number)
    return grouped


def _to_batch(partition: int, outputs: Sequence[Output]) -> pa.RecordBatch:
    now_ms = time.time_ns() // 1_000_000
    columns = [
        pa.repeat(pa.scalar(partition, pa.int32()), len(outputs)),
        pa.array([output.key for output in outputs], pa.binary()),
        pa.array([output.value for output in outputs], pa.binary()),
        pa.repeat(pa.scalar(now_ms, pa.int64()), len(outputs)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def output_bytes(outputs: Iterable[Output]) -> int:
    return sum(len(output.value) + len(output.key or b"") for output in outputs)


def _check_size(outputs: Sequence[Output]) -> None:
    if (size := output_bytes(outputs)) > STEP_BYTES_MAX:
        raise UsageError(
            f"one step produces {size} bytes, more than {STEP_BYTES_MAX}",
            do="let messages refer to what is stored elsewhere, or produce fewer at once",
        )
