"""The file of a Queue: blocks, retractions and stops, in the order in which readers meet them.

The Queue gives space back from the front: see `space`.

Each entry is one payload of a `log`: a kind, the length of the head, the head, and for a block its
documents. The documents are aligned, so that a reader maps them without copying.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import HeadraceError, InDoubtError, StorageError
from headrace.files import identify_directory
from headrace.log import Directory, Extent, Log, OnSynced
from headrace.settings import MIB, LogSettings
from headrace.shuffle.block import BlockHead, SpanEnd, block_bytes
from headrace.shuffle.queue.queue_reader import BlockEntry, Entry, RetractionEntry, StopEntry

_GATHER_BYTES = 4 * MIB
"""The store hands payloads to its log once they have this many bytes, or at a sync."""
_HEAD = struct.Struct("<II")
_BLOCK, _RETRACTION, _COPY, _STOP = 1, 2, 3, 4
_ALIGNED = 8

_encode = msgspec.msgpack.Encoder().encode
_block_head = msgspec.msgpack.Decoder(BlockHead)
_retracted = msgspec.msgpack.Decoder(tuple[SpanEnd, ...])
_stopped = msgspec.msgpack.Decoder(tuple[tuple[int, ...], int])


class QueueStore:
    """The file of one Session's Queue. Closing it deletes it.

    One thread writes. The log syncs whatever it is handed, so the store gathers payloads: a block
    by itself needs no sync.
    """

    def __init__(self, root: Path, settings: LogSettings) -> None:
        self._root = root
        # Nobody opens this file again, so no seal tells how it ended.
        self._log = Log(Directory(root), msgspec.structs.replace(settings, idle_seal_s=None))
        self.directory = identify_directory(root)
        self._gathered: list[tuple[Any, ...]] = []
        self._gathered_bytes = 0
        """The payloads that the log does not have yet."""
        self._written = -1
        """Where the last payload begins that the log has."""
        self._synced = -1
        """Where the last payload that is known to be durable begins."""
        self._released = 0

    def write_block(self, head: BlockHead, body: Any) -> None:
        self._append(_framed(_BLOCK, _encode(head)), body)

    def write_retraction(self, retracted: tuple[SpanEnd, ...]) -> None:
        self._append(_framed(_RETRACTION, _encode(retracted)))

    def write_stop(self, places: tuple[int, ...], checkpoint: int) -> None:
        self._append(_framed(_STOP, _encode((places, checkpoint))))

    def sync(self, done: Callable[[HeadraceError | None], None]) -> None:
        """Call `done` from another thread when everything that was written before is durable."""
        before = self._written

        def synced(positions: list[int], error: HeadraceError | None) -> None:
            if error is None:
                self._synced = positions[-1] if positions else before
            # Nobody opens this file again, so what the log could not cut off leaves no doubt.
            if isinstance(error, InDoubtError):
                error = StorageError(error.what, do=error.do)
            done(error)

        self._hand_over(synced)

    def synced_end(self) -> int:
        """Return the end of what is durable. It covers all that `sync` has called back for."""
        if (synced := self._synced) >= 0:
            # The log calls back before it moves its end.
            self._log.wait(synced)
        return self._log.synced_end

    def entries(self, position: int) -> Iterator[tuple[int, int, Entry | None]]:
        """Yield the location, the bytes and the entry of each durable payload from `position` on.

        Only blocks have bytes. The entry is None for the copy of a block.
        """
        for location, payload in self._log.scan(position):
            kind, head, body = _split(payload)
            if kind == _RETRACTION:
                yield location, 0, RetractionEntry(location, _retracted.decode(head))
                continue
            if kind == _STOP:
                yield location, 0, StopEntry(location, *_stopped.decode(head))
                continue
            block = _block_head.decode(head)
            entry = BlockEntry(location, block) if kind == _BLOCK else None
            yield location, block_bytes(block, body), entry

    def body(self, location: int) -> memoryview:
        """Return the documents of the block at a location."""
        return _split(self._log.read(location))[2]

    def extents(self, locations: Iterable[int]) -> Iterator[Extent]:
        """Yield where the payloads lie in the files of `directory`, for `stored_body`."""
        return self._log.extents(locations)

    def copy(self, location: int) -> int:
        """Write a block again at the end, and return its new location."""
        _, head, body = _split(self._log.read(location))
        self._append(_framed(_COPY, bytes(head)), body)
        self._hand_over()
        return self._written

    def release_before(self, position: int) -> None:
        if position > self._released:
            self._released = position
            self._log.release_before(position)

    def _append(self, *parts: Any) -> None:
        self._gathered.append(parts)
        self._gathered_bytes += sum(memoryview(part).nbytes for part in parts)
        if self._gathered_bytes >= _GATHER_BYTES:
            self._hand_over()

    def _hand_over(self, synced: OnSynced | None = None) -> None:
        """Hand the log what was gathered."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if positions := self._log.append(gathered, synced):
            self._written = positions[-1]

    def close(self) -> None:
        self._log.close()
        shutil.rmtree(self._root, ignore_errors=True)


def stored_body(payload: memoryview) -> memoryview:
    """Return the documents of a block, from its payload."""
    return _split(payload)[2]


def stored_pairs(payload: memoryview) -> bytes:
    """Return the encoded table of pairs of a block, from its payload."""
    return _block_head.decode(_split(payload)[1]).pairs


def _framed(kind: int, head: bytes) -> bytes:
    padding = -(_HEAD.size + len(head)) % _ALIGNED
    return _HEAD.pack(kind, len(head)) + head + bytes(padding)


def _split(payload: memoryview) -> tuple[int, memoryview, memoryview]:
    """Return the kind, the head and the body of a payload."""
    kind, length = _HEAD.unpack_from(payload)
    end = _HEAD.size + length
    return kind, payload[_HEAD.size : end], payload[end + -end % _ALIGNED :]
