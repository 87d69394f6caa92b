"""Counts the units and rows of a run's stages from the messages of their topics.

Offsets have gaps, so they tell no numbers: each message is read once, while the run goes on. A
stage below one that drops all rows of a unit gets fewer units than it may expect. So what it will
get in all is an upper bound until the stages above it are over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.pipeline.dead_letters import DEAD, REPLAYED
from headrace.pipeline.job import Job
from headrace.pipeline.master.inputs import InputTopic, StageInput
from headrace.pipeline.master.state import JobState
from headrace.pipeline.messages import ONLY, decode_message
from headrace.queues.contract import QueueBackend

_FETCH = 5000


class StageMoment(NamedTuple):
    """How far a stage is at one moment, as its master knows it."""

    inputs: Sequence[tuple[int, int]]
    """The position and the end of each input."""
    messages: int
    """Messages that the stage has processed in this run."""
    is_over: bool
    is_sealed: bool


class StageUnits(NamedTuple):
    """The units of a stage, in all runs."""

    units: int
    """Units that the stage has processed."""
    units_total: int | None
    """Units that it has got and may still get; None if nobody can tell yet."""
    rows_left: int | None
    """Rows that it has got and not processed; None if they must be read to know."""
    dead_letters: int
    """Rows that it gave up, and that were not replayed."""


def look(state: JobState) -> dict[str, StageMoment]:
    """Return how far each stage is. Pure."""
    return {
        name: StageMoment(
            [(input.position, input.end) for input in stage.inputs],
            stage.counts.messages,
            state.is_complete(name),
            stage.is_sealed,
        )
        for name, stage in state.stages.items()
    }


@dataclass
class _InputCount:
    """The messages of one durable input."""

    read: int = 0
    """Everything below this offset was counted."""
    done: int = 0
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """The offset and the rows of each message that was not processed when it was last looked at."""

    def move(self, position: int) -> None:
        while self.waiting and self.waiting[0][0] < position:
            self.waiting.popleft()
            self.done += 1


class UnitCounts:
    """The counts of one run. One thread uses it."""

    def __init__(
        self,
        job: Job,
        topics: Mapping[str, InputTopic],
        inputs: Mapping[str, Sequence[StageInput]],
    ) -> None:
        self._job = job
        self._topics = topics
        self._inputs = inputs
        self._counts = {
            (name, each.number): _InputCount()
            for name, found in inputs.items()
            for each in found
            if each.is_input_durable
        }
        self._at_start: dict[str, tuple[int, int]] = {}
        """Units that a stage had processed when it was first looked at, from memory and disk."""
        self._dead_read: dict[tuple[str, int], int] = {}
        self._dead = dict.fromkeys(inputs, 0)

    async def update(
        self, backend: QueueBackend, stages: Mapping[str, StageMoment]
    ) -> dict[str, StageUnits]:
        """Read what is new, and return what every stage has done and has to do.

        Call it first with the moment at which the run begins.
        """
        for name, moment in stages.items():
            for each, (position, end) in zip(self._inputs[name], moment.inputs, strict=True):
                if each.is_input_durable:
                    await self._read(backend, each, end)
                    self._counts[name, each.number].move(position)
            await self._read_dead(backend, name)
        found: dict[str, StageUnits] = {}
        for name, moment in stages.items():
            found[name] = self._stage_units(name, moment, stages, found)
        return found

    async def _read(self, backend: QueueBackend, input: StageInput, end: int) -> None:
        count = self._counts[input.stage, input.number]
        if count.read >= end:
            return
        offset = max(count.read, await backend.begin_offset(input.topic, partition=input.partition))
        while offset < end:
            records = await backend.fetch(input.topic, offset, _FETCH, partition=input.partition)
            for record in records:
                message = decode_message(record.value)
                if message.metadata.get(ONLY) in (None, input.group):
                    count.waiting.append((record.offset, message.rows))
            if not records:
                break
            offset = records[-1].offset + 1
        count.read = max(offset, end)

    async def _read_dead(self, backend: QueueBackend, stage: str) -> None:
        """Count the dead letters that came. While the job runs, nobody replays them."""
        topic = self._topics[stage]
        if not topic.is_durable:
            return
        name = f"{topic.name}{DEAD}"
        for partition in range(topic.partitions):
            place = stage, partition
            if place not in self._dead_read:
                replayed = await backend.get_committed_offset(REPLAYED, name, partition=partition)
                begin = await backend.begin_offset(name, partition=partition)
                self._dead_read[place] = begin if replayed is None else replayed
            end = await backend.end_offset(name, partition=partition)
            while self._dead_read[place] < end:
                offset = self._dead_read[place]
                records = await backend.fetch(name, offset, _FETCH, partition=partition)
                self._dead[stage] += sum(decode_message(each.value).rows for each in records)
                self._dead_read[place] = records[-1].offset + 1 if records else end

    def _stage_units(
        self,
        stage: str,
        moment: StageMoment,
        stages: Mapping[str, StageMoment],
        above: Mapping[str, StageUnits],
    ) -> StageUnits:
        counts = [
            self._counts[stage, each.number]
            for each in self._inputs[stage]
            if each.is_input_durable
        ]
        done = sum(count.done for count in counts)
        total: int | None = done + sum(len(count.waiting) for count in counts)
        rows = [row for count in counts for _, row in count.waiting]
        rows_left = sum(rows) if all(row >= 0 for row in rows) else None
        on_memory = []
        for upstream in self._job.upstreams(stage):
            if not self._topics[upstream].is_durable:
                on_memory.append(above[upstream])
            elif upstream in stages:
                coming = self._coming(upstream, above[upstream], stages[upstream])
                total = None if total is None or coming is None else total + coming
        if on_memory:
            passed, coming = self._from_memory(stage, moment, done, on_memory)
            done, rows_left = done + passed, None
            total = None if total is None or coming is None else total + coming
        if moment.is_over:
            total, rows_left = done, 0
        return StageUnits(done, total, rows_left, self._dead[stage])

    def _coming(self, upstream: str, above: StageUnits, moment: StageMoment) -> int | None:
        """Return how many units a durable stage may still produce; None if nobody can tell."""
        if moment.is_over or moment.is_sealed:
            return 0
        if above.units_total is None or self._job.stages[upstream].takes_all:
            return None
        return above.units_total - above.units

    def _from_memory(
        self, stage: str, moment: StageMoment, from_disk: int, above: Sequence[StageUnits]
    ) -> tuple[int, int | None]:
        """Return the units of stages on memory that a stage has processed, and will process.

        A stage on memory passes every unit on, and began this run where the stages below it were:
        this counts from there. A worker that was lost may leave a message in memory twice.
        """
        totals = [each.units_total for each in above]
        total = None if None in totals else sum(each or 0 for each in totals)
        if stage not in self._at_start:
            self._at_start[stage] = sum(each.units for each in above), from_disk
        passed, before = self._at_start[stage]
        passed += max(0, moment.messages - (from_disk - before))
        return (passed if total is None else min(passed, total)), total
