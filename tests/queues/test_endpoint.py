"""Endpoints travel to other processes, which reach the same topics."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.queues.contract import QueueBackend
from headrace.queues.endpoint import QueueEndpoint, connect
from headrace.queues.local_backend import LocalBackend
from headrace.queues.topics_service import ServedTopics
from headrace.testing.crash import Child

pytestmark = pytest.mark.crash

REACH = """
import asyncio
from headrace.queues.endpoint import connect

async def pass_on():
    async with connect(endpoint) as backend:
        (record,) = await backend.fetch("t", 0, timeout_ms=60_000)
        await backend.produce("t", record.value + b" and back", b"key")
        return await backend.fetch("t", record.offset + 1), backend.endpoint()
"""
SMALL = 1000


async def there_and_back(backend: QueueBackend) -> None:
    """Let another process answer a message, however the endpoint travelled."""
    endpoint = backend.endpoint()
    assert len(pickle.dumps(endpoint)) < SMALL
    packed = msgspec.msgpack.encode(endpoint)
    assert msgspec.msgpack.decode(packed, type=QueueEndpoint) == endpoint
    await backend.create_topic("t")
    with Child(REACH, endpoint=endpoint) as other:
        other.start("asyncio.run(pass_on())")
        await backend.produce("t", b"there")
        found, its_endpoint = await asyncio.to_thread(other.answer)
    assert [(record.key, record.value) for record in found] == [(b"key", b"there and back")]
    assert await backend.fetch("t", found[0].offset) == found
    async with connect(its_endpoint) as again:
        assert await again.fetch("t", found[0].offset) == found


def test_an_endpoint_of_memory_topics_reaches_them() -> None:
    with ServedTopics() as served:
        asyncio.run(there_and_back(served.backend))


def test_an_endpoint_of_local_topics_reaches_them(tmp_path: Path) -> None:
    async def scenario(workspace: hr.Workspace) -> None:
        async with LocalBackend(workspace) as backend:
            await there_and_back(backend)

    with hr.open(tmp_path / "data") as workspace:
        asyncio.run(scenario(workspace))


def test_a_backend_that_opened_its_workspace_closes_it(tmp_path: Path) -> None:
    async def scenario(endpoint: QueueEndpoint) -> None:
        backend = connect(endpoint)
        for n in range(3):
            async with backend:
                await backend.create_topic("t")
                await backend.produce("t", b"%d" % n)

    with hr.open(tmp_path / "data") as workspace:
        endpoint = QueueEndpoint(workspace=workspace.reach())
    asyncio.run(scenario(endpoint))
    with hr.open(tmp_path / "data") as workspace:
        assert workspace.address, "nobody else holds it"
        assert workspace.table("queues/t").column("value").to_pylist() == [b"0", b"1", b"2"]
