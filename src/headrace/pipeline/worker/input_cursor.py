"""How a worker moves through one input: what it skips, what it commits. Pure.

A durable stage moves two offsets. `position` is where it reads; `committed` is what its group has
committed in the origin. Behind a durable topic they are the same. Behind a memory topic the worker
reads from wherever the master knows, and leaves out messages whose origin is committed already:
they are there twice, because a stage on memory runs again after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from headrace.errors import DataError
from headrace.pipeline.master.inputs import StageInput
from headrace.pipeline.messages import ONLY, Origin, QueueMessage, decode_message
from headrace.queues.contract import OffsetCommit, Record


class Work(NamedTuple):
    """A message to process."""

    next_position: int
    """Where to read when it is processed."""
    origin_offset: int
    """What to commit in the origin when it is processed."""
    message: QueueMessage
    is_repeated: bool = False
    """True if it is to be left out: its origin is committed."""


class InputCursor:
    """One claim of one worker."""

    def __init__(
        self, input: StageInput, position: int, *, is_durable: bool, committed: int | None
    ) -> None:
        """`committed` is what the stage's group has committed in the origin, if it is durable."""
        self.input = input
        self.position = position
        self._is_durable = is_durable
        self._committed = committed
        if is_durable and input.is_input_durable and committed is not None:
            self.position = committed

    def select(self, records: Iterable[Record]) -> list[Work]:
        """Return the fetched messages, with those to leave out marked."""
        found: list[Work] = []
        passed = self._committed
        for record in records:
            work = self._work(record)
            if self._is_durable and not self.input.is_input_durable:
                # The same message may also be there twice in what was fetched at once.
                if passed is not None and work.origin_offset <= passed:
                    work = work._replace(is_repeated=True)
                else:
                    passed = work.origin_offset
            found.append(work)
        return found

    def _work(self, record: Record) -> Work:
        message = decode_message(record.value)
        if self.input.is_input_durable:
            return Work(record.offset + 1, record.offset + 1, message)
        origin = message.origin
        expected = self.input.origin_topic, self.input.origin_partition
        if origin is None or (origin.topic, origin.partition) != expected:
            raise DataError(
                f"message {record.offset} of {self.input.topic} has the origin {origin}, not"
                f" {expected}",
                do="let nothing but this job write to its topics",
            )
        return Work(record.offset + 1, origin.offset, message)

    def output(self, work: Work, unit: str, ref: str, rows: int) -> QueueMessage | None:
        """Return the message that the processed one becomes. A durable stage passes on rows only.

        A stage on memory passes on every message, so that the next durable stage sees all origins.
        """
        if self._is_durable:
            return QueueMessage(unit, ref, rows) if rows else None
        origin = Origin(self.input.origin_topic, self.input.origin_partition, work.origin_offset)
        return QueueMessage(unit, ref, rows, origin=origin)

    def is_meant_for_it(self, message: QueueMessage) -> bool:
        """True if the input processes a message. One that is replayed names the input it is for."""
        only = message.metadata.get(ONLY)
        return only is None or (self._is_durable and only == self.input.group)

    def pass_on(self, work: Work) -> QueueMessage | None:
        """Return a message that is not meant for this input as the next stage is to get it."""
        if self._is_durable:
            return None
        origin = Origin(self.input.origin_topic, self.input.origin_partition, work.origin_offset)
        return msgspec.structs.replace(work.message, origin=origin)

    def commit(self, last: Work) -> OffsetCommit:
        """Return the step of the committed offset after `last`."""
        return OffsetCommit(
            self.input.group,
            self.input.origin_topic,
            last.origin_offset,
            self._committed,
            self.input.origin_partition,
        )

    def move(self, position: int, last: Work | None) -> None:
        """What is below `position` is processed and kept; `last` was the last to be committed."""
        self.position = position
        if self._is_durable and last is not None:
            self._committed = last.origin_offset

    def fence(self, committed: int | None) -> bool:
        """Take over what is committed now. Return False if nobody has committed since.

        Whoever committed, it was the same messages in the same order, so the worker goes on after
        them.
        """
        if committed == self._committed:
            return False
        self._committed = committed
        if self.input.is_input_durable and committed is not None:
            self.position = committed
        return True
