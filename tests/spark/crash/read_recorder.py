"""A reader that records, in executors, who reads what from where."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headrace.shuffle import messages
from headrace.shuffle.queue.queue_client import Consumer, Share
from headrace.spark.source.datasource import StreamReader
from headrace.spark.source.options import Reads
from headrace.spark.worker_process import EncodedPartition


class Read(NamedTuple):
    directory: str
    """In which the consumer runs."""
    address: str
    """Of the member."""
    way: Literal["files", "flight"]


def recorded_reads(notes: Path) -> list[Read]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [Read(*line.split()) for line in lines]  # type: ignore[arg-type]


class RecordingReader(StreamReader):
    def __init__(self, reads: Reads, schema: StructType, notes: str) -> None:
        super().__init__(reads, schema)
        self._notes = notes

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EncodedPartition)
        address = msgspec.msgpack.decode(partition.open()[0], type=Share).address
        real = Consumer._documents

        def documents(consumer: Consumer, stream: Iterable[Any], pairs: bool) -> Iterator[Any]:
            return real(consumer, self._noted(stream, address), pairs)

        with mock.patch.object(Consumer, "_documents", documents):
            yield from super().read(partition)

    def _noted(self, stream: Iterable[Any], address: str) -> Iterator[Any]:
        for message in stream:
            way = "flight" if isinstance(message.control, messages.Documents) else "files"
            with Path(self._notes).open("a") as notes:
                notes.write(f"{os.getcwd()} {address} {way}\n")
            yield message
