"""The file of a Queue, in memory. A position in it is the number of an item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.shuffle.block import BlockHead, SpanEnd, block_bytes
from headrace.shuffle.queue.queue_reader import BlockEntry, Entry, RetractionEntry, StopEntry
from headrace.shuffle.queue.store import QueueStore


class _Block(NamedTuple):
    head: BlockHead
    body: Any
    is_copy: bool


class _Retraction(NamedTuple):
    retracted: tuple[SpanEnd, ...]


class _Stop(NamedTuple):
    places: tuple[int, ...]
    last_checkpoint: int


class QueueFile(QueueStore):
    """Items become durable with `synced`. Reading a block that was given back fails."""

    def __init__(self) -> None:
        self._items: list[_Block | _Retraction | _Stop | None] = []
        self._synced_end = 0

    @property
    def end(self) -> int:
        return len(self._items)

    def write_block(self, head: BlockHead, body: Any) -> None:
        self._items.append(_Block(head, body, is_copy=False))

    def write_retraction(self, retracted: tuple[SpanEnd, ...]) -> None:
        self._items.append(_Retraction(retracted))

    def write_stop(self, places: tuple[int, ...], checkpoint: int) -> None:
        self._items.append(_Stop(places, checkpoint))

    def synced(self, end: int) -> None:
        """Note that everything below `end` is durable."""
        self._synced_end = max(self._synced_end, end)

    def synced_end(self) -> int:
        return self._synced_end

    def entries(self, position: int) -> Iterator[tuple[int, int, Entry | None]]:
        for number in range(position, self._synced_end):
            item = self._items[number]
            if isinstance(item, _Retraction):
                yield number, 0, RetractionEntry(number, item.retracted)
            elif isinstance(item, _Stop):
                yield number, 0, StopEntry(number, *item)
            else:
                block = self._block(number)
                size = block_bytes(block.head, block.body)
                yield number, size, None if block.is_copy else BlockEntry(number, block.head)

    def body(self, location: int) -> Any:
        return self._block(location).body

    def copy(self, location: int) -> int:
        self._items.append(self._block(location)._replace(is_copy=True))
        return self.end - 1

    def release_before(self, position: int) -> None:
        for number in range(min(position, self.end)):
            self._items[number] = None

    def close(self) -> None:
        self._items.clear()

    def _block(self, number: int) -> _Block:
        item = self._items[number]
        assert isinstance(item, _Block), f"entry {number} of the Queue's file was given back"
        return item
