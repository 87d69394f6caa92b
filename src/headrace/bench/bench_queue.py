"""Measures queue backends: topics in memory, served to another process, and on journals."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

import headrace
from headrace.bench.peers.disk_rates import small_syncs
from headrace.bench.processes import child
from headrace.bench.steps import step
from headrace.decoders import decode_json
from headrace.queues.contract import OffsetCommit, QueueBackend
from headrace.queues.endpoint import QueueEndpoint, connect
from headrace.queues.local_backend import LocalBackend
from headrace.queues.memory_backend import MemoryBackend
from headrace.queues.topics_service import ServedTopics

T = TypeVar("T")

_TOPIC, _GROUP = "bench", "bench"
_BATCH = 1000
_KEPT_BYTES = 8 << 30
_ROUNDS = 3
_CALLS = 1000
_FETCHED = 10_000
_RECOVERY_BYTES = 256


class Configuration(NamedTuple):
    """One of the loads that a queue must carry."""

    message_bytes: int
    batch: int
    messages: int


SMALL = Configuration(1024, 100, 100_000)
REFERENCES = Configuration(256, 50, 1_000_000)
STRESS = Configuration(4096, 200, 10_000_000)


def bench_queue(directory: Path, messages: int = 1_000_000) -> dict[str, float]:
    """Measure all backends with up to `messages` messages. The figures are messages a second."""
    result: dict[str, float] = {"messages": messages}
    step(f"{messages:,} messages in memory")
    result |= asyncio.run(_bench_memory(messages))
    step("calls to topics that another process serves")
    with _serving() as endpoint:
        result |= asyncio.run(_bench_calls(connect(endpoint), "served_", _CALLS))
    step("messages of 1 KiB on journals")
    result |= _on_journals(directory / "local", lambda b: _bench_local(b, messages))
    with small_syncs(directory) as sync_s:
        syncs = sorted(sync_s() for _ in range(_CALLS // 10))
    result["disk_sync_p50_ms"] = syncs[len(syncs) // 2] * 1000
    for name, configuration in (("small", SMALL), ("references", REFERENCES)):
        scaled = configuration._replace(messages=min(messages, configuration.messages))
        step(f"{scaled.messages:,} messages of {scaled.message_bytes} bytes to a consumer")
        result[f"memory_{name}"] = asyncio.run(carry(MemoryBackend(), scaled))
        result[f"local_{name}"] = _on_journals(directory / name, partial(carry, load=scaled))
    step(f"recovery of {messages:,} messages after a kill")
    return result | _bench_recovery(directory / "recovery", messages)


async def _bench_memory(messages: int) -> dict[str, float]:
    batch = [b"x" * 100] * _BATCH
    produced, fetched = [], []
    for _ in range(_ROUNDS):
        async with MemoryBackend(bytes_max=_KEPT_BYTES) as backend:
            await backend.create_topic(_TOPIC)
            begin = time.perf_counter()
            for _ in range(max(1, messages // _BATCH)):
                await backend.produce_batch(_TOPIC, batch)
            produced.append(messages / (time.perf_counter() - begin))
            fetched.append(await _fetch_rate(backend))
    return {"memory_produce": max(produced), "memory_fetch": max(fetched)}


async def _bench_local(backend: QueueBackend, messages: int) -> dict[str, float]:
    await backend.create_topic(_TOPIC)
    produced, fetched = [], []
    count = max(_BATCH, messages // 10)
    batch = [b"x" * 1024] * _BATCH
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        for _ in range(count // _BATCH):
            await backend.produce_batch(_TOPIC, batch)
        produced.append(count / (time.perf_counter() - begin))
        fetched.append(await _fetch_rate(backend))
        await backend.truncate_before(_TOPIC, await backend.end_offset(_TOPIC))
    return {
        "local_produce": max(produced),
        "local_fetch": max(fetched),
        **await _bench_calls(backend, "local_", min(_CALLS, messages)),
    }


async def _fetch_rate(backend: QueueBackend) -> float:
    """Fetch all messages as records; return how many a second."""
    offset, found = await backend.begin_offset(_TOPIC), 0
    begin = time.perf_counter()
    while records := await backend.fetch(_TOPIC, offset, _BATCH):
        offset = records[-1].offset + 1
        found += len(records)
    return found / (time.perf_counter() - begin)


async def _bench_calls(backend: QueueBackend, prefix: str, calls: int) -> dict[str, float]:
    """Produce one message after the other, then fetch many, a hundred at once."""
    async with backend:
        await backend.create_topic("calls")
        seconds = []
        for _ in range(calls):
            begin = time.perf_counter()
            await backend.produce("calls", b"x" * 1024)
            seconds.append(time.perf_counter() - begin)
        await backend.produce_batch("calls", [b"x" * 1024] * (_FETCHED - calls))
        offset = 0
        begin = time.perf_counter()
        while records := await backend.fetch("calls", offset, 100):
            offset = records[-1].offset + 1
        fetched_s = time.perf_counter() - begin
    ordered = sorted(seconds)
    return {
        f"{prefix}p50_ms": ordered[calls // 2] * 1000,
        f"{prefix}p99_ms": ordered[calls * 99 // 100] * 1000,
        f"{prefix}produce_1000_s": sum(seconds) * 1000 / calls,
        f"{prefix}fetch_10000_s": fetched_s,
    }


async def carry(backend: QueueBackend, load: Configuration, topic: str = _TOPIC) -> float:
    """Let a consumer follow a producer, commit, and truncate behind itself.

    Returns how many messages a second went through.
    """
    batch = [b"x" * load.message_bytes] * load.batch
    async with backend:
        await backend.create_topic(topic)

        async def produce() -> None:
            for _ in range(load.messages // load.batch):
                await backend.produce_batch(topic, batch)

        async def consume() -> int:
            taken, truncated, committed, offset = 0, 0, None, 0
            while taken < load.messages // load.batch * load.batch:
                found = await backend.fetch(topic, offset, 10 * load.batch, timeout_ms=1000)
                if not found:
                    continue
                taken += len(found)
                offset = found[-1].offset + 1
                commit = OffsetCommit(_GROUP, topic, offset, committed)
                await backend.produce_and_commit([], commit)
                committed = offset
                if taken - truncated >= 100 * load.batch:
                    await backend.truncate_before(topic, offset)
                    truncated = taken
            return taken

        begin = time.perf_counter()
        taken, _ = await asyncio.gather(consume(), produce())
        return taken / (time.perf_counter() - begin)


def _bench_recovery(place: Path, messages: int) -> dict[str, float]:
    """Kill the owner of many messages; time from reopening to the first fetch."""
    with child("-m", "headrace.bench.bench_queue", "fill", str(place), str(messages)) as filling:
        assert filling.stdout
        filling.stdout.readline()
        filling.kill()

    async def recover() -> float:
        begin = time.perf_counter()
        with headrace.open(place) as workspace:
            async with LocalBackend(workspace) as backend:
                committed = await backend.get_committed_offset(_GROUP, _TOPIC)
                assert committed is not None
                assert await backend.fetch(_TOPIC, committed)
                return time.perf_counter() - begin

    return {"recovery_s": asyncio.run(recover())}


def _on_journals(place: Path, use: Callable[[QueueBackend], Awaitable[T]]) -> T:
    async def in_loop(workspace: headrace.Workspace) -> T:
        async with LocalBackend(workspace) as backend:
            return await use(backend)

    with headrace.open(place) as workspace:
        return asyncio.run(in_loop(workspace))


@contextmanager
def _serving() -> Iterator[QueueEndpoint]:
    with child("-m", "headrace.bench.bench_queue", "serve") as server:
        assert server.stdout
        yield decode_json(server.stdout.readline(), QueueEndpoint)


def _serve() -> None:
    with ServedTopics() as served:
        print(msgspec.json.encode(served.endpoint).decode(), flush=True)
        sys.stdin.read()


async def _fill(place: str, messages: int) -> None:
    """Produce messages, commit the middle, say so, and wait to be killed."""
    with headrace.open(place) as workspace:
        async with LocalBackend(workspace) as backend:
            await backend.create_topic(_TOPIC)
            batch = [b"x" * _RECOVERY_BYTES] * _BATCH
            middle = 0
            for number in range(max(1, messages // _BATCH)):
                offsets = await backend.produce_batch(_TOPIC, batch)
                if number == messages // _BATCH // 2:
                    middle = offsets[0]
            await backend.commit_offset(_GROUP, _TOPIC, middle)
            print(flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    _serve() if sys.argv[1] == "serve" else asyncio.run(_fill(sys.argv[2], int(sys.argv[3])))
