"""An oracle of what readers must see: it goes document by document and keeps no clever state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.clock import ZERO, Clock
from headrace.errors import ProtocolError
from headrace.ids import Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags


class Document(NamedTuple):
    """Names one document of a journal."""

    producer: Producer
    clock: Clock


def documents(frame: Frame) -> list[Document]:
    """Those of a frame that were not seen before."""
    return [
        Document(frame.producer, Clock(frame.clock + i)) for i in range(frame.skip, frame.documents)
    ]


class JournalOracle:
    """What one journal shows after each frame: `visible`, in the order it became so."""

    def __init__(self) -> None:
        self.visible: list[Document] = []
        self._pending: dict[Producer, list[Document]] = {}
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

    def take_all(self, frames: Iterable[Frame]) -> list[Document]:
        for frame in frames:
            self.take(frame)
        return self.visible

    def is_open(self, producer: Producer) -> bool:
        return producer in self._pending

    def _committed(self, producer: Producer) -> Clock:
        return self._last_commit.get(producer, ZERO)

    def _outside(self, document: Document) -> None:
        if self.is_open(document.producer):
            raise ProtocolError(f"{document} stands inside an open span")
        if document.clock > self._committed(document.producer):
            self.visible.append(document)
            self._last_commit[document.producer] = document.clock

    def _continue(self, document: Document) -> None:
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
