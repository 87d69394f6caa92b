"""One run of a job: what the driver prepares, and what runners and workers get from it."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from headrace.errors import HeadraceError, bug
from headrace.journal.workspace import Workspace
from headrace.pipeline.contract import StagePlan, WorkerAssignment
from headrace.pipeline.dead_letters import DEAD
from headrace.pipeline.job import Job
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.inputs import (
    PARTITIONS_MIN,
    InputTopic,
    StageInput,
    committing_inputs,
    inputs,
    topics,
)
from headrace.pipeline.master.stage_state import InputState, StageCounts, StageState
from headrace.pipeline.master.state import JobState, Outcome, TruncateTopic
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.run.record import (
    Change,
    JobLock,
    JobRecord,
    OnChange,
    Records,
    find_changes,
    first_record,
    next_record,
)
from headrace.pipeline.run.run_services import RunServices
from headrace.pipeline.run.sealed_results import SealedResult, SealedResults, unread_end
from headrace.pipeline.run.whole_stage import WholeStage
from headrace.pipeline.source.source_topics import UnitLists, fill_topic, plan_units
from headrace.pipeline.source.source_units import Unit
from headrace.pipeline.status.job_status import JobStatus, StatusWriter
from headrace.pipeline.status.run_figures import RunFigures
from headrace.pipeline.status.unit_counts import UnitCounts
from headrace.pipeline.worker.environment import WorkerStage
from headrace.pipeline.worker.work_assignment import LocalAssignment, RemoteAssignment
from headrace.plan.plan_run import PlanRun
from headrace.queues.contract import QueueBackend
from headrace.queues.local_backend import LocalBackend
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics
from headrace.settings import ServiceSettings

PARTITIONS_PER_WORKER = 4

T = TypeVar("T")


@dataclass(frozen=True)
class RunSummary:
    """How a run ended."""

    job: str
    outcome: Outcome
    stages: dict[str, StageCounts] = field(default_factory=dict)
    paused: dict[str, str] = field(default_factory=dict)
    """Why each paused stage is paused."""
    cost: float = 0.0
    """What the results that this run recorded cost."""
    cost_in_all: float = 0.0
    """What all results cost since the job began from scratch, in this run and earlier ones."""

    def __str__(self) -> str:
        """One line, such as "paused: the job's budget of 5 is spent at stage 'caption': …"."""
        why = "; ".join(dict.fromkeys(self.paused.values()))
        dead = sum(each.dead for each in self.stages.values())
        given_up = f", {dead:,} dead {'letter' if dead == 1 else 'letters'}" if dead else ""
        return f"{self.outcome}{given_up}{f': {why}' if why else ''}"


class JobRun:
    """Prepares a run when it is opened. Implements `contract.RunControl`."""

    def __init__(
        self,
        workspace: Workspace,
        job: Job,
        *,
        on_change: OnChange = "refuse",
        service: ServiceSettings | None = None,
        watch: Callable[[JobStatus], None] | None = None,
    ) -> None:
        """`service` says where workers in other processes reach the driver.

        `watch` is shown how the run stands, again and again, and at its end.
        """
        job.validate()
        self.job = job
        self.workspace = workspace
        self._service = service or ServiceSettings()
        self._memory = MemoryTopics()
        self.shuffles: dict[str, PlanRun] = {}
        """The queries that this run has begun, by stage."""
        with ExitStack() as stack:
            stack.enter_context(JobLock(workspace, job.id))
            stack.callback(self._memory.close)
            self.record = open_record(workspace, job, on_change)
            self.payloads = job_payloads(workspace, self.record, self._new_scratch())
            stack.callback(self._remove_scratch)
            state = run_async(self._prepare())
            self.master = Master(state, self._truncate)
            self.services = RunServices(self.master, self._memory, self._ledger(), job.budget)
            stack.callback(self.services.close)
            counts = UnitCounts(job, self.topics, self.inputs)
            self._figures = RunFigures(
                job, self.record, self.master, self.services, counts, self.shuffles
            )
            for stage in job.operators:
                if limit := getattr(stage.spec, "rate_limit", None):
                    self.services.rate_limits.declare(limit)
            writer = StatusWriter(workspace, self._figures.look, watch)
            stack.callback(writer.close)
            self._open = stack.pop_all()

    def _new_scratch(self) -> Path:
        """Return the directory for payloads of stages on memory, empty."""
        self._remove_scratch()
        return job_directory(self.workspace, self.job) / "scratch" / str(self.record.number)

    def _remove_scratch(self) -> None:
        """Remove payloads of this run, and those that a killed run left."""
        shutil.rmtree(job_directory(self.workspace, self.job) / "scratch", ignore_errors=True)

    def _ledger(self) -> tuple[Path, str] | None:
        """Return where the ledger is; None if no stage needs one."""
        if not any(stage.spec.expensive for stage in self.job.operators):
            return None
        return ledger_directory(self.workspace, self.job), self.record.generation

    async def _prepare(self) -> JobState:
        job = self.job
        async with LocalBackend(self.workspace) as local:
            units = await asyncio.to_thread(self._plan)
            self.topics = job_topics(job, self.record)
            memory = MemoryBackend(self._memory)
            for stage, topic in self.topics.items():
                backend = local if topic.is_durable else memory
                await backend.create_topic(topic.name, topic.partitions)
                if stage not in units and topic.is_durable:
                    await local.create_topic(f"{topic.name}{DEAD}", topic.partitions)
            for stage, plans in units.items():
                await self._fill(local, stage, plans)
            results = sealed_results(self.workspace, self.record)
            sealed = await asyncio.to_thread(results.load_all, job)
            for stage in sealed:
                await results.fill(local, stage, self.topics[stage])
            self.inputs = inputs(job, self.topics, _groups(self.record))
            return await load_state(job, self.inputs, local, sealed)

    def _plan(self) -> dict[str, dict[int, list[Unit]]]:
        """Return the units of each source that are not in its topic, by plan.

        Fixes the number of partitions if it is open.
        """
        lists = unit_lists(self.workspace, self.record)
        found: dict[str, dict[int, list[Unit]]] = {}
        for stage in self.job.sources:
            assert stage.source
            plans = self.record.stages[stage.stage_id].plans
            found[stage.stage_id] = plan_units(
                stage.source, lists, self.payloads, stage.stage_id, plans
            )
        if not self.record.partitions:
            count = max(len(units) for plans in found.values() for units in plans.values())
            wanted = max(
                PARTITIONS_MIN,
                *(PARTITIONS_PER_WORKER * each.config.workers for each in self.job.operators),
            )
            self.record = msgspec.structs.replace(
                self.record, number=self.record.number + 1, partitions=max(1, min(count, wanted))
            )
            Records(self.workspace.objects, self.job.id).write(self.record)
        return found

    async def _fill(self, local: QueueBackend, stage: str, plans: dict[int, list[Unit]]) -> None:
        lists = unit_lists(self.workspace, self.record)
        topic = self.topics[stage]
        for plan, units in plans.items():
            await fill_topic(local, topic.name, topic.partitions, plan, units)
            lists.mark_filled(stage, plan)

    def _truncate(self, effect: TruncateTopic) -> None:
        self._memory.truncate_before(effect.topic, effect.offset, effect.partition)

    # -- what runners use --------------------------------------------------------------------

    @property
    def stages(self) -> Sequence[StagePlan]:
        phases = self.job.phases()
        return [
            StagePlan(
                stage.stage_id,
                stage.config.workers,
                dict(stage.config.resources),
                stage.takes_all,
                phases[stage.stage_id],
                stage.shuffle is not None,
            )
            for stage in self.job.operators
        ]

    def assignment(self, stage: str) -> WorkerAssignment:
        stage_for_worker = self.worker_stage(stage)
        return LocalAssignment(stage_for_worker, self.workspace, self.payloads, self.services)

    def remote_assignment(self, stage: str) -> WorkerAssignment:
        address, service = self.services.serve(self._service)
        return RemoteAssignment(
            self.worker_stage(stage),
            self.workspace.reach(),
            self.payloads,
            address,
            service,
            self.services.ledger is not None,
        )

    def worker_stage(self, stage: str) -> WorkerStage:
        found = self.job.stages[stage]
        topic = self.topics[stage]
        return WorkerStage(
            stage,
            found.spec,
            topic.is_durable,
            topic.name,
            f"{topic.name}{DEAD}",
            self.record.stages[stage].ledger_stage,
            found.config.fetch_timeout_ms,
            len(self.job.upstreams(stage)) > 1,
            frozenset(
                each
                for each in self.job.upstreams(stage)
                if not self.job.is_durable(each) and len(self.job.downstreams(each)) == 1
            ),
        )

    def is_over(self, stage: str) -> bool:
        return self.master.is_over(stage)

    def run_in_turn(self, stages: Collection[str]) -> None:
        self.master.run_in_turn(stages)

    def whole_stage(self, stage: str) -> WholeStage:
        """Return how a stage that takes all rows at once is computed."""
        results = sealed_results(self.workspace, self.record)
        topic = self.topics[stage]
        return WholeStage(stage, self.workspace, self.master, results, self.inputs[stage], topic)

    def worker_failed(self, stage: str, error: BaseException) -> None:
        if not isinstance(error, HeadraceError):
            error = bug(
                f"a worker of stage {stage!r}", Exception(f"{type(error).__name__}: {error}")
            )
        self.master.fail(error)

    # -- how it ended ------------------------------------------------------------------------

    def summary(self) -> RunSummary:
        """Return how the run stands. Raises what it failed with."""
        if error := self.master.error:
            raise error
        cost, cost_in_all = self._figures.cost(self.services.calls())
        return self.master.look(
            lambda state: RunSummary(
                self.job.id,
                state.outcome,
                {name: stage.counts for name, stage in state.stages.items()},
                dict(state.paused),
                cost,
                cost_in_all,
            )
        )

    def stop(self) -> None:
        """Ask the run to end soon. Calls under way are recorded, and the next run goes on."""
        self.services.stop()

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_record(workspace: Workspace, job: Job, on_change: OnChange) -> JobRecord:
    """Write the record of a new run, and return it. Raises ChangedError."""
    records = Records(workspace.objects, job.id)
    before = records.newest()
    sources = {stage.stage_id: stage.source.fingerprint() for stage in job.sources if stage.source}
    number = before.number + 1 if before else 1
    generation = secrets.token_hex(6)
    if before is None or not before.partitions:
        record = first_record(job, sources, number, generation)
    else:
        inputs_now = input_changes(workspace, before, job, sources, on_change)
        changes = find_changes(before, job, inputs_now)
        record = next_record(
            before, job, sources, changes, on_change, number=number, generation=generation
        )
    records.write(record)
    return record


def input_changes(
    workspace: Workspace, record: JobRecord, job: Job, now: dict[str, str], on_change: OnChange
) -> dict[str, Change | None]:
    """Compare every source with the units that were planned, and what is sealed with its input."""
    lists = unit_lists(workspace, record)
    found: dict[str, Change | None] = {}
    for stage in job.sources:
        name, before = stage.stage_id, record.stages.get(stage.stage_id)
        if before is None or before.is_still(now[name], on_change):
            found[name] = None
            continue
        assert stage.source
        change = stage.source.change(lists.load_all(name, before.plans))
        text = f"source {name!r} has changed: {change.text}"
        found[name] = Change(name, text, change.is_only_added)
    for name in run_async(_grown(workspace, record, job)):
        text = f"the input of stage {name!r} has grown since the stage was computed from all of it"
        found[name] = Change(name, text)
    return found


async def _grown(workspace: Workspace, record: JobRecord, job: Job) -> list[str]:
    """Return the stages that are sealed and have more to read."""
    sealed = sealed_results(workspace, record).load_all(job)
    if not sealed or job.stages.keys() - record.stages.keys():
        return []
    of_stage = inputs(job, job_topics(job, record), _groups(record))
    async with LocalBackend(workspace) as local:
        return [name for name in sealed if await sealed[name].has_grown(local, of_stage[name])]


def job_directory(workspace: Workspace, job: Job) -> Path:
    assert workspace.directory is not None
    return workspace.directory.absolute() / "pipelines" / job.id


def ledger_directory(workspace: Workspace, job: Job) -> Path:
    return job_directory(workspace, job) / "ledger"


def job_prefix(record: JobRecord) -> str:
    return f"pipelines/{record.job}/{record.generation}"


def job_payloads(workspace: Workspace, record: JobRecord, scratch: Path | None = None) -> Payloads:
    return Payloads(workspace.objects, f"{job_prefix(record)}/payloads", scratch)


def unit_lists(workspace: Workspace, record: JobRecord) -> UnitLists:
    return UnitLists(workspace.objects, job_prefix(record))


def sealed_results(workspace: Workspace, record: JobRecord) -> SealedResults:
    return SealedResults(workspace.objects, job_prefix(record), record)


def job_topics(job: Job, record: JobRecord) -> dict[str, InputTopic]:
    """Return the output topic of every stage. Those on memory are new in every run."""
    names = {
        name: record.topic_name(name) + ("" if job.is_durable(name) else f".m{record.number}")
        for name in record.stages
        if name in job.stages
    }
    sources = {
        stage.stage_id: InputTopic(names[stage.stage_id], True, record.partitions)
        for stage in job.sources
    }
    return topics(job, sources, names)


def _groups(record: JobRecord) -> dict[str, str]:
    return {name: f"{name}.r{each.revision}" for name, each in record.stages.items()}


async def load_state(
    job: Job,
    inputs: dict[str, list[StageInput]],
    local: QueueBackend,
    sealed: Mapping[str, SealedResult] | None = None,
) -> JobState:
    """Return the state at the beginning of a run, from what was committed in earlier ones.

    `sealed` has the results of stages that take all rows at once.
    """
    sealed = sealed or {}
    stages = [
        StageState(
            stage.stage_id,
            [
                await _load_input(job, inputs, each, local, sealed.get(stage.stage_id))
                for each in inputs[stage.stage_id]
            ],
            stage.config.batch_size,
            stage.spec.on_error,
            takes_all=stage.takes_all,
            is_sealed=stage.stage_id in sealed,
        )
        for stage in job.operators
    ]
    return JobState(stages, {stage.stage: job.upstreams(stage.stage) for stage in stages})


async def _load_input(
    job: Job,
    inputs: dict[str, list[StageInput]],
    each: StageInput,
    local: QueueBackend,
    sealed: SealedResult | None,
) -> InputState:
    if not each.is_input_durable:
        return InputState(each, 0, 0)
    if sealed and (end := sealed.end(each)) is not None:
        return InputState(each, end, await unread_end(local, each, end))
    begin = await local.begin_offset(each.topic, partition=each.partition)
    end = await local.end_offset(each.topic, partition=each.partition)
    committed = [
        await local.get_committed_offset(below.group, each.topic, partition=each.partition)
        for below in committing_inputs(job, inputs, each)
    ]
    position = min(begin if offset is None else offset for offset in committed)
    return InputState(each, position, max(end, position))


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where an event loop runs already, as in a notebook."""
    with ThreadPoolExecutor(1, "headrace-pipeline") as thread:
        return thread.submit(asyncio.run, work).result()
