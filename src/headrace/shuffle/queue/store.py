"""The file of a Queue: blocks and rollbacks, in the order they are to be read in.

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

from headrace.errors import HeadraceError
from headrace.log import Directory, Log
from headrace.settings import LogSettings
from headrace.shuffle.block import BlockHead
from headrace.shuffle.queue.state import Ended, block_bytes
from headrace.shuffle.reader import BlockEntry, EndsEntry, Entry

_HEAD = struct.Struct("<II")
_BLOCK, _ENDS = 1, 2
_ALIGNED = 8

_encode = msgspec.msgpack.Encoder().encode
_block_head = msgspec.msgpack.Decoder(BlockHead)
_ends = msgspec.msgpack.Decoder(tuple[Ended, ...])


class QueueStore:
    """One Session's file; it is gone when closed."""

    def __init__(self, root: Path, settings: LogSettings) -> None:
        self._root = root
        self._log = Log(Directory(root), settings)
        self._released = 0

    def write_block(self, head: BlockHead, body: Any) -> None:
        self._log.append([(_framed(_BLOCK, _encode(head)), body)])

    def write_ends(self, ends: tuple[Ended, ...]) -> None:
        self._log.append([(_framed(_ENDS, _encode(ends)),)])

    def sync(self, done: Callable[[HeadraceError | None], None]) -> None:
        """Called back, from another thread, when all that was written before is durable."""
        self._log.append([], lambda _, error: done(error))

    @property
    def synced_end(self) -> int:
        return self._log.synced_end

    def entries(self, position: int) -> Iterator[tuple[int, Entry]]:
        """What is durable from a position on; each with what it counts for."""
        for at, payload in self._log.scan(position):
            kind, head, body = _parts(payload)
            if kind == _BLOCK:
                block = _block_head.decode(head)
                yield block_bytes(block, body), BlockEntry(at, block)
            else:
                yield 0, EndsEntry(at, _ends.decode(head))

    def body(self, position: int) -> memoryview:
        """The documents of the block at a position."""
        return _parts(self._log.read(position))[2]

    def release_before(self, position: int) -> None:
        if position > self._released:
            self._released = position
            self._log.release_before(position)

    def close(self) -> None:
        self._log.close()
        shutil.rmtree(self._root, ignore_errors=True)


def _framed(kind: int, head: bytes) -> bytes:
    padding = -(_HEAD.size + len(head)) % _ALIGNED
    return _HEAD.pack(kind, len(head)) + head + bytes(padding)


def _parts(payload: memoryview) -> tuple[int, memoryview, memoryview]:
    kind, length = _HEAD.unpack_from(payload)
    end = _HEAD.size + length
    return kind, payload[_HEAD.size : end], payload[end + -end % _ALIGNED :]
