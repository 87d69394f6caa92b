"""A journal in memory, and the documents that tests write to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.clock import Clock
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame, JournalInfo, until_full

SCHEMA = pa.schema([pa.field("doc", pa.int64()), pa.field("key", pa.int64())])


class Document(NamedTuple):
    """One document, and where its publisher wrote it."""

    number: int
    key: int
    journal: JournalId
    producer: Producer
    clock: Clock
    transaction: int


def batch_of(documents: Sequence[Document]) -> pa.RecordBatch:
    numbers = np.array([document.number for document in documents], np.int64)
    keys = np.array([document.key for document in documents], np.int64)
    return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(keys)], schema=SCHEMA)


@dataclass(slots=True)
class Journal:
    id: JournalId
    name: str
    collection: str = ""
    key: int | None = None
    """The key of all its documents, if its collection is partitioned."""
    frames: list[Frame] = field(default_factory=list)
    head: Offset = field(default=Offset(0))

    def info(self, head: Offset | None = None) -> JournalInfo:
        head = self.head if head is None else head
        return JournalInfo(self.id, self.name, Offset(0), head, len(self.frames))

    def fetch(self, offset: int, through: int, bytes_max: int) -> list[Frame]:
        """Answer as `Journals.fetch` does."""
        found = (frame for frame in self.frames if offset <= frame.offset < through)
        return until_full(found, bytes_max, lambda frame: frame.bytes)

    def add(self, step: int, **fields: object) -> Frame:
        """Append a frame that ends `step` after its offset; offsets need not count bytes."""
        end = Offset(self.head + step)
        frame = Frame(journal=self.id, offset=self.head, end=end, schema=0, **fields)  # type: ignore[arg-type]
        self.frames.append(frame)
        self.head = end
        return frame

    def repeat(self, frame: Frame) -> None:
        """Append the same frame once more."""
        end = Offset(self.head + 1)
        self.frames.append(frame._replace(offset=self.head, end=end))
        self.head = end
