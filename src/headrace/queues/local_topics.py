"""The topics of a workspace: which there are, where their messages are. Blocking, for any thread.

What a process knows of a topic it remembers until the workspace refuses something of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import pyarrow as pa

from headrace.errors import (
    BehindRetentionError,
    FencedError,
    NotFoundError,
    PeerLostError,
    PublishError,
)
from headrace.ids import JournalId
from headrace.journal.collection import Collection
from headrace.journal.contract import JournalInfo
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX
from headrace.journal.publisher import Publisher
from headrace.journal.workspace import Workspace
from headrace.queues.contract import RECORD_SCHEMA
from headrace.queues.local_layout import (
    SCHEMA,
    PartitionId,
    TopicRecord,
    collection_name,
    decode_topic,
    first_offset,
    journal_name,
    offset_publishers,
    split_offset,
    topic_publisher,
)
from headrace.queues.local_reader import LocalReader, find_next_owner
from headrace.queues.state import (
    check_most,
    check_offset,
    check_partitions,
    check_same_partitions,
    check_topic,
    no_partition,
    no_topic,
)

T = TypeVar("T")


class LocalTopics:
    """What this process knows of the topics of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._reader = LocalReader(workspace)
        self._lock = threading.Lock()
        self._records: dict[str, TopicRecord] = {}
        self._collections: dict[str, Collection] = {}
        self._journals: dict[PartitionId, JournalInfo] = {}

    # -- which topics there are ------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        found = self.workspace.payloads(topic_publisher(""))
        records = {
            name.removeprefix(topic_publisher("")): decode_topic(payload)
            for name, payload in found.items()
        }
        return {topic: each.partitions for topic, each in records.items() if each.partitions}

    def create(self, topic: str, partitions: int) -> None:
        check_topic(topic)
        check_partitions(topic, partitions)
        self._change(topic, lambda publisher: self._create(topic, partitions, publisher))

    def _create(self, topic: str, partitions: int, publisher: Publisher) -> None:
        present = decode_topic(publisher.payload)
        if present.partitions:
            check_same_partitions(topic, present.partitions, partitions)
            return
        # Whoever deleted the topic may have died before it deleted the messages.
        self._delete_messages(topic)
        self.workspace.collection(collection_name(topic), SCHEMA, partition_by="partition")
        created = TopicRecord(partitions, present.incarnation + 1)
        publisher.begin().commit(msgspec.msgpack.encode(created))

    def delete(self, topic: str) -> None:
        self.record(topic, fresh=True)
        self._change(topic, lambda publisher: self._delete(topic, publisher))

    def _delete(self, topic: str, publisher: Publisher) -> None:
        present = decode_topic(publisher.payload)
        if present.partitions:
            deleted = TopicRecord(0, present.incarnation)
            publisher.begin().commit(msgspec.msgpack.encode(deleted))
        # A worker that does not know yet must not commit to the next topic of this name.
        for name in self.workspace.payloads(offset_publishers(topic)):
            self.workspace.publisher(name).close()
        self._delete_messages(topic)

    def _delete_messages(self, topic: str) -> None:
        if any(each.name == collection_name(topic) for each in self.workspace.collections()):
            self.workspace.delete_collection(collection_name(topic))

    def _change(self, topic: str, change: Callable[[Publisher], None]) -> None:
        """Change a topic. Its publisher lets one process at a time do so."""

        def with_publisher() -> None:
            publisher = self.workspace.publisher(topic_publisher(topic))
            try:
                change(publisher)
            finally:
                publisher.close()

        repeat_if_lost(self.workspace, with_publisher)
        self.forget(topic)

    def record(self, topic: str, *, fresh: bool = False) -> TopicRecord:
        """Return the record of a topic, as this process remembers it. Raises NotFoundError."""
        known = None if fresh else self._records.get(topic)
        if known is None:
            name = topic_publisher(topic)
            known = decode_topic(self.workspace.payloads(name).get(name, b""))
            if known != self._records.get(topic):
                self.forget(topic)
            if not known.partitions:
                raise no_topic(topic)
            self._records[topic] = known
        return known

    def partition(self, topic: str, partition: int) -> PartitionId:
        """Return a partition that exists."""
        partitions = self.record(topic).partitions
        if not 0 <= partition < partitions:
            raise no_partition(topic, partition, partitions)
        return PartitionId(topic, partition)

    def collection(self, topic: str) -> Collection:
        if (found := self._collections.get(topic)) is None:
            found = self._collections[topic] = self.workspace.collection(collection_name(topic))
        return found

    def forget(self, topic: str) -> None:
        """Look the topic up again at its next use: it may have been deleted and created anew."""
        with self._lock:
            self._records.pop(topic, None)
            self._collections.pop(topic, None)
            for place in [each for each in self._journals if each.topic == topic]:
                self._reader.forget(self._journals.pop(place).id)

    # -- where messages are ----------------------------------------------------------------

    def journal(self, place: PartitionId, *, fresh: bool = False) -> JournalInfo | None:
        """Return the journal of a partition; None before its first message."""
        known = self._journals.get(place)
        if fresh or known is None:
            found = self.workspace.journals_named([journal_name(place)])
            if not found:
                return None
            with self._lock:
                known = self._journals[place] = found[0]
        return known

    def heads_moved(self, heads: Mapping[JournalId, int]) -> None:
        """Take over heads that a watch saw."""
        with self._lock:
            for place, info in self._journals.items():
                if (head := heads.get(info.id)) is not None and head > info.head:
                    self._journals[place] = msgspec.structs.replace(info, head=head)

    def bounds(self, place: PartitionId, *, through: int | None = None) -> tuple[int, int]:
        """Return where the messages of a partition begin and end now.

        If the caller only needs to know an end at or above `through`, an older answer may do.
        """
        info = None if through is None else self.journal(place)
        if info is None or through is None or through > first_offset(info.head):
            info = self.journal(place, fresh=True)
        return (first_offset(info.begin), first_offset(info.head)) if info else (0, 0)

    def fetch(self, topic: str, offset: int, most: int, partition: int) -> pa.RecordBatch:
        """Return up to `most` messages at or after `offset`."""
        check_most(most)
        place = self.partition(topic, partition)
        try:
            return self._fetch(place, offset, most)
        except (BehindRetentionError, NotFoundError):
            # Another process has truncated the topic, or deleted it and created it anew.
            self.forget(topic)
            return self._fetch(self.partition(topic, partition), offset, most)

    def _fetch(self, place: PartitionId, offset: int, most: int) -> pa.RecordBatch:
        # What this process remembers tells of many messages without asking, but never of none.
        if (known := self._journals.get(place)) and offset < first_offset(known.head):
            found = self._read(place, known, offset, most)
            if found.num_rows:
                return found
        return self._read(place, self.journal(place, fresh=True), offset, most)

    def _read(
        self, place: PartitionId, info: JournalInfo | None, offset: int, most: int
    ) -> pa.RecordBatch:
        begin, head = (info.begin, info.head) if info else (0, 0)
        check_offset(*place, offset, first_offset(begin), first_offset(head))
        if info is None:
            return pa.RecordBatch.from_pylist([], RECORD_SCHEMA)
        return self._reader.fetch(self.collection(place.topic), info, offset, most)

    def truncate_before(self, topic: str, offset: int, partition: int) -> None:
        """Remove the frames whose messages all lie below `offset`, but for the last of them."""
        place = self.partition(topic, partition)
        if info := self.journal(place, fresh=True):
            position = min(split_offset(offset)[0], info.head)
            if position > info.begin:
                self.workspace.trim(info, position)
                self.journal(place, fresh=True)


def repeat_if_lost(workspace: Workspace, change: Callable[[], T]) -> T:
    """Run a change; repeat it with the next owner if its owner was lost and nothing is there.

    A FencedError is the answer of an owner that lives: somebody else has taken over.
    """
    for _ in range(OWNERS_LOST_MAX):
        try:
            return change()
        except FencedError:
            raise
        except (PublishError, PeerLostError):
            find_next_owner(workspace)
    return change()
