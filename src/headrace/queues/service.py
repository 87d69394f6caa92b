"""Serves the topics of a memory backend to other processes."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError, UsageError, bug, to_wire
from headrace.queues import messages
from headrace.queues.memory import MemoryTopics
from headrace.queues.messages import TopicsAnswer, TopicsRequest
from headrace.transport import Channel, Message

_WAITING_CALLS_MAX = 256


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
            if (done := self._carry_out(call, bodies, wait=wait)) is None:
                return False
            value, body = done
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

    def _carry_out(
        self, call: messages.Call, bodies: tuple[Any, ...], *, wait: bool
    ) -> tuple[Any, tuple[pa.Buffer, ...]] | None:
        topics = self._topics
        match call:
            case messages.FetchRecords(topic, partition, offset, most, timeout_s):
                found = topics.fetch(topic, offset, most, partition, timeout_s if wait else 0)
                if not found and timeout_s and not wait:
                    return None
                return len(found), ((messages.encode_records(found),) if found else ())
            case messages.Produce(topic, partition):
                values, keys = messages.decode_messages(bodies[0])
                offsets = topics.produce(topic, values, keys, partition, wait=wait)
                return None if offsets is None else ([offsets.start, offsets.stop], ())
            case messages.ProduceAndCommit(places, commit):
                outputs = messages.decode_outputs(places, bodies[0]) if places else []
                done = topics.produce_and_commit(outputs, commit, wait=wait)
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
                kept = topics.look(lambda state: state.partition(topic, partition))
                return [kept.begin, kept.end]
            case messages.SetCommitted(group, topic, partition, offset):
                return topics.change(lambda state, _: state.commit(group, topic, offset, partition))
            case messages.AskCommitted(None, topic, partition):
                return topics.look(lambda state: state.least_committed(topic, partition))
            case messages.AskCommitted(str(group), topic, partition):
                return topics.look(lambda state: state.committed(group, topic, partition))
            case messages.Truncate(topic, partition, offset):
                return topics.truncate_before(topic, offset, partition)
        raise UsageError(f"topics were asked for {type(call).__name__}", do="use the same version")
