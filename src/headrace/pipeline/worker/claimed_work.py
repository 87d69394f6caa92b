"""What a worker does with one claim, from its first message until the master ends it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from headrace.backoff import Backoff
from headrace.errors import (
    BudgetError,
    HeadraceError,
    UnitError,
    UsageError,
)
from headrace.pipeline.contract import DeadRow, OpenOperator, Processed, UnitRows
from headrace.pipeline.dead_letters import dead_letter
from headrace.pipeline.master.messages import (
    AdvanceClaim,
    Answer,
    ClaimWork,
    Go,
    Leave,
    Pause,
    Probing,
)
from headrace.pipeline.messages import REPLAY_OF, UNIT, QueueMessage, encode_message
from headrace.pipeline.source.source_units import decode_unit
from headrace.pipeline.source.unit_reader import read_unit
from headrace.pipeline.worker.environment import WorkerEnvironment, WorkerStage
from headrace.pipeline.worker.input_cursor import InputCursor, Work
from headrace.queues.contract import Output, QueueBackend, Record

STEP_S = 0.05
"""A worker commits when it has processed messages for this long."""
STEP_OUTPUTS_MAX = 500
COMMIT_RETRIES = 8


@dataclass
class WorkStep:
    """What was processed since the last commit."""

    position: int = 0
    last: Work | None = None
    outputs: list[Output] = field(default_factory=list)
    refs: list[str] = field(default_factory=list)
    """Payloads of the messages."""
    messages: int = 0
    produced: int = 0
    rows_in: int = 0
    rows_out: int = 0
    dead: int = 0
    calls: int = 0
    reused: int = 0
    cost: float = 0.0

    def is_due(self, duration_s: float) -> bool:
        return duration_s >= STEP_S or len(self.outputs) >= STEP_OUTPUTS_MAX


class FinishedStep(NamedTuple):
    """The end of a step."""

    answer: Go | Leave
    is_over: bool
    """True if what was fetched after the step must not be processed."""


class ClaimedWork:
    """One claim of one worker."""

    def __init__(
        self,
        stage: WorkerStage,
        environment: WorkerEnvironment,
        operator: OpenOperator,
        claim: ClaimWork,
    ) -> None:
        self._stage = stage
        self._environment = environment
        self._operator = operator
        self._claim = claim
        self._input = claim.input
        self._cursor = InputCursor(
            claim.input, claim.position, is_durable=stage.is_durable, committed=None
        )
        self._output_end = 0
        """What to tell the master of the output beyond what this worker produced."""

    async def run(self) -> Answer:
        """Work until the master ends the claim, and return its last answer."""
        await self._look_up_committed()
        messages_max = self._claim.messages_max
        if self._cursor.position != self._claim.position:
            # The message that the claim is about is processed, and so are its poison rows.
            answer = await self._report(WorkStep())
            if isinstance(answer, Leave) or not answer.messages_max:
                return answer
            messages_max = answer.messages_max
        while True:
            records = await self._fetch(messages_max)
            try:
                answer = await self._process(self._cursor.select(records))
            except BudgetError as error:
                return await self._environment.control.ask(Pause(str(error)))
            if isinstance(answer, Leave) or not answer.messages_max:
                return answer
            messages_max = answer.messages_max

    async def _look_up_committed(self) -> None:
        """Find where the stage is. A worker that was lost may not have reported its last step."""
        if not self._stage.is_durable:
            return
        committed = await self._committed()
        self._cursor = InputCursor(
            self._input, self._claim.position, is_durable=True, committed=committed
        )
        if self._cursor.position != self._claim.position or not self._input.is_input_durable:
            await self._look_up_output()

    async def _look_up_output(self) -> None:
        self._output_end = await self._output_backend.end_offset(
            self._stage.output_topic, partition=self._input.number
        )

    async def _committed(self) -> int | None:
        return await self._environment.local.get_committed_offset(
            self._input.group, self._input.origin_topic, partition=self._input.origin_partition
        )

    @property
    def _output_backend(self) -> QueueBackend:
        return self._environment.local if self._stage.is_durable else self._environment.memory

    async def _fetch(self, messages_max: int) -> Sequence[Record]:
        durable = self._input.is_input_durable
        backend = self._environment.local if durable else self._environment.memory
        return await backend.fetch(
            self._input.topic,
            self._cursor.position,
            messages_max,
            partition=self._input.partition,
        )

    async def _process(self, works: Sequence[Work]) -> Go | Leave:
        """Process what was fetched, in steps. Return the master's answer to the last report.

        The operator does not wait for disks. While it processes a message, the rows of the next
        are loaded, those of the one before are stored, and the step before is committed.
        """
        if not works:
            return await self._report(WorkStep(), is_empty=True)
        start, clock = self._environment.start, self._environment.clock
        finishing: Awaitable[FinishedStep] | None = None
        keeping: Awaitable[None] | None = None
        step, began_s = WorkStep(), clock()
        following: Awaitable[pa.Table | None] | None = start(self._load(works[0]))
        for number, work in enumerate(works):
            loading, following = following, None
            assert loading is not None
            is_last = number == len(works) - 1
            try:
                table = await loading
                following = None if is_last else start(self._load(works[number + 1]))
                processed = await self._apply(work, table)
                kept, keeping = keeping, None
                if kept:
                    await kept
            except Exception:
                await _settle(following)
                if answer := await self._finish_before_error(finishing, step, keeping):
                    return answer
                raise
            keeping = start(self._keep(work, table, processed, step))
            if is_last or step.is_due(clock() - began_s):
                if finishing and (finished := await finishing).is_over:
                    await _settle(following)
                    await _settle(keeping)
                    return finished.answer
                finishing, keeping = start(self._finish(step, keeping)), None
                step, began_s = WorkStep(), clock()
        assert finishing is not None
        return (await finishing).answer

    async def _finish_before_error(
        self,
        finishing: Awaitable[FinishedStep] | None,
        step: WorkStep,
        keeping: Awaitable[None] | None,
    ) -> Go | Leave | None:
        """Commit what was processed before a message failed.

        Returns the master's answer if the claim was over before: the message is another worker's.
        """
        if finishing and (finished := await finishing).is_over:
            await _settle(keeping)
            return finished.answer
        if keeping or step.messages:
            await self._finish(step, keeping)
        return None

    # -- one message -------------------------------------------------------------------------

    async def _load(self, work: Work) -> pa.Table | None:
        """Return the rows of a message; None if there are none, or if they are not needed."""
        if work.is_repeated or not self._cursor.is_meant_for_it(work.message):
            return None
        table: pa.Table | None = await self._environment.in_thread(self._read, work.message)
        return table

    def _read(self, message: QueueMessage) -> pa.Table | None:
        payloads = self._environment.payloads
        if message.data_ref:
            return payloads.get(message.data_ref)
        if (unit := message.metadata.get(UNIT)) is not None:
            return read_unit(decode_unit(unit), payloads, self._environment.workspace)
        return None

    async def _apply(self, work: Work, table: pa.Table | None) -> Processed:
        if table is None or not table.num_rows:
            return Processed(None)
        metadata = work.message.metadata
        unit = metadata.get(REPLAY_OF) or self._unit(work.message)
        numbers = _replayed_rows(work.message)
        is_isolated = self._claim.isolate and self._cursor.position == self._claim.position
        if not is_isolated:
            return await self._operator.process(UnitRows(unit, table, numbers=numbers))
        poison = frozenset(each.row for each in self._claim.poison)
        probe = _Probe(self._environment, self._claim.number, unit)
        processed = await self._operator.process(UnitRows(unit, table, poison, probe, numbers))
        # What kills the worker from here on is not a row.
        await probe(())
        if self._claim.poison:
            dead = [DeadRow(each.row, each.error, 1) for each in self._claim.poison]
            processed = processed._replace(dead=[*processed.dead, *dead])
        return processed

    def _unit(self, message: QueueMessage) -> str:
        named = self._stage.names_upstream
        return f"{self._input.upstream}.{message.split_id}" if named else message.split_id

    async def _keep(
        self, work: Work, given: pa.Table | None, processed: Processed, step: WorkStep
    ) -> None:
        """Store the payloads of a processed message, and add it to the step."""
        if not work.is_repeated:
            if self._cursor.is_meant_for_it(work.message):
                await self._store(work, given, processed, step)
            else:
                self._produce(self._cursor.pass_on(work), step)
            step.last = work
        step.position = work.next_position
        step.messages += 1
        step.refs.append(work.message.data_ref)

    async def _store(
        self, work: Work, given: pa.Table | None, processed: Processed, step: WorkStep
    ) -> None:
        payloads, stage = self._environment.payloads, self._stage
        unit = self._unit(work.message)
        table = processed.table
        rows = table.num_rows if table is not None else 0
        ref = ""
        if rows:
            ref = await self._environment.in_thread(
                partial(payloads.put, stage.stage, unit, table, durable=stage.is_durable)
            )
        self._produce(self._cursor.output(work, unit, ref, rows), step)
        if processed.dead:
            assert given is not None
            step.outputs.append(await self._dead_letter(work.message, given, processed.dead))
        step.rows_in += given.num_rows if given is not None else 0
        step.rows_out += rows
        step.dead += len(processed.dead)
        step.calls += processed.calls
        step.reused += processed.reused
        step.cost += processed.cost

    def _produce(self, message: QueueMessage | None, step: WorkStep) -> None:
        if message:
            value, partition = encode_message(message), self._input.number
            step.outputs.append(Output(self._stage.output_topic, value, None, partition))
            step.produced += 1

    async def _dead_letter(
        self, message: QueueMessage, given: pa.Table, dead: Sequence[DeadRow]
    ) -> Output:
        """Return a message with the rows that were given up, to be kept with the outputs."""
        stage = self._stage
        if not stage.is_durable:
            raise UnitError(
                f"stage {stage.stage!r} gave up {len(dead)} rows, and its output is on memory",
                do='give it queue_backend="local", which keeps dead letters',
            )
        dead = sorted(dead)
        numbers = _replayed_rows(message) or range(given.num_rows)
        rows = given.take([numbers.index(each.row) for each in dead])
        unit = message.metadata.get(REPLAY_OF) or self._unit(message)
        ref = await self._environment.in_thread(
            self._environment.payloads.put, f"{stage.stage}.dead", unit, rows
        )
        letter = dead_letter(unit, ref, dead, self._input)
        return Output(stage.dead_topic, encode_message(letter), None, self._input.number)

    # -- one step ----------------------------------------------------------------------------

    async def _finish(self, step: WorkStep, keeping: Awaitable[None] | None) -> FinishedStep:
        """Commit a step and report it. `keeping` adds its last message, if that is not done."""
        if keeping:
            await keeping
        is_fenced = False
        if not self._stage.is_durable:
            await self._produce_to_memory(step)
        elif step.last is not None:
            is_fenced = not await self._commit(step, step.last)
        if is_fenced:
            # Another worker has done it, and this one goes on after that.
            return FinishedStep(await self._report(WorkStep()), True)
        self._cursor.move(step.position, step.last)
        answer = await self._report(step)
        return FinishedStep(answer, isinstance(answer, Leave) or not answer.messages_max)

    async def _produce_to_memory(self, step: WorkStep) -> None:
        values = [output.value for output in step.outputs]
        if values:
            offsets = await self._environment.memory.produce_batch(
                self._stage.output_topic, values, partition=self._input.number
            )
            self._output_end = offsets[-1] + 1

    async def _commit(self, step: WorkStep, last: Work) -> bool:
        """Commit in one step, and try again as long as nobody knows whether it took effect."""
        backoff = Backoff(COMMIT_RETRIES, first_s=0.05, longest_s=5.0)
        while True:
            try:
                offsets = await self._environment.local.produce_and_commit(
                    step.outputs, self._cursor.commit(last)
                )
            except UsageError:
                raise
            except HeadraceError as error:
                failure = error
            else:
                ends = zip(step.outputs, offsets, strict=True)
                mine = [
                    offset for output, offset in ends if output.topic == self._stage.output_topic
                ]
                self._output_end = max([self._output_end, *(offset + 1 for offset in mine)])
                return True
            if self._cursor.fence(await self._committed()):
                await self._look_up_output()
                return False
            delay_s = backoff.next_delay_s()
            if delay_s is None:
                raise failure
            await self._environment.sleep(delay_s)

    async def _report(self, step: WorkStep, *, is_empty: bool = False) -> Go | Leave:
        answer = await self._environment.control.ask(
            AdvanceClaim(
                claim=self._claim.number,
                position=self._cursor.position,
                messages=step.messages,
                produced=step.produced,
                end=self._output_end,
                rows_in=step.rows_in,
                rows_out=step.rows_out,
                dead=step.dead,
                calls=step.calls,
                reused=step.reused,
                cost=step.cost,
                is_empty=is_empty,
            )
        )
        assert isinstance(answer, Go | Leave), answer
        if self._input.upstream in self._stage.only_reads:
            delete = self._environment.payloads.delete_scratch
            await self._environment.in_thread(delete, step.refs)
        return answer


def _replayed_rows(message: QueueMessage) -> tuple[int, ...]:
    """Return the numbers of the rows in their unit, if they are replayed."""
    return tuple(message.metadata["rows"]) if REPLAY_OF in message.metadata else ()


async def _settle(ahead: Awaitable[object] | None) -> None:
    """Wait for what was begun ahead and is not needed, whether it fails or not."""
    if ahead is not None:
        with suppress(HeadraceError):
            await ahead


class _Probe:
    """Tells the master which rows the operator is about to process."""

    def __init__(self, environment: WorkerEnvironment, claim: int, unit: str) -> None:
        self._environment = environment
        self._claim = claim
        self._unit = unit

    async def __call__(self, rows: Sequence[int]) -> None:
        await self._environment.control.ask(Probing(self._claim, self._unit, tuple(rows)))
