"""What one member shows of a checkpoint, for any process to read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from headrace.settings import ServiceSettings
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.block import Block
from headrace.shuffle.queue_client import Consumer
from headrace.transport import Client


class Share(msgspec.Struct, frozen=True):
    """It can be read until its checkpoint is released, any number of times."""

    address: str
    session: str
    number: int
    """Of the checkpoint, within the Session."""
    sources: tuple[Source, ...]
    journals: dict[int, str] = {}
    """If they were asked for: the names of the journals that it shows any of, by tag."""

    def read(self, service: ServiceSettings) -> Iterator[tuple[Source, pa.RecordBatch]]:
        """The documents, with `_clock` and `_pair`."""
        with Client(self.address, service) as client:
            yield from Consumer(client, self.session, Sources(self.sources)).read(self.number)

    def blocks(self, service: ServiceSettings) -> Iterator[Block]:
        """The same with the tables of pairs, whose places begin with tags."""
        with Client(self.address, service) as client:
            yield from Consumer(client, self.session, Sources(self.sources)).blocks(self.number)
