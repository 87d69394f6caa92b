"""What the design asks of exactly-once queues, with workers in processes of their own.

`test_queue_backend_interface`, `test_produce_fetch_roundtrip` and `test_offset_recovery` are in the
conformance suite, which every backend passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import headrace as hr
from headrace.errors import FencedError
from headrace.queues.contract import OffsetCommit, Output, QueueBackend, QueueEndpoint
from headrace.queues.local_backend import LocalBackend
from headrace.testing.crash import Child
from headrace.testing.queue_conformance import fetch_all

T = TypeVar("T")

pytestmark = pytest.mark.crash

WORKER = """
import asyncio
from headrace.queues.contract import OffsetCommit, Output
from headrace.queues.endpoint import connect
from headrace.testing.crash import end_uncleanly

loop = asyncio.new_event_loop()
backend = connect(endpoint)
loop.run_until_complete(backend.start())

async def take(messages):
    committed = await backend.get_committed_offset("worker", "units")
    records = await backend.fetch("units", committed or 0, messages)
    outputs = [Output("results", record.value.upper()) for record in records]
    return outputs, OffsetCommit("worker", "units", records[-1].offset + 1, committed)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def endpoint(place: Path) -> Iterator[QueueEndpoint]:
    """Topics with three units; this process owns them."""

    async def prepare(backend: QueueBackend) -> None:
        await backend.create_topic("units")
        await backend.create_topic("results")
        await backend.produce_batch("units", [b"a", b"b", b"c"])

    with hr.open(place) as workspace:
        run(workspace, prepare)
        yield QueueEndpoint(workspace=workspace.reach())


def run(workspace: hr.Workspace, scenario: Callable[[QueueBackend], Awaitable[T]]) -> T:
    async def in_loop() -> T:
        async with LocalBackend(workspace) as backend:
            return await scenario(backend)

    return asyncio.run(in_loop())


def results(place: Path) -> tuple[list[bytes], int | None]:
    """Return what the worker has produced, and the number of units that it has committed."""

    async def look(backend: QueueBackend) -> tuple[list[bytes], int | None]:
        units = await fetch_all(backend, "units", 10)
        committed = await backend.get_committed_offset("worker", "units")
        done = None if committed is None else sum(unit.offset < committed for unit in units)
        return [each.value for each in await fetch_all(backend, "results", 10)], done

    with hr.open(place) as workspace:
        return run(workspace, look)


def test_offset_commit_persist(place: Path, endpoint: QueueEndpoint) -> None:
    """A committed offset survives the process that committed it, and the owner."""
    with Child(WORKER, endpoint=endpoint) as worker:
        worker.run("outputs, step = loop.run_until_complete(take(2))")
        worker.run('loop.run_until_complete(backend.commit_offset("worker", "units", step.offset))')
        worker.kill()
    assert results(place) == ([], 2)
    with Child("import headrace as hr", place=place) as another:
        found = another.run("list(hr.open(place).payloads('queue-offset:units:0:worker'))")
        assert found == ["queue-offset:units:0:worker"]


# proves G15
def test_crash_before_commit(place: Path, endpoint: QueueEndpoint) -> None:
    """A worker dies before its step: nothing is there, and the next one processes the units."""
    with Child(WORKER, endpoint=endpoint) as worker:
        worker.run("outputs, step = loop.run_until_complete(take(2))")
        worker.kill()
    assert results(place) == ([], None)
    with Child(WORKER, endpoint=endpoint) as worker:
        worker.run("outputs, step = loop.run_until_complete(take(2))")
        worker.run("loop.run_until_complete(backend.produce_and_commit(outputs, step))")
        worker.kill()
    assert results(place) == ([b"A", b"B"], 2)


# proves G15
def test_crash_after_produce(place: Path, endpoint: QueueEndpoint) -> None:
    """The design expects an output without its offset, to be processed again.

    Output and offset are one transaction here, so there is no such moment: a worker that dies
    after its output is there has committed its offset, and nobody processes the units again. A
    worker that dies with the transaction open leaves nothing of it.
    """
    with Child(WORKER, endpoint=endpoint) as worker:
        worker.run("outputs, step = loop.run_until_complete(take(2))")
        worker.run("loop.run_until_complete(backend.produce_and_commit(outputs, step))")
        worker.run("outputs, step = loop.run_until_complete(take(2))")
        worker.start(
            "from unittest import mock\n"
            "from headrace.journal.publisher import Transaction\n"
            "mock.patch.object(Transaction, 'commit_nowait', lambda *_: end_uncleanly()).start()\n"
            "loop.run_until_complete(backend.produce_and_commit(outputs, step))"
        )
        worker.wait(30)
    assert results(place) == ([b"A", b"B"], 2)


# proves G15
def test_duplicate_detection(place: Path, endpoint: QueueEndpoint) -> None:
    """Two workers process the same unit: the second is refused, and leaves no second output.

    The design lets the next stage sort duplicates out. Here it never sees one.
    """
    with Child(WORKER, endpoint=endpoint) as slow, Child(WORKER, endpoint=endpoint) as fast:
        for worker in (slow, fast):
            worker.run("outputs, step = loop.run_until_complete(take(2))")
        fast.run("loop.run_until_complete(backend.produce_and_commit(outputs, step))")
        for _ in range(2):
            with pytest.raises(FencedError):
                slow.run("loop.run_until_complete(backend.produce_and_commit(outputs, step))")
        # The refused worker can go on from the committed offset.
        slow.run("outputs, step = loop.run_until_complete(take(2))")
        slow.run("loop.run_until_complete(backend.produce_and_commit(outputs, step))")
    assert results(place) == ([b"A", b"B", b"C"], 3)


# proves G15
def test_a_stopped_worker_that_wakes_up_is_refused(place: Path, endpoint: QueueEndpoint) -> None:
    """A worker is suspended in the middle of its work, and another one replaces it."""
    with Child(WORKER, endpoint=endpoint) as zombie:
        zombie.run("outputs, step = loop.run_until_complete(take(1))")
        zombie.run("loop.run_until_complete(backend.produce_and_commit(outputs, step))")
        zombie.run("outputs, step = loop.run_until_complete(take(1))")
        zombie.stop()
        with Child(WORKER, endpoint=endpoint) as another:
            another.run("outputs, step = loop.run_until_complete(take(2))")
            another.run("loop.run_until_complete(backend.produce_and_commit(outputs, step))")
        zombie.resume()
        with pytest.raises(FencedError):
            zombie.run("loop.run_until_complete(backend.produce_and_commit(outputs, step))")
    assert results(place) == ([b"A", b"B", b"C"], 3)


def test_a_step_larger_than_a_write_is_refused_and_smaller_ones_go_on(tmp_path: Path) -> None:
    async def scenario(backend: QueueBackend) -> None:
        await backend.create_topic("units", 300)
        end = await backend.end_offset("units")
        large = [Output("units", b"x" * 1000) for _ in range(5000)]
        with pytest.raises(hr.HeadraceError, match="one step would take"):
            await backend.produce_and_commit(large, OffsetCommit("g", "units", end, None))
        with pytest.raises(hr.HeadraceError, match="one step would take"):
            await backend.produce("units", b"x" * (3 << 20))
        assert await fetch_all(backend, "units", 10) == []
        # Very many empty messages are as large as few long ones.
        offsets = await backend.produce_batch("units", [b""] * 200_000)
        assert len(await fetch_all(backend, "units", 50_000)) == len(offsets) == 200_000
        wide = [Output("units", b"%d" % p, None, p) for p in range(300)]
        step = OffsetCommit("g", "units", offsets[0], None)
        assert len(await backend.produce_and_commit(wide, step)) == 300
        for partition in (1, 150, 299):
            (found,) = await fetch_all(backend, "units", 10, partition)
            assert found.value == b"%d" % partition

    with hr.open(tmp_path / "data") as workspace:
        run(workspace, scenario)
