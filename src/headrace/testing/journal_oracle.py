"""An oracle of what readers must see. It goes document by document and is as simple as can be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.clock import ZERO, Clock
from headrace.errors import ProtocolError
from headrace.ids import Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags


class DocumentId(NamedTuple):
    """Identifies one document of a journal."""

    producer: Producer
    clock: Clock


def documents(frame: Frame) -> list[DocumentId]:
    """Return the documents of a frame that no frame before it had."""
    return [
        DocumentId(frame.producer, Clock(frame.clock + i))
        for i in range(frame.skip, frame.documents)
    ]


class JournalOracle:
    """Computes what readers see of one journal: `visible`, in the order in which it became so."""

    def __init__(self) -> None:
        self.visible: list[DocumentId] = []
        self._pending: dict[Producer, list[DocumentId]] = {}
        self._seen: dict[Producer, set[Clock]] = {}
        self._last_commit: dict[Producer, Clock] = {}

    def take(self, frame: Frame) -> None:
        if frame.flags is Flags.ACK:
            self._acknowledge(frame.producer, frame.clock)
            return
        for document in documents(frame):
            if frame.flags is Flags.OUTSIDE:
                self._outside(document)
            else:
                self._continue(document)

    def take_all(self, frames: Iterable[Frame]) -> list[DocumentId]:
        for frame in frames:
            self.take(frame)
        return self.visible

    def is_open(self, producer: Producer) -> bool:
        return producer in self._pending

    def _committed(self, producer: Producer) -> Clock:
        return self._last_commit.get(producer, ZERO)

    def _outside(self, document: DocumentId) -> None:
        if self.is_open(document.producer):
            raise ProtocolError(f"{document} stands inside an open span")
        if document.clock > self._committed(document.producer):
            self.visible.append(document)
            self._last_commit[document.producer] = document.clock

    def _continue(self, document: DocumentId) -> None:
        seen = self._seen.setdefault(document.producer, set())
        if document.clock > max(seen, default=ZERO) and document.clock > self._committed(
            document.producer
        ):
            seen.add(document.clock)
            self._pending.setdefault(document.producer, []).append(document)

    def _acknowledge(self, producer: Producer, clock: Clock) -> None:
        pending = self._pending.get(producer, [])
        if clock <= self._committed(producer):
            self._pending.pop(producer, None)
            return
        if any(document.clock > clock for document in pending):
            raise ProtocolError(f"ACK {clock} of {producer} stands below {pending[-1]}")
        self.visible += self._pending.pop(producer, [])
        self._last_commit[producer] = clock
