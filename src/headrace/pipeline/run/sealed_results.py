"""The results of stages that take all rows at once: each is sealed once, and never changes.

    <prefix>/results/<stage>.r<revision>/units.a<attempt>   the units of an attempt
    <prefix>/results/<stage>.r<revision>/seal               which attempt counts
    <prefix>/results/<stage>.r<revision>/filled             its units are in the stage's topic

An attempt stores its rows as payloads first, then the list of them, then the seal, put if absent:
the first complete attempt wins, and every later run fills the topic with its units. An attempt that
dies before leaves objects that nobody refers to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.decoders import decode_msgpack
from headrace.errors import DataError, NotFoundError
from headrace.pipeline.job import Job
from headrace.pipeline.master.inputs import InputTopic, StageInput
from headrace.pipeline.messages import ONLY, QueueMessage, decode_message
from headrace.pipeline.run.record import JobRecord
from headrace.pipeline.source.source_topics import fill_topic
from headrace.pipeline.source.source_units import TableUnit
from headrace.queues.contract import QueueBackend
from headrace.storage import Objects

_FETCH = 1000


class SealedResult(msgspec.Struct, frozen=True):
    """All that a stage has made of all that it read."""

    attempt: int
    """The number of the run that computed it."""
    ends: dict[str, int]
    """The offset below which everything was read, by topic and partition."""
    rows: int

    def end(self, input: StageInput) -> int | None:
        return self.ends.get(input_key(input))

    async def has_grown(self, backend: QueueBackend, inputs: Sequence[StageInput]) -> bool:
        """True if there is more to read than there was."""
        for each in inputs:
            end = self.end(each)
            if end is None or await unread_end(backend, each, end) > end:
                return True
        return False


def input_key(input: StageInput) -> str:
    return f"{input.topic}:{input.partition}"


class SealedResults:
    """The sealed results of one generation of a job."""

    def __init__(self, objects: Objects, prefix: str, record: JobRecord) -> None:
        self._objects = objects
        self._prefix = f"{prefix}/results"
        self._record = record

    def store(
        self, stage: str, ends: Mapping[str, int], units: Sequence[TableUnit]
    ) -> SealedResult:
        """Seal a result, unless there is one, and return the one that counts."""
        attempt = self._record.number
        self._objects.put_if_absent(
            self._key(stage, f"units.a{attempt}"), msgspec.msgpack.encode(units)
        )
        result = SealedResult(attempt, dict(ends), sum(unit.rows for unit in units))
        self._objects.put_if_absent(self._key(stage, "seal"), msgspec.msgpack.encode(result))
        first = self.load(stage)
        assert first is not None
        return first

    def load(self, stage: str) -> SealedResult | None:
        """Return the seal of a stage; None if it is not sealed."""
        key = self._key(stage, "seal")
        try:
            return decode_msgpack(self._objects.get(key), SealedResult)
        except NotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise _unreadable(key, error) from error

    def units(self, stage: str, result: SealedResult) -> list[TableUnit]:
        key = self._key(stage, f"units.a{result.attempt}")
        try:
            return decode_msgpack(self._objects.get(key), list[TableUnit])
        except (NotFoundError, msgspec.MsgspecError) as error:
            raise _unreadable(key, error) from error

    def load_all(self, job: Job) -> dict[str, SealedResult]:
        """Return the result of every stage that is sealed."""
        stages = [stage.stage_id for stage in job.operators if stage.takes_all]
        found = {stage: self.load(stage) for stage in stages if stage in self._record.stages}
        return {stage: result for stage, result in found.items() if result}

    async def fill(self, backend: QueueBackend, stage: str, topic: InputTopic) -> None:
        """Put the units of a sealed result into the topic, each once, whoever begins it."""
        result = self.load(stage)
        if result is None or self._objects.head(self._key(stage, "filled")) is not None:
            return
        revision = self._record.stages[stage].revision
        units = self.units(stage, result)
        await fill_topic(backend, topic.name, topic.partitions, revision, units)
        self._mark_filled(stage)

    def _mark_filled(self, stage: str) -> None:
        self._objects.put(self._key(stage, "filled"), b"")

    def _key(self, stage: str, name: str) -> str:
        return f"{self._prefix}/{stage}.r{self._record.stages[stage].revision}/{name}"


def _unreadable(key: str, error: Exception) -> DataError:
    return DataError(
        f"the sealed result {key} cannot be read: {error}", do="restore it from a backup"
    )


async def unread_end(backend: QueueBackend, input: StageInput, sealed: int) -> int:
    """Return where the input ends; `sealed` if nothing came since the result was sealed there."""
    end = await backend.end_offset(input.topic, partition=input.partition)
    return end if await fetch_messages(backend, input, sealed, end) else sealed


async def fetch_messages(
    backend: QueueBackend, input: StageInput, begin: int, end: int
) -> list[QueueMessage]:
    """Return the messages of a range, but for those that are replayed for another stage."""
    found: list[QueueMessage] = []
    offset = begin
    while offset < end:
        records = await backend.fetch(input.topic, offset, _FETCH, partition=input.partition)
        records = [record for record in records if record.offset < end]
        if not records:
            break
        found += [decode_message(record.value) for record in records]
        offset = records[-1].offset + 1
    return [message for message in found if ONLY not in message.metadata]
