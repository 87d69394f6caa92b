"""Serves the topics of a memory backend to other processes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError, UsageError, bug, to_wire
from headrace.journal.location.workspace_ref import callable_by_others
from headrace.queues import messages
from headrace.queues.contract import QueueEndpoint
from headrace.queues.memory_backend import BYTES_MAX, MemoryBackend, MemoryTopics
from headrace.queues.messages import TOPICS, TopicsAnswer, TopicsRequest
from headrace.settings import MIB, ServiceSettings
from headrace.transport import Channel, Message, Server

_WAITING_CALLS_MAX = 256
_ANSWER_BYTES_MAX = 32 * MIB
"""A fetch returns fewer messages than it may, rather than more bytes."""


class TopicsService:
    """`transport.Service` over `MemoryTopics`.

    Calls of a conversation are carried out in their order, but for those that have to wait: each
    of these waits in a thread of its own, so that nobody waits behind it.
    """

    requests = messages.requests

    def __init__(self, topics: MemoryTopics) -> None:
        self._topics = topics
        self._waiting = ThreadPoolExecutor(_WAITING_CALLS_MAX, "headrace-topics")

    def converse(self, channel: Channel[TopicsRequest]) -> None:
        while (message := channel.receive()) is not None:
            number, call = message.control.number, message.control.call
            if not self._answer(channel, number, call, message.bodies, wait=False):
                self._waiting.submit(self._answer, channel, number, call, message.bodies, wait=True)

    def stream(
        self, request: Any, channel: Channel[TopicsRequest]
    ) -> Generator[Message[Any], None, None]:
        raise UsageError(f"{type(request).__name__} is not a stream", do="converse")

    def close(self) -> None:
        self._topics.close()
        self._waiting.shutdown(wait=False, cancel_futures=True)

    def _answer(
        self,
        channel: Channel[TopicsRequest],
        number: int,
        call: messages.Call,
        bodies: tuple[Any, ...],
        *,
        wait: bool,
    ) -> bool:
        """Carry out a call and answer it; False if it would have to wait."""
        try:
            done = self._carry_out_waiting(call, bodies) if wait else self._carry_out(call, bodies)
            if done is None and not wait:
                return False
            value, body = done or (0, ())
            answer = TopicsAnswer(number, value)
        except HeadraceError as error:
            answer, body = TopicsAnswer(number, refusal=to_wire(error)), ()
        except Exception as error:  # noqa: BLE001  the caller is told
            refusal = to_wire(bug(f"topics: {type(call).__name__}", error))
            answer, body = TopicsAnswer(number, refusal=refusal), ()
        try:
            channel.send(answer, body)
        except HeadraceError:
            # The caller is gone, and so is whoever wanted the answer.
            return True
        return True

    def _carry_out_waiting(
        self, call: messages.Call, bodies: tuple[Any, ...]
    ) -> tuple[Any, tuple[pa.Buffer, ...]] | None:
        """Carry out a call once it can be; returns None when its time is over."""
        deadline = None
        if isinstance(call, messages.FetchRecords):
            deadline = time.monotonic() + call.timeout_s
        while True:
            with self._topics.waiters.ticket() as ticket:
                done = self._carry_out(call, bodies)
                left = None if deadline is None else deadline - time.monotonic()
                if done is not None or (left is not None and left <= 0):
                    return done
                ticket.wait_in_thread(left)

    def _carry_out(
        self, call: messages.Call, bodies: tuple[Any, ...]
    ) -> tuple[Any, tuple[pa.Buffer, ...]] | None:
        """Carry out a call; None if it has to wait."""
        topics = self._topics
        match call:
            case messages.FetchRecords(topic, partition, offset, most, timeout_s):
                found = topics.fetch(topic, offset, most, partition)
                if not found.offsets:
                    return None if timeout_s > 0 else (0, ())
                batch = messages.to_record_batch(found.first(_ANSWER_BYTES_MAX))
                return batch.num_rows, (batch.serialize(),)
            case messages.Produce(topic, partition):
                values, keys = messages.decode_messages(bodies[0])
                offsets = topics.produce(topic, values, keys, partition)
                return None if offsets is None else ([offsets.start, offsets.stop], ())
            case messages.ProduceAndCommit(places, commit):
                outputs = messages.decode_outputs(places, bodies[0]) if places else []
                done = topics.produce_and_commit(outputs, commit)
                return None if done is None else (done, ())
        return self._carry_out_now(call), ()

    def _carry_out_now(self, call: messages.Call) -> Any:
        """Carry out a call that never waits."""
        topics = self._topics
        match call:
            case messages.CreateTopic(topic, partitions):
                return topics.change(lambda state, _: state.create_topic(topic, partitions))
            case messages.DeleteTopic(topic):
                return topics.delete_topic(topic)
            case messages.ListTopics():
                return topics.look(lambda state: state.topics)
            case messages.AskBounds(topic, partition):
                return topics.look(lambda state: state.bounds(topic, partition))
            case messages.SetCommitted(group, topic, partition, offset):
                return topics.change(lambda state, _: state.commit(group, topic, offset, partition))
            case messages.AskCommitted(None, topic, partition):
                return topics.look(lambda state: state.least_committed(topic, partition))
            case messages.AskCommitted(str(group), topic, partition):
                return topics.look(lambda state: state.committed(group, topic, partition))
            case messages.Truncate(topic, partition, offset):
                return topics.truncate_before(topic, offset, partition)
        raise UsageError(
            f"topics do not know the call {type(call).__name__}",
            do="run the same version of Headrace in all processes",
        )


class ServedTopics:
    """Topics in memory with a server of their own, for workers in other processes."""

    def __init__(self, service: ServiceSettings | None = None, bytes_max: int = BYTES_MAX) -> None:
        service = service or ServiceSettings()
        token = service.token or secrets.token_urlsafe(32)
        self._topics = MemoryTopics(bytes_max)
        self._service = TopicsService(self._topics)
        served = {TOPICS: self._service}
        self._server = Server(served, msgspec.structs.replace(service, token=token))
        address = callable_by_others(self._server.address)
        self.endpoint = QueueEndpoint(address, token)
        self.backend = MemoryBackend(self._topics, served_at=self.endpoint)
        """The backend for this process. Stopping it does not end the topics."""

    def close(self) -> None:
        """End the topics; whoever waits gets an error."""
        self._service.close()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
