"""The numbered batches of a sink: which messages belong to each is stored before it is written.

    <prefix>/batches/<number>   the offsets at which the batch begins and ends, put if absent
    <prefix>/written/<number>   the batch is written: for sinks that do not know it themselves

A batch that was interrupted is written again with the same messages and the same number, so a sink
that knows the number holds every row once.
"""

from __future__ import annotations

import msgspec

from headrace.decoders import decode_json
from headrace.errors import DataError, NotFoundError
from headrace.storage import Objects


class SinkBatch(msgspec.Struct, frozen=True):
    """Messages of a topic."""

    number: int
    """Counts from 1, without gaps."""
    begins: list[int]
    """By partition."""
    ends: list[int]


class SinkBatches:
    """The batches of one sink."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def store(self, batch: SinkBatch) -> SinkBatch:
        """Store a batch unless its number is taken, and return the one that counts."""
        if self._objects.put_if_absent(
            self._key("batches", batch.number), msgspec.json.encode(batch)
        ):
            return batch
        return self.load(batch.number)

    def load(self, number: int) -> SinkBatch:
        key = self._key("batches", number)
        try:
            return decode_json(self._objects.get(key), SinkBatch)
        except (msgspec.MsgspecError, NotFoundError) as error:
            raise DataError(
                f"the batch {key} of a sink cannot be read: {error}", do="restore it from a backup"
            ) from error

    def last(self) -> int:
        """Return the number of the last batch that is stored; 0 if there is none."""
        return self._last("batches")

    def last_written(self) -> int:
        return self._last("written")

    def mark_written(self, number: int) -> None:
        self._objects.put(self._key("written", number), b"")

    def _key(self, kind: str, number: int) -> str:
        return f"{self._prefix}/{kind}/{number:020d}"

    def _last(self, kind: str) -> int:
        found = self._objects.list(f"{self._prefix}/{kind}")
        return max((int(each.key.rpartition("/")[2]) for each in found), default=0)
