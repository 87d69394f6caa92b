"""A real Queue behind a real service, to which a test speaks as its Slices and its consumer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from headrace.log import AppendFile, Disk
from headrace.settings import LogSettings, ServiceSettings, ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import INFINITE, Sources
from headrace.shuffle.block import SpanEnd, block_schema
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.queue.handler import ConsumerService, Queues, QueueService, ReaderService
from headrace.shuffle.queue.queue_client import Consumer
from headrace.transport import Client, Server
from tests.shuffle.builders import documents, frontier, head, source

SESSION = "s"
WAIT_S = 30.0

Pair = tuple[int, int, int, int]
"""Place, producer, and the first and last clock of the documents that a block has of them."""


class ScriptedQueue:
    def __init__(
        self,
        root: Path,
        *,
        slices: int = 1,
        settings: ShuffleSettings | None = None,
        log: LogSettings | None = None,
    ) -> None:
        self._stack = ExitStack()
        sources = (source(),)
        queues = Queues(root, log or LogSettings())
        self._stack.callback(queues.close)
        server = Server(
            {
                messages.QUEUE: QueueService(queues),
                messages.CONSUMER: ConsumerService(queues),
                messages.READER: ReaderService(queues),
            },
            ServiceSettings(),
        )
        self._stack.callback(server.close)
        self.client = client = self._stack.enter_context(Client(server.address, ServiceSettings()))
        replies = msgspec.msgpack.Decoder(messages.FromQueue)
        self.slices = [client.converse(messages.QUEUE, replies) for _ in range(slices)]
        for slice, channel in enumerate(self.slices):
            channel.send(
                messages.OpenQueue(
                    SESSION, 0, slice, slices, sources, settings or ShuffleSettings()
                )
            )
            assert self.receive(slice) == messages.QueueOpened(SESSION)
            channel.send(messages.Bounds((INFINITE,)))
        self.actor = queues.of(SESSION)
        self.consumer = Consumer(client, SESSION, Sources(sources))
        self.consumer.connect()
        self._schema = block_schema(sources[0])
        self._flushes = 0

    def receive(self, slice: int = 0) -> Any:
        """Return the next message of the Queue to a Slice."""
        message = self.slices[slice].receive(WAIT_S)
        return message and message.control

    def append(self, *pairs: Pair, slice: int = 0) -> None:
        """Send a block. The number of each document is its clock."""
        batches = [documents(first, last - first + 1) for _, _, first, last in pairs]
        batch = pa.concat_batches(batches)
        counts = [each.num_rows for each in batches]
        columns = [
            *batch.columns,
            pa.array(batch["doc"].to_numpy().astype(np.uint64)),
            pa.array(np.repeat(np.arange(len(pairs), dtype=np.uint32), counts)),
        ]
        body = pa.RecordBatch.from_arrays(columns, schema=self._schema).serialize()
        self.slices[slice].send(messages.Append(head(*pairs)), (body,))

    def end(self, *ends: SpanEnd, slice: int = 0) -> None:
        self.slices[slice].send(messages.Acks(0, ends))

    def flush(self, slice: int = 0) -> None:
        """Wait until everything that was sent is written and synced."""
        self._flushes += 1
        self.slices[slice].send(messages.Flush(self._flushes, 0))
        while (answer := self.receive(slice)) != messages.Flushed(self._flushes):
            assert isinstance(answer, messages.Grant)

    def read(self, number: int, *commits: tuple[int, int, int, int]) -> list[int]:
        """Read a checkpoint with commits, each of a journal, binding, producer and clock."""
        checkpoint = Checkpoint(frontier(*commits))
        return [
            clock
            for _, batch in self.consumer.read(number, checkpoint.encode())
            for clock in batch["doc"].to_pylist()
        ]

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Gate:
    """Makes syncs wait while it is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()
        """Set once a sync waits."""

    def shut(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def await_passage(self) -> None:
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(WAIT_S)


class GatedDisk:
    """A disk whose files sync only when a gate is open."""

    def __init__(self, disk: Disk, gate: Gate) -> None:
        self._disk = disk
        self._gate = gate
        self.names, self.map, self.path = disk.names, disk.map, disk.path
        self.unlink, self.sync = disk.unlink, disk.sync

    def create(self, name: str) -> AppendFile:
        return _GatedFile(self._disk.create(name), self._gate)

    def open(self, name: str) -> AppendFile:
        return _GatedFile(self._disk.open(name), self._gate)


class _GatedFile:
    def __init__(self, file: AppendFile, gate: Gate) -> None:
        self._file = file
        self._gate = gate
        self.size, self.close = file.size, file.close
        self.truncate, self.punch = file.truncate, file.punch

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        self._file.write(parts)

    def sync(self) -> None:
        self._gate.await_passage()
        self._file.sync()
