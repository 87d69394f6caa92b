"""The file of a Queue: blocks and rollbacks, in the order they are to be read in.

Space is given back from the front: see `space`.

Each is one payload of a `log`: a kind, the length of the head, the head, and for a block its
documents. They are aligned, so that a reader maps them without copying.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import HeadraceError, InDoubtError, StorageError
from headrace.files import identify_directory
from headrace.log import Directory, Extent, Log
from headrace.settings import LogSettings
from headrace.shuffle.block import BlockHead, SpanEnd, block_bytes
from headrace.shuffle.queue.queue_reader import BlockEntry, Entry, RetractionEntry, StopEntry

_HEAD = struct.Struct("<II")
_BLOCK, _RETRACTION, _COPY, _STOP = 1, 2, 3, 4
_ALIGNED = 8

_encode = msgspec.msgpack.Encoder().encode
_block_head = msgspec.msgpack.Decoder(BlockHead)
_retracted = msgspec.msgpack.Decoder(tuple[SpanEnd, ...])
_stopped = msgspec.msgpack.Decoder(tuple[tuple[int, ...], int])


class QueueStore:
    """One Session's file; it is gone when closed."""

    def __init__(self, root: Path, settings: LogSettings) -> None:
        self._root = root
        self._log = Log(Directory(root), settings)
        self.directory = identify_directory(root)
        self._written = -1
        self._synced = -1
        """Where the last payload begins that was written, and that is known to be durable."""
        self._released = 0

    def write_block(self, head: BlockHead, body: Any) -> None:
        self._append(_framed(_BLOCK, _encode(head)), body)

    def write_retraction(self, retracted: tuple[SpanEnd, ...]) -> None:
        self._append(_framed(_RETRACTION, _encode(retracted)))

    def write_stop(self, places: tuple[int, ...], checkpoint: int) -> None:
        self._append(_framed(_STOP, _encode((places, checkpoint))))

    def sync(self, done: Callable[[HeadraceError | None], None]) -> None:
        """Called back, from another thread, when all that was written before is durable."""
        written = self._written

        def synced(_: list[int], error: HeadraceError | None) -> None:
            if error is None:
                self._synced = written
            # Nobody opens this file again, so nothing that the log could not cut is in doubt.
            if isinstance(error, InDoubtError):
                error = StorageError(error.what, do=error.do)
            done(error)

        self._log.append([], synced)

    def synced_end(self) -> int:
        """Where what can be read ends: behind all that `sync` has called back for."""
        if (synced := self._synced) >= 0:
            # The log calls back before it moves its end.
            self._log.wait(synced)
        return self._log.synced_end

    def entries(self, position: int) -> Iterator[tuple[int, int, Entry | None]]:
        """What is durable from a position on: where, what it counts for, and what it is.

        The copy of a block is nothing new.
        """
        for at, payload in self._log.scan(position):
            kind, head, body = _parts(payload)
            if kind == _RETRACTION:
                yield at, 0, RetractionEntry(at, _retracted.decode(head))
                continue
            if kind == _STOP:
                yield at, 0, StopEntry(at, *_stopped.decode(head))
                continue
            block = _block_head.decode(head)
            yield at, block_bytes(block, body), BlockEntry(at, block) if kind == _BLOCK else None

    def body(self, location: int) -> memoryview:
        """The documents of the block that is there."""
        return _parts(self._log.read(location))[2]

    def extent(self, location: int) -> Extent:
        """Where `stored_body` finds it, in the files of `directory`."""
        return self._log.extent(location)

    def copy(self, location: int) -> int:
        """Write a block again at the end, and return where that is."""
        _, head, body = _parts(self._log.read(location))
        return self._append(_framed(_COPY, bytes(head)), body)

    def release_before(self, position: int) -> None:
        if position > self._released:
            self._released = position
            self._log.release_before(position)

    def _append(self, *parts: Any) -> int:
        (self._written,) = self._log.append([parts])
        return self._written

    def close(self) -> None:
        self._log.close()
        shutil.rmtree(self._root, ignore_errors=True)


def stored_body(payload: memoryview) -> memoryview:
    """The documents of a block that was read from the files."""
    return _parts(payload)[2]


def stored_pairs(payload: memoryview) -> bytes:
    """And its pairs."""
    return _block_head.decode(_parts(payload)[1]).pairs


def _framed(kind: int, head: bytes) -> bytes:
    padding = -(_HEAD.size + len(head)) % _ALIGNED
    return _HEAD.pack(kind, len(head)) + head + bytes(padding)


def _parts(payload: memoryview) -> tuple[int, memoryview, memoryview]:
    kind, length = _HEAD.unpack_from(payload)
    end = _HEAD.size + length
    return kind, payload[_HEAD.size : end], payload[end + -end % _ALIGNED :]
