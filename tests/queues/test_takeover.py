"""The owner of the workspace dies under a backend of another process, which notices nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import pytest

import headrace as hr
from headrace.queues.contract import OffsetCommit, Output, QueueBackend
from headrace.queues.local_backend import LocalBackend
from headrace.testing.crash import Child
from headrace.testing.queue_conformance import fetch_all

T = TypeVar("T")

pytestmark = pytest.mark.crash

SETTINGS = hr.Settings(service=hr.ServiceSettings(heartbeat_s=0.2, silence_s=20.0))
OWN = """
import headrace as hr
from headrace.testing.crash import KillPoint
from tests.queues.crash.chain import die_at
point = KillPoint(1 << 30, "before")
die_at(point)
workspace = hr.open(place, settings=settings)
"""

Moment = Literal["before the write", "in the write", "after the sync"]
MOMENTS: tuple[Moment, ...] = ("before the write", "in the write", "after the sync")


class Owner:
    """A process that owns the workspace, and can die at its next write."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def die_at_next_write(self, moment: Moment) -> None:
        """Die at the write of the next group or, after its sync, before anybody is answered."""
        when = {"before the write": "before", "in the write": "torn", "after the sync": "after"}
        self._child.run("point.when = when", when=when[moment])
        ahead = 1 if moment == "after the sync" else 0
        self._child.run("point.change = point._changes + ahead", ahead=ahead)

    @property
    def is_alive(self) -> bool:
        return self._child.is_alive

    def kill(self) -> None:
        self._child.kill()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def owner(place: Path) -> Iterator[Owner]:
    with Child(OWN, place=place, settings=SETTINGS) as child:
        child.run("workspace.journals()")
        yield Owner(child)


def run(place: Path, scenario: Callable[[QueueBackend], Awaitable[T]]) -> T:
    async def in_loop() -> T:
        with hr.open(place, settings=SETTINGS) as workspace:
            assert workspace.address is None, "another process owns it"
            async with LocalBackend(workspace) as backend:
                await backend.create_topic("units")
                await backend.create_topic("results", 2)
                await backend.produce("units", b"first")
                return await scenario(backend)

    return asyncio.run(in_loop())


# proves G15
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("batch", [1, 50])
def test_a_producer_gets_its_offsets_from_the_next_owner(
    place: Path, owner: Owner, moment: Moment, batch: int
) -> None:
    async def scenario(backend: QueueBackend) -> None:
        owner.die_at_next_write(moment)
        values = [b"%d" % n for n in range(batch)]
        offsets = await backend.produce_batch("units", values)
        assert not owner.is_alive
        found = await fetch_all(backend, "units", 100)
        assert [(r.offset, r.value) for r in found[1:]] == list(zip(offsets, values, strict=True))

    run(place, scenario)


# proves G15
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("held", [False, True], ids=["first step", "later step"])
def test_a_step_takes_effect_once_although_its_owner_dies(
    place: Path, owner: Owner, moment: Moment, held: bool
) -> None:
    async def scenario(backend: QueueBackend) -> None:
        begin, end = await backend.begin_offset("units"), await backend.end_offset("units")
        expected = None
        if held:
            await backend.produce_and_commit([], OffsetCommit("g", "units", begin, None))
            expected = begin
            owner.die_at_next_write(moment)
        else:
            # Taking the publisher over is a write too.
            owner.die_at_next_write(moment)
        outputs = [Output("results", b"%d" % n, None, n % 2) for n in range(5)]
        step = OffsetCommit("g", "units", end, expected)
        offsets = await backend.produce_and_commit(outputs, step)
        assert not owner.is_alive
        for partition in (0, 1):
            found = await fetch_all(backend, "results", 100, partition)
            assert [(r.offset, r.value) for r in found] == [
                (offset, output.value)
                for offset, output in zip(offsets, outputs, strict=True)
                if output.partition == partition
            ]
        assert await backend.get_committed_offset("g", "units") == end

    run(place, scenario)


@pytest.mark.parametrize("moment", MOMENTS)
def test_topics_are_created_and_deleted_although_the_owner_dies(
    place: Path, owner: Owner, moment: Moment
) -> None:
    async def scenario(backend: QueueBackend) -> None:
        owner.die_at_next_write(moment)
        await backend.create_topic("another", 3)
        assert not owner.is_alive
        assert (await backend.topics())["another"] == 3

    run(place, scenario)


def test_a_topic_that_is_deleted_while_the_owner_dies_comes_back_empty(
    place: Path, owner: Owner
) -> None:
    async def scenario(backend: QueueBackend) -> None:
        await backend.commit_offset("g", "units", await backend.end_offset("units"))
        owner.die_at_next_write("after the sync")
        await backend.delete_topic("units")
        assert "units" not in await backend.topics()
        await backend.create_topic("units", 2)
        assert await fetch_all(backend, "units", 10) == []
        assert await backend.get_committed_offset("g", "units") is None

    run(place, scenario)


def test_a_fetch_goes_on_with_the_next_owner(place: Path, owner: Owner) -> None:
    async def scenario(backend: QueueBackend) -> None:
        offsets = await backend.produce_batch("units", [b"x" * 1000] * 3000)
        first = await backend.fetch("units", offsets[0], 10)
        owner.kill()
        rest = await backend.fetch("units", first[-1].offset + 1, 5000)
        assert [record.offset for record in first + rest] == offsets

    run(place, scenario)


def test_a_fetch_that_waits_sees_what_comes_through_the_next_owner(
    place: Path, owner: Owner
) -> None:
    async def scenario(backend: QueueBackend) -> None:
        end = await backend.end_offset("units")
        waiting = asyncio.create_task(backend.fetch("units", end, timeout_ms=30_000))
        await asyncio.wait([waiting], timeout=0.1)
        owner.kill()
        with hr.open(place, settings=SETTINGS) as another:
            async with LocalBackend(another) as producer:
                await producer.produce("units", b"late")
                assert [record.value for record in await waiting] == [b"late"]

    run(place, scenario)
