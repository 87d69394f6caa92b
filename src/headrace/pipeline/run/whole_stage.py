"""A stage that takes all rows at once, in the driver of a run: what it reads, and its result.

The order is: payloads first, then the seal, then the messages, then the report to the master.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.journal.workspace import Workspace
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.inputs import InputTopic, StageInput
from headrace.pipeline.master.state import SealReport
from headrace.pipeline.messages import QueueMessage
from headrace.pipeline.run.sealed_results import SealedResults, fetch_messages, input_key
from headrace.pipeline.source.source_units import TableUnit
from headrace.queues.local_backend import LocalBackend


class WholeInput(NamedTuple):
    """Everything that a stage reads, when nothing more will come."""

    ends: list[int]
    """By input."""
    messages: dict[str, list[QueueMessage]]
    """By upstream stage, in the order of its partitions."""


class WholeStage:
    """One stage of a run."""

    def __init__(
        self,
        stage: str,
        workspace: Workspace,
        master: Master,
        results: SealedResults,
        inputs: Sequence[StageInput],
        topic: InputTopic,
    ) -> None:
        self.stage = stage
        self._workspace = workspace
        self._master = master
        self._results = results
        self._inputs = inputs
        self._topic = topic

    async def take(self) -> WholeInput | None:
        """Return all that the stage is to read; None if it is not due."""
        if not self._master.is_due(self.stage):
            return None
        ends: list[int] = []
        messages: dict[str, list[QueueMessage]] = {each.upstream: [] for each in self._inputs}
        async with LocalBackend(self._workspace) as local:
            for each in self._inputs:
                ends.append(await local.end_offset(each.topic, partition=each.partition))
                begin = await local.begin_offset(each.topic, partition=each.partition)
                messages[each.upstream] += await fetch_messages(local, each, begin, ends[-1])
        return WholeInput(ends, messages)

    async def seal(self, whole: WholeInput, units: Sequence[TableUnit]) -> None:
        """Keep the result, unless another attempt was first, and pass on the one that counts."""
        ends = {input_key(each): end for each, end in zip(self._inputs, whole.ends, strict=True)}
        sealed = self._results.store(self.stage, ends, units)
        output_ends = await self._fill()
        messages = [each for every in whole.messages.values() for each in every]
        report = SealReport(
            [sealed.end(each) or 0 for each in self._inputs],
            output_ends,
            len(messages),
            sum(max(each.rows, 0) for each in messages),
            sealed.rows,
        )
        self._master.seal(self.stage, report)

    async def _fill(self) -> list[int]:
        topic = self._topic
        async with LocalBackend(self._workspace) as local:
            await self._results.fill(local, self.stage, topic)
            return [
                await local.end_offset(topic.name, partition=partition)
                for partition in range(topic.partitions)
            ]
