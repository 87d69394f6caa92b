"""The contract over topics that another process holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError, PeerLostError, UsageError, bug, from_wire
from headrace.queues import messages
from headrace.queues.contract import (
    RECORD_SCHEMA,
    OffsetCommit,
    Output,
    QueueBackend,
    QueueEndpoint,
    Record,
)
from headrace.queues.state import check_keys
from headrace.settings import ServiceSettings
from headrace.transport import Channel, Client, Message


class RemoteBackend(QueueBackend):
    """One conversation with the process that holds the topics; calls are pipelined."""

    def __init__(self, address: str, service: ServiceSettings | None = None) -> None:
        self.address = address
        self._service = service or ServiceSettings()
        self._client: Client | None = None
        self._channel: Channel[messages.TopicsAnswer] | None = None
        self._numbers = count()
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Message[messages.TopicsAnswer]]] = {}
        self._lost: HeadraceError | None = None
        self._listener: threading.Thread | None = None

    async def start(self) -> None:
        if self._channel is None:
            await asyncio.to_thread(self._connect)

    def endpoint(self) -> QueueEndpoint:
        return QueueEndpoint(self.address, self._service.token)

    def _connect(self) -> None:
        client = Client(self.address, self._service)
        try:
            self._channel = client.converse(messages.TOPICS, messages.answers)
        except BaseException:
            client.close()
            raise
        self._client = client
        self._lost = None
        self._listener = threading.Thread(
            target=self._listen, args=(self._channel,), name="headrace-topics", daemon=True
        )
        self._listener.start()

    async def stop(self) -> None:
        client, self._client, self._channel = self._client, None, None
        if client:
            await asyncio.to_thread(client.close)

    def _listen(self, channel: Channel[messages.TopicsAnswer]) -> None:
        lost: HeadraceError = PeerLostError(
            f"the topics at {self.address} are gone", do="start the pipeline again"
        )
        try:
            while (message := channel.receive()) is not None:
                with self._lock:
                    asked = self._asked.pop(message.control.number, None)
                if asked:
                    asked.set_result(message)
        except HeadraceError as error:
            lost = error
        except Exception as error:  # noqa: BLE001  whoever waits is told
            lost = bug(f"topics at {self.address}", error)
        with self._lock:
            self._lost = lost
            waiting = list(self._asked.values())
            self._asked.clear()
        for asked in waiting:
            asked.set_exception(lost)

    async def _ask(
        self, call: messages.Call, bodies: Iterable[Any] = ()
    ) -> tuple[Any, tuple[Any, ...]]:
        if (channel := self._channel) is None:
            raise UsageError("the queue backend is not started", do="start it first")
        asked: Future[Message[messages.TopicsAnswer]] = Future()
        with self._lock:
            if self._lost:
                raise self._lost
            number = next(self._numbers)
            self._asked[number] = asked
        try:
            channel.send(messages.TopicsRequest(number, call), bodies)
        except BaseException:
            with self._lock:
                self._asked.pop(number, None)
            raise
        message = await asyncio.wrap_future(asked)
        if refusal := message.control.refusal:
            raise from_wire(*refusal)
        return message.control.value, message.bodies

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        await self._ask(messages.CreateTopic(topic, partitions))

    async def delete_topic(self, topic: str) -> None:
        await self._ask(messages.DeleteTopic(topic))

    async def topics(self) -> dict[str, int]:
        return dict((await self._ask(messages.ListTopics()))[0])

    async def produce(
        self, topic: str, value: bytes, key: bytes | None = None, *, partition: int = 0
    ) -> int:
        return (await self.produce_batch(topic, [value], [key], partition=partition))[0]

    async def produce_batch(
        self,
        topic: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int = 0,
    ) -> list[int]:
        check_keys(topic, values, keys)
        body = messages.encode_messages(values, keys)
        offsets, _ = await self._ask(messages.Produce(topic, partition), (body,))
        return list(range(*offsets))

    async def fetch(
        self,
        topic: str,
        offset: int,
        max_records: int = 100,
        *,
        partition: int = 0,
        timeout_ms: int = 0,
    ) -> list[Record]:
        batch = await self.fetch_batch(
            topic, offset, max_records, partition=partition, timeout_ms=timeout_ms
        )
        return messages.to_records(batch)

    async def fetch_batch(
        self,
        topic: str,
        offset: int,
        max_records: int = 100,
        *,
        partition: int = 0,
        timeout_ms: int = 0,
    ) -> pa.RecordBatch:
        call = messages.FetchRecords(topic, partition, offset, max_records, timeout_ms / 1000)
        found, bodies = await self._ask(call)
        if not found:
            return pa.RecordBatch.from_pylist([], RECORD_SCHEMA)
        return messages.decode_record_batch(bodies[0])

    async def begin_offset(self, topic: str, *, partition: int = 0) -> int:
        (begin, _), _ = await self._ask(messages.AskBounds(topic, partition))
        return int(begin)

    async def end_offset(self, topic: str, *, partition: int = 0) -> int:
        (_, end), _ = await self._ask(messages.AskBounds(topic, partition))
        return int(end)

    async def commit_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0
    ) -> None:
        await self._ask(messages.SetCommitted(group, topic, partition, offset))

    async def get_committed_offset(
        self, group: str, topic: str, *, partition: int = 0
    ) -> int | None:
        found, _ = await self._ask(messages.AskCommitted(group, topic, partition))
        return None if found is None else int(found)

    async def get_min_committed_offset(self, topic: str, *, partition: int = 0) -> int | None:
        found, _ = await self._ask(messages.AskCommitted(None, topic, partition))
        return None if found is None else int(found)

    async def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int]:
        places = [(output.topic, output.partition) for output in outputs]
        bodies = (messages.encode_outputs(outputs),) if outputs else ()
        offsets, _ = await self._ask(messages.ProduceAndCommit(places, commit), bodies)
        return [int(offset) for offset in offsets]

    async def truncate_before(self, topic: str, offset: int, *, partition: int = 0) -> None:
        await self._ask(messages.Truncate(topic, partition, offset))
