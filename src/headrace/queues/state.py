"""The topics of a memory backend: messages, offsets, and what is refused. Pure.

Offsets count messages from 0 in each partition. A partition keeps its messages in three parallel
lists, so that a batch is produced and fetched without a loop over messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, repeat
from typing import Any, NamedTuple, NewType

from headrace.errors import (
    AheadOfHeadError,
    BehindRetentionError,
    ExistsError,
    FencedError,
    NotFoundError,
    UsageError,
)
from headrace.journal.names import check_collection_name
from headrace.queues.contract import OffsetCommit, Output, Record

PARTITIONS_MAX = 10_000

PartitionKey = NewType("PartitionKey", tuple[str, int])
"""A topic and the number of one of its partitions."""


class Columns(NamedTuple):
    """Messages, column by column: as `Record` has them."""

    offsets: range
    keys: list[bytes | None]
    values: list[bytes]
    timestamps: list[int]

    def records(self) -> list[Record]:
        return make_records(self)

    def first(self, bytes_max: int) -> Columns:
        """Return as many messages as fit, and at least one."""
        if message_bytes(self.values, self.keys) <= bytes_max:
            return self
        sizes = (len(v) + len(k or b"") for v, k in zip(self.values, self.keys, strict=True))
        fitting = sum(total <= bytes_max for total in accumulate(sizes)) or 1
        offsets, keys, values, timestamps = self
        return Columns(offsets[:fitting], keys[:fitting], values[:fitting], timestamps[:fitting])


def make_records(columns: Iterable[Iterable[Any]]) -> list[Record]:
    """Return a record for each message. `Record(...)` one by one would take three times as long."""
    return list(map(_new_record, zip(*columns, strict=True)))


_new_record: Callable[[tuple[Any, ...]], Record] = partial(tuple.__new__, Record)


class PartitionState:
    """The messages of one partition, oldest first."""

    def __init__(self) -> None:
        self.begin = 0
        self.kept_bytes = 0
        """Bytes of all kept keys and values."""
        self._removed = 0
        """How many messages at the front of the lists were truncated."""
        self._values: list[bytes] = []
        self._keys: list[bytes | None] = []
        self._timestamps: list[int] = []

    @property
    def end(self) -> int:
        return self.begin + len(self._values) - self._removed

    def append(
        self, values: Sequence[bytes], keys: Sequence[bytes | None] | None, timestamp: int
    ) -> range:
        """Take messages, and return their offsets."""
        first = self.end
        self._values += values
        self._keys += keys if keys is not None else repeat(None, len(values))
        self._timestamps += repeat(timestamp, len(values))
        self.kept_bytes += message_bytes(values, keys)
        return range(first, self.end)

    def columns(self, offset: int, most: int) -> Columns:
        """Return up to `most` messages from an offset on, which must not be truncated."""
        first = offset - self.begin + self._removed
        last = first + most
        values = self._values[first:last]
        offsets = range(offset, offset + len(values))
        return Columns(offsets, self._keys[first:last], values, self._timestamps[first:last])

    def truncate(self, offset: int) -> None:
        last = min(self._removed + max(offset - self.begin, 0), len(self._values))
        gone = slice(self._removed, last)
        self.kept_bytes -= message_bytes(self._values[gone], self._keys[gone])
        self.begin += last - self._removed
        self._removed = last
        # Removing the front of a list moves the rest: this keeps the cost of a message constant.
        if 4 * last >= len(self._values):
            del self._values[:last], self._keys[:last], self._timestamps[:last]
            self._removed = 0

    def validate(self) -> None:
        assert len(self._values) == len(self._keys) == len(self._timestamps)
        assert self.begin >= 0
        assert 0 <= self._removed <= len(self._values)
        kept = slice(self._removed, None)
        assert self.kept_bytes == message_bytes(self._values[kept], self._keys[kept])


class TopicsState:
    """All topics of a backend, and what groups have committed there."""

    def __init__(self) -> None:
        self._topics: dict[str, list[PartitionState]] = {}
        self._committed: dict[PartitionKey, dict[str, int]] = {}

    @property
    def topics(self) -> dict[str, int]:
        return {topic: len(partitions) for topic, partitions in self._topics.items()}

    @property
    def kept_bytes(self) -> int:
        """Bytes of all messages that are kept."""
        return sum(each.kept_bytes for partitions in self._topics.values() for each in partitions)

    def create_topic(self, topic: str, partitions: int) -> None:
        check_topic(topic)
        check_partitions(topic, partitions)
        present = self._topics.get(topic)
        if present is None:
            self._topics[topic] = [PartitionState() for _ in range(partitions)]
        else:
            check_same_partitions(topic, len(present), partitions)

    def delete_topic(self, topic: str) -> None:
        self._partitions(topic)
        del self._topics[topic]
        self._committed = {
            key: groups for key, groups in self._committed.items() if key[0] != topic
        }

    def partition(self, topic: str, partition: int) -> PartitionState:
        partitions = self._partitions(topic)
        if not 0 <= partition < len(partitions):
            raise no_partition(topic, partition, len(partitions))
        return partitions[partition]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        kept = self.partition(topic, partition)
        return kept.begin, kept.end

    def _partitions(self, topic: str) -> list[PartitionState]:
        if (found := self._topics.get(topic)) is None:
            raise no_topic(topic)
        return found

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        partition: int,
        timestamp: int,
    ) -> range:
        check_keys(topic, values, keys)
        return self.partition(topic, partition).append(values, keys, timestamp)

    def fetch(self, topic: str, offset: int, most: int, partition: int) -> Columns:
        check_most(most)
        kept = self.partition(topic, partition)
        check_offset(topic, partition, offset, kept.begin, kept.end)
        return kept.columns(offset, most)

    def commit(self, group: str, topic: str, offset: int, partition: int) -> None:
        kept = self.partition(topic, partition)
        check_commit(group, topic, partition, offset, kept.end)
        self._committed.setdefault(PartitionKey((topic, partition)), {})[group] = offset

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        self.partition(topic, partition)
        return self._committed.get(PartitionKey((topic, partition)), {}).get(group)

    def least_committed(self, topic: str, partition: int) -> int | None:
        self.partition(topic, partition)
        groups = self._committed.get(PartitionKey((topic, partition)), {})
        return min(groups.values(), default=None)

    def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit, timestamp: int
    ) -> list[int]:
        """Check everything first: after the first change nothing can be refused."""
        for output in outputs:
            self.partition(output.topic, output.partition)
        kept = self.partition(commit.topic, commit.partition)
        check_commit(commit.group, commit.topic, commit.partition, commit.offset, kept.end)
        check_expected(commit, self.committed(commit.group, commit.topic, commit.partition))
        offsets = [
            self.produce(topic, [value], [key], partition, timestamp)[0]
            for topic, value, key, partition in outputs
        ]
        self.commit(commit.group, commit.topic, commit.offset, commit.partition)
        return offsets

    def truncate_before(self, topic: str, offset: int, partition: int) -> None:
        self.partition(topic, partition).truncate(offset)

    def validate(self) -> None:
        """Check what must hold between any two calls."""
        for partitions in self._topics.values():
            for partition in partitions:
                partition.validate()
        for (topic, number), groups in self._committed.items():
            end = self.partition(topic, number).end
            assert all(0 <= offset <= end for offset in groups.values()), (topic, number, groups)


def message_bytes(values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> int:
    return sum(map(len, values)) + sum(map(len, filter(None, keys or ())))


# -- what every backend refuses, in the same words --------------------------------------------


def check_topic(topic: str) -> None:
    try:
        check_collection_name(f"topics/{topic}")
    except UsageError as error:
        raise UsageError(f"{topic!r} cannot name a topic", do=error.do) from None


def check_most(most: int) -> None:
    if most < 1:
        raise UsageError(f"a fetch cannot return {most} messages", do="ask for at least one")


def check_partitions(topic: str, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise UsageError(
            f"topic {topic!r} cannot have {partitions} partitions",
            do=f"give it 1 to {PARTITIONS_MAX}",
        )


def check_same_partitions(topic: str, present: int, wanted: int) -> None:
    if present != wanted:
        raise ExistsError(
            f"topic {topic!r} exists with {present} partitions, not {wanted}",
            do="use as many, or another name",
        )


def check_keys(topic: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> None:
    if keys is not None and len(keys) != len(values):
        raise UsageError(
            f"{len(values)} messages for topic {topic!r} have {len(keys)} keys",
            do="give one key for each, or none at all",
        )


def check_offset(topic: str, partition: int, offset: int, begin: int, end: int) -> None:
    if offset < begin:
        raise BehindRetentionError(
            f"topic {topic!r}, partition {partition} begins at {begin}: {offset} was truncated",
            do=f"fetch from {begin} on",
        )
    if offset > end:
        raise AheadOfHeadError(
            f"topic {topic!r}, partition {partition} ends at {end}, below {offset}",
            do=f"fetch from {end} or below",
        )


def check_commit(group: str, topic: str, partition: int, offset: int, end: int) -> None:
    if not 0 <= offset <= end:
        raise UsageError(
            f"group {group!r} cannot commit {offset}: topic {topic!r}, partition {partition}"
            f" ends at {end}",
            do="commit the offset after a message that was fetched",
        )


def check_expected(commit: OffsetCommit, found: int | None) -> None:
    if found != commit.expected:
        raise FencedError(
            f"group {commit.group!r} has committed {found} in topic {commit.topic!r}, partition"
            f" {commit.partition}, not {commit.expected}: another worker went on from there",
            do="fetch from the committed offset, or end this worker",
        )


def no_topic(topic: str) -> NotFoundError:
    return NotFoundError(f"there is no topic {topic!r}", do="create it first")


def no_partition(topic: str, partition: int, partitions: int) -> NotFoundError:
    return NotFoundError(
        f"topic {topic!r} has {partitions} partitions, and no partition {partition}",
        do=f"use 0 to {partitions - 1}",
    )
