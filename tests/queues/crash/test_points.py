"""A process that produces and works dies before, in and after each of its writes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from unittest import mock

import pytest

import headrace as hr
from headrace.journal.local import owner
from headrace.log import Directory
from headrace.queues.local_backend import LocalBackend
from headrace.testing.crash import Child, DeadlyDisk, KillPoint, chosen_seed
from tests.queues.crash import oracle
from tests.queues.crash.chain import INPUT, PARTITIONS, create_topics, die_at, pass_on

WAIT_S = 60.0
NEVER_S = 3600.0
SETTINGS = hr.Settings(
    log=hr.LogSettings(segment_bytes=16 * 1024, idle_seal_s=NEVER_S),
    journal=hr.JournalSettings(keeper_interval_s=NEVER_S),
)


def work(root: Path, verdicts: Path, death: KillPoint | None) -> None:
    """Produce and pass on, the same in every run."""
    die_at(death)
    told = os.open(verdicts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    asyncio.run(_work(root, told))


async def _work(root: Path, told: int) -> None:
    with hr.open(root, settings=SETTINGS) as workspace:
        async with LocalBackend(workspace) as backend:
            await create_topics(backend)
            for number in range(6):
                partition = number % PARTITIONS
                values = [f"{number}.{n}" for n in range(number + 1)]
                encoded = [value.encode() + b"." * 300 for value in values]
                offsets = await backend.produce_batch(INPUT, encoded, partition=partition)
                for value, offset in zip(encoded, offsets, strict=True):
                    line = f"yes {value.decode()} {partition} {offset}\n"
                    os.write(told, line.encode())
                await pass_on(backend, partition, 2)
                if number == 3:
                    await backend.truncate_before(INPUT, 0, partition=partition)


def changes(root: Path) -> int:
    """Return how many changes the work makes to the disk."""
    never = KillPoint(1 << 30, "before")
    with mock.patch.object(owner, "Directory", lambda path: DeadlyDisk(Directory(path), never)):
        work(root / "workspace", root / "all.verdicts", None)
    assert oracle.check(root / "workspace", [root / "all.verdicts"]) == 21
    return never._changes


def die_and_check(root: Path, point: KillPoint) -> bool:
    root.mkdir()
    place, verdicts = root / "workspace", root / "1.verdicts"
    verdicts.touch()
    with Child("from tests.queues.crash.test_points import work") as child:
        child.start("work(place, verdicts, point)", place=place, verdicts=verdicts, point=point)
        try:
            child.answer(WAIT_S)
            died = False
        except (EOFError, ConnectionError):
            assert child.wait(WAIT_S) == -signal.SIGKILL
            died = True
    try:
        oracle.check(place, [verdicts])
    except BaseException as error:
        error.add_note(f"with {point}")
        raise
    return died


def points(count: int) -> list[KillPoint]:
    return [
        KillPoint(change, when) for change in range(count) for when in ("before", "torn", "after")
    ]


# proves G15
def test_dying_at_a_write_keeps_output_and_offset_together(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed(default=31))
    (tmp_path / "rehearsal").mkdir()
    every = points(changes(tmp_path / "rehearsal"))
    for number, point in enumerate(chance.sample(every, 8)):
        die_and_check(tmp_path / str(number), point)


# proves G15
@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_dying_at_any_write_keeps_output_and_offset_together(tmp_path: Path) -> None:
    (tmp_path / "rehearsal").mkdir()
    every = points(changes(tmp_path / "rehearsal"))
    died = [die_and_check(tmp_path / str(n), point) for n, point in enumerate(every)]
    assert sum(died) >= 0.9 * len(died)
