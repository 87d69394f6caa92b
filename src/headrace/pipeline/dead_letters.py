"""Rows that a stage gave up: kept with their errors, listed, and processed again.

A stage appends a dead letter to its topic `….dead` in the step that commits its input offset, so no
row is lost and none is there twice. A letter holds the rows of one unit that failed, and refers to
their payload. Letters below the committed offset of the group REPLAYED have been replayed.

A replay sends the rows back to the input that they came from, and moves that offset, in one step.
The message names that input, so that no other stage that reads the same topic processes it. The
rows keep their unit and their numbers, so a call that is in doubt keeps its idempotency key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import NotFoundError
from headrace.journal.workspace import Workspace
from headrace.pipeline.contract import DeadRow
from headrace.pipeline.master.inputs import StageInput
from headrace.pipeline.messages import (
    ONLY,
    REPLAY_OF,
    QueueMessage,
    decode_message,
    encode_message,
)
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.run.record import JobLock, JobRecord, Records
from headrace.queues.contract import OffsetCommit, Output, QueueBackend

REPLAYED = "replayed"
DEAD = ".dead"
_LETTERS_PER_STEP = 500


class DeadLetter(NamedTuple):
    """One row that a stage gave up."""

    stage: str
    unit: str
    row: int
    """The number of the row in its unit."""
    error: str
    attempts: int
    payload: str
    """The reference to the payload that keeps the row."""
    place: int
    """The place of the row in that payload."""
    value: dict[str, Any] | None = None
    """The row as the stage got it; None if nobody has read it."""


def dead_letter(unit: str, ref: str, dead: Sequence[DeadRow], input: StageInput) -> QueueMessage:
    """Return the message that keeps rows of a unit; `ref` refers to them, in order."""
    metadata = {
        "rows": [each.row for each in dead],
        "errors": [each.error for each in dead],
        "attempts": [each.attempts for each in dead],
        "origin": [input.origin_topic, input.origin_partition],
        "group": input.group,
    }
    return QueueMessage(unit, ref, len(dead), metadata)


class DeadLetters:
    """The dead letters of one job, as its newest run left them."""

    def __init__(self, workspace: Workspace, job: str, backend: QueueBackend) -> None:
        """`backend` is the local one of the workspace, and started."""
        record = Records(workspace.objects, job).newest()
        if record is None:
            raise NotFoundError(f"there is no job {job!r}", do="run it first, or correct its name")
        self._workspace = workspace
        self._record: JobRecord = record
        self._backend = backend

    async def find(self, stage: str | None = None) -> list[DeadLetter]:
        """Return the rows that were given up and not replayed, of one stage or of all."""
        found: list[DeadLetter] = []
        for name, topic, partitions in await self._topics(stage):
            for partition in range(partitions):
                async for _, letter in self._letters(topic, partition):
                    found += _rows_of(name, letter)
        return found

    def rows(self, letters: Sequence[DeadLetter]) -> Sequence[dict[str, Any]]:
        """Return the rows as the stage got them."""
        payloads = Payloads(self._workspace.objects, "")
        tables: dict[str, pa.Table] = {}
        for each in letters:
            if each.payload not in tables:
                tables[each.payload] = payloads.get(each.payload)
        return [tables[each.payload].slice(each.place, 1).to_pylist()[0] for each in letters]

    async def replay(self, stage: str | None = None) -> int:
        """Send the rows back to their stage; the next run processes them. Return how many.

        Raises ExistsError if the job is running, and FencedError if another replay was faster.
        """
        with JobLock(self._workspace, self._record.job):
            count = 0
            for _, topic, partitions in await self._topics(stage):
                for partition in range(partitions):
                    count += await self._replay_partition(topic, partition)
            return count

    async def _replay_partition(self, topic: str, partition: int) -> int:
        count = 0
        step: list[tuple[int, QueueMessage]] = []
        async for found in self._letters(topic, partition):
            step.append(found)
            if len(step) == _LETTERS_PER_STEP:
                count += await self._replay_step(topic, partition, step)
                step = []
        return count + (await self._replay_step(topic, partition, step) if step else 0)

    async def _replay_step(
        self, topic: str, partition: int, step: Sequence[tuple[int, QueueMessage]]
    ) -> int:
        outputs = [_replay(offset, letter) for offset, letter in step]
        committed = await self._backend.get_committed_offset(REPLAYED, topic, partition=partition)
        end = step[-1][0] + 1
        await self._backend.produce_and_commit(
            outputs, OffsetCommit(REPLAYED, topic, end, committed, partition)
        )
        return sum(letter.rows for _, letter in step)

    async def _topics(self, stage: str | None) -> Sequence[tuple[str, str, int]]:
        """Return (stage, topic, partitions) of the stages that keep dead letters."""
        record = self._record
        if stage is not None and stage not in record.stages:
            known = ", ".join(map(repr, record.stages))
            raise NotFoundError(
                f"job {record.job!r} has no stage {stage!r}", do=f"name one of {known}"
            )
        present = await self._backend.topics()
        wanted = [stage] if stage is not None else list(record.stages)
        names = {name: f"{record.topic_name(name)}{DEAD}" for name in wanted}
        return [(name, topic, present[topic]) for name, topic in names.items() if topic in present]

    async def _letters(self, topic: str, partition: int) -> AsyncIterator[tuple[int, QueueMessage]]:
        """Yield (offset, letter) of those that were not replayed when it began."""
        backend = self._backend
        end = await backend.end_offset(topic, partition=partition)
        offset = await backend.get_committed_offset(REPLAYED, topic, partition=partition)
        if offset is None:
            offset = await backend.begin_offset(topic, partition=partition)
        while offset < end and (records := await backend.fetch(topic, offset, partition=partition)):
            for record in records:
                yield record.offset, decode_message(record.value)
            offset = records[-1].offset + 1


def _rows_of(stage: str, letter: QueueMessage) -> list[DeadLetter]:
    columns = (letter.metadata[name] for name in ("rows", "errors", "attempts"))
    return [
        DeadLetter(stage, letter.split_id, row, error, attempts, letter.data_ref, place)
        for place, (row, error, attempts) in enumerate(zip(*columns, strict=True))
    ]


def _replay(offset: int, letter: QueueMessage) -> Output:
    """Return the message that sends the rows of a letter back to the input they came from."""
    topic, partition = letter.metadata["origin"]
    metadata = {
        ONLY: letter.metadata["group"],
        REPLAY_OF: letter.split_id,
        "rows": letter.metadata["rows"],
    }
    # The unit has a name of its own, because stages below have seen the unit without these rows.
    message = QueueMessage(f"{letter.split_id}.d{offset}", letter.data_ref, letter.rows, metadata)
    return Output(topic, encode_message(message), None, partition)
