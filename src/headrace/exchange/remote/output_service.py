"""Serves the map outputs of a process, such as those in its local directory, to other machines."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Generator
from typing import Any, NamedTuple, Self

import msgspec

from headrace.errors import UsageError
from headrace.exchange.cleanup.pinned_stage import PinnedStage
from headrace.exchange.format.layout import MapTask, encode_index
from headrace.exchange.format.publication import encode_record
from headrace.exchange.map_output_reader import MapOutputReader
from headrace.exchange.output_registry import OutputRegistry
from headrace.exchange.remote import messages
from headrace.exchange.remote.messages import OUTPUTS, OutputReply, OutputRequest
from headrace.journal.location.workspace_ref import callable_by_others
from headrace.settings import ServiceSettings
from headrace.storage import Objects
from headrace.transport import MESSAGE_BYTES_MAX, Channel, Message, Server


class OutputEndpoint(NamedTuple):
    """Where map outputs are served."""

    address: str
    token: str


class OutputService:
    """`transport.Service` over the map outputs among some objects."""

    requests = messages.requests

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._registry = OutputRegistry(objects)
        self._reader = MapOutputReader(objects)

    def converse(self, channel: Channel[OutputRequest]) -> None:
        raise UsageError("map outputs are streams, not conversations", do="use RemoteOutputs")

    def stream(
        self, request: OutputRequest, channel: Channel[Any]
    ) -> Generator[Message[OutputReply], None, None]:
        match request:
            case messages.FetchIndex(query_id, stage_id, map_task, attempt):
                index = self._reader.resolve(MapTask(query_id, stage_id, map_task), attempt)
                yield Message(messages.SentIndex(index.attempt, encode_index(index)))
            case messages.FetchPartition():
                yield from self._fetch(request)
            case messages.ListPublished(query_id, stage_id):
                for output in self._registry.published(query_id, stage_id).values():
                    yield Message(messages.SentRecord(encode_record(output)))
            case messages.HoldStage(query_id, stage_id):
                caller_left = threading.Event()
                channel.on_end(caller_left.set)
                holder = f"for {channel.peer}"
                with PinnedStage(self._objects, query_id, stage_id, holder=holder):
                    yield Message(messages.StageHeld())
                    caller_left.wait()

    def _fetch(
        self, request: messages.FetchPartition
    ) -> Generator[Message[OutputReply], None, None]:
        task = MapTask(request.query_id, request.stage_id, request.map_task)
        index = self._reader.resolve(task, request.attempt)
        yield Message(messages.SentIndex(index.attempt, encode_index(index)))
        chunk_bytes = min(request.chunk_bytes, MESSAGE_BYTES_MAX // 2)
        for offset, data in self._reader.fetch_chunks(index, request.reduce_partition, chunk_bytes):
            yield Message(messages.SentChunk(offset), (data,))


class ServedOutputs:
    """Map outputs with a server of their own, on loopback unless the settings say otherwise."""

    def __init__(self, objects: Objects, service: ServiceSettings | None = None) -> None:
        service = service or ServiceSettings()
        token = service.token or secrets.token_urlsafe(32)
        self._server = Server(
            {OUTPUTS: OutputService(objects)}, msgspec.structs.replace(service, token=token)
        )
        self.endpoint = OutputEndpoint(callable_by_others(self._server.address), token)

    def close(self) -> None:
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
