"""The processes that tests kill: producers of messages, and workers that pass each of them on.

A producer writes a line to its own file: `yes VALUE PARTITION OFFSET` once a message is there,
`no VALUE` once it was refused, `doubt VALUE` if nobody could tell. A message without a line was in
flight when its producer died. Workers write no lines: what they did is in the topics.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import headrace as hr
from headrace.errors import (
    FencedError,
    InDoubtError,
    PublishError,
    TransportError,
    WorkspaceError,
)
from headrace.journal.local import owner
from headrace.log import Directory
from headrace.queues.contract import OffsetCommit, Output, QueueBackend, Record
from headrace.queues.local_backend import LocalBackend
from headrace.testing.crash import DeadlyDisk, KillPoint

INPUT, OUTPUT, GROUP = "units", "results", "worker"
PARTITIONS = 2
PAUSE_S = 0.002

SETTINGS = hr.Settings(
    log=hr.LogSettings(segment_bytes=256 * 1024),
    journal=hr.JournalSettings(keeper_interval_s=0.2),
    service=hr.ServiceSettings(heartbeat_s=0.2, silence_s=5.0),
)


def die_at(death: KillPoint | None) -> None:
    """Let this process die at a change to the disk, if it becomes the owner."""
    if death:
        mock.patch.object(
            owner, "Directory", lambda path: DeadlyDisk(Directory(path), death)
        ).start()


async def create_topics(backend: QueueBackend) -> None:
    await backend.create_topic(INPUT, PARTITIONS)
    await backend.create_topic(OUTPUT, PARTITIONS)


def as_outputs(records: list[Record], partition: int) -> list[Output]:
    """Return what a worker makes of messages: each output names its input."""
    return [Output(OUTPUT, b"of %d" % each.offset, each.value, partition) for each in records]


async def pass_on(backend: QueueBackend, partition: int, at_once: int) -> bool:
    """Do one step of a worker from the committed offset on; False if nothing is left."""
    committed = await backend.get_committed_offset(GROUP, INPUT, partition=partition)
    offset = committed or 0
    records = await backend.fetch(INPUT, offset, at_once, partition=partition)
    if not records:
        return False
    step = OffsetCommit(GROUP, INPUT, records[-1].offset + 1, committed, partition)
    await backend.produce_and_commit(as_outputs(records, partition), step)
    return True


class Process:
    """Produces and works until it is stopped or killed."""

    def __init__(
        self, root: Path, verdicts: Path, label: str, seed: str, death: KillPoint | None
    ) -> None:
        die_at(death)
        self._root = root
        self._label = label
        self._chance = random.Random(label + seed)
        self._verdicts = os.open(verdicts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """End in good order. Raises what failed."""
        self._stopped.set()
        self._thread.join()
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._failure = error
            raise

    async def _live(self) -> None:
        with hr.open(self._root, settings=SETTINGS) as workspace:
            async with LocalBackend(workspace) as backend:
                await create_topics(backend)
                await asyncio.gather(
                    self._produce(backend), *(self._work(backend, p) for p in range(PARTITIONS))
                )

    async def _produce(self, backend: QueueBackend) -> None:
        number = 0
        while not self._stopped.is_set():
            count = self._chance.choice((1, 1, 3, 40))
            values = [f"{self._label}.{number + n}" for n in range(count)]
            number += count
            await self._produce_some(backend, values, self._chance.randrange(PARTITIONS))
            await asyncio.sleep(PAUSE_S)

    async def _produce_some(self, backend: QueueBackend, values: list[str], p: int) -> None:
        try:
            if self._chance.random() < 0.5:
                encoded = [value.encode() for value in values]
                offsets = await backend.produce_batch(INPUT, encoded, partition=p)
            else:
                produced = [backend.produce(INPUT, each.encode(), partition=p) for each in values]
                offsets = await asyncio.gather(*produced)
        except InDoubtError:
            self._tell(f"doubt {value}" for value in values)
        except (PublishError, TransportError, WorkspaceError):
            self._tell(f"no {value}" for value in values)
        else:
            told = zip(values, offsets, strict=True)
            self._tell(f"yes {value} {p} {offset}" for value, offset in told)

    async def _work(self, backend: QueueBackend, partition: int) -> None:
        while not self._stopped.is_set():
            try:
                if await pass_on(backend, partition, self._chance.choice((1, 5, 100))):
                    continue
            except (FencedError, InDoubtError, PublishError, TransportError, WorkspaceError):
                # Another worker went on, or nobody can tell: the committed offset does.
                continue
            finally:
                await asyncio.sleep(PAUSE_S)

    def _tell(self, lines: Iterable[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        os.write(self._verdicts, text.encode())
