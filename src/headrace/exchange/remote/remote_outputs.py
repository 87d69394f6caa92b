"""Reads map outputs from the process that serves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import msgspec
import pyarrow as pa

from headrace.errors import PeerLostError
from headrace.exchange.format.layout import INDEX_JSON, LATEST, MapTask, MapTaskIndex, decode_index
from headrace.exchange.format.partition_chunks import CHUNK_BYTES, PartitionChunk, Reassembly
from headrace.exchange.format.publication import PublishedOutput, decode_record
from headrace.exchange.remote import messages
from headrace.exchange.remote.messages import OUTPUTS, OutputRequest
from headrace.exchange.remote.output_service import OutputEndpoint
from headrace.settings import ServiceSettings
from headrace.transport import Client
from headrace.transport.client import Stream


class RemoteOutputs:
    """The map outputs at an endpoint. It checks what arrives as `MapOutputReader` does.

    `service` are the settings of this process, such as the root of TLS certificates.
    """

    def __init__(self, endpoint: OutputEndpoint, service: ServiceSettings | None = None) -> None:
        settings = msgspec.structs.replace(service or ServiceSettings(), token=endpoint.token)
        self._client = Client(endpoint.address, settings)

    def published(self, query_id: int, stage_id: int) -> dict[int, PublishedOutput]:
        """Return the latest output of every map task of a stage that has one, by map task."""
        found = {}
        with self._ask(messages.ListPublished(query_id, stage_id)) as stream:
            for message in stream:
                assert isinstance(message.control, messages.SentRecord)
                output = decode_record(message.control.record, PublishedOutput, "a record")
                found[output.map_task] = output
        return found

    def resolve(self, task: MapTask, attempt: int = LATEST) -> MapTaskIndex:
        """Return the index of a published attempt. Raises NotFoundError if it is not published."""
        request = messages.FetchIndex(task.query_id, task.stage_id, task.map_task, attempt)
        with self._ask(request) as stream:
            return _received_index(stream, task)

    def read_partition(
        self,
        task: MapTask,
        reduce_partition: int,
        attempt: int = LATEST,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> pa.Table:
        """Return the rows of a published attempt for a reduce partition, in one request."""
        request = messages.FetchPartition(
            task.query_id, task.stage_id, task.map_task, attempt, reduce_partition, chunk_bytes
        )
        with self._ask(request) as stream:
            index = _received_index(stream, task)
            reassembly = Reassembly(index, reduce_partition)
            for message in stream:
                assert isinstance(message.control, messages.SentChunk)
                reassembly.add(PartitionChunk(message.control.offset, message.bodies[0]))
            return reassembly.table()

    @contextmanager
    def hold(self, query_id: int, stage_id: int) -> Iterator[None]:
        """Keep every published attempt of a stage from cleanup during the block.

        The hold ends if the server is lost.
        """
        with self._ask(messages.HoldStage(query_id, stage_id)) as stream:
            _receive(stream)
            yield

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, request: OutputRequest) -> Stream[messages.OutputReply]:
        return self._client.stream(OUTPUTS, request, messages.replies)


def _received_index(stream: Stream[messages.OutputReply], task: MapTask) -> MapTaskIndex:
    sent = _receive(stream)
    assert isinstance(sent, messages.SentIndex)
    return decode_index(sent.payload, task, sent.attempt, task.file(sent.attempt, INDEX_JSON))


def _receive(stream: Stream[messages.OutputReply]) -> messages.OutputReply:
    message = stream.receive()
    if message is None:
        raise PeerLostError("the server of map outputs sent no answer", do="ask it again")
    return message.control
