"""What of a job no run will need again, and how it is removed.

A job that began from scratch leaves its old generation; a stage that was recomputed leaves its old
revision; a worker that died leaves payloads that no message refers to; a stage that is sealed
leaves its shuffle files. Only what the newest record leads to is kept: its topics, their payloads,
lists of units, sealed results and sink batches, the shuffle files of stages that are not sealed,
and the calls of its stages in the ledger.

Nothing that is removed is referred to, so a process may die between any two steps: the next run is
the same, and the next collection goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.journal.workspace import Workspace
from headrace.pipeline.dead_letters import DEAD
from headrace.pipeline.ledger.ledger_store import LedgerStore, list_ledger
from headrace.pipeline.messages import decode_message
from headrace.pipeline.run.job_run import job_prefix, run_async, unit_lists
from headrace.pipeline.run.payloads import payload_place
from headrace.pipeline.run.record import JobLock, JobRecord, Records
from headrace.pipeline.run.sealed_results import SealedResults
from headrace.pipeline.run.shuffle_files import (
    ShuffleFiles,
    list_shuffle_files,
    remove_shuffle_files,
    shuffle_name,
)
from headrace.pipeline.source.source_units import TableUnit
from headrace.pipeline.status.job_catalog import job_record
from headrace.queues.local_backend import LocalBackend
from headrace.storage import ObjectInfo

_FETCH = 5000

Step = Callable[[], object]


class LedgerPart(NamedTuple):
    """The calls of a stage in the ledger."""

    generation: str
    stage: str
    results: int
    keeps_totals: bool
    """True if the budget of the job still counts what they cost."""


class Garbage(NamedTuple):
    """What can be removed of a job."""

    topics: list[str]
    objects: list[ObjectInfo]
    ledger: list[LedgerPart]
    shuffles: list[ShuffleFiles]

    @property
    def bytes(self) -> int:
        objects = sum(each.bytes for each in self.objects)
        return objects + sum(each.bytes for each in self.shuffles)

    @property
    def results(self) -> int:
        return sum(each.results for each in self.ledger)

    @property
    def is_empty(self) -> bool:
        return not (self.topics or self.objects or self.ledger or self.shuffles)


def find_garbage(workspace: Workspace, job: str) -> Garbage:
    """Return what no run will need again. Raises ExistsError if the job is running."""
    record = job_record(workspace, job)
    with JobLock(workspace, job):
        return _find(workspace, record)


def collect_garbage(workspace: Workspace, job: str, before: Step = lambda: None) -> Garbage:
    """Remove what no run will need again, and return it. `before` is called before each step.

    Raises ExistsError if the job is running.
    """
    job_record(workspace, job)
    with JobLock(workspace, job):
        garbage = _find(workspace, job_record(workspace, job))
        for step in _steps(workspace, job, garbage):
            before()
            step()
        before()
        return garbage


def delete_job(workspace: Workspace, job: str, before: Step = lambda: None) -> None:
    """Remove everything of a job: its next run begins from scratch.

    Raises ExistsError if the job is running. A record without stages comes first, so that a run
    after a deletion that was cut short begins from scratch too.
    """
    job_record(workspace, job)
    with JobLock(workspace, job):
        record = job_record(workspace, job)
        empty = JobRecord(job, record.number + 1, record.generation, 0, {})
        Records(workspace.objects, job).write(empty)
        steps: list[Step] = [
            *_steps(workspace, job, _find(workspace, empty)),
            partial(shutil.rmtree, _directory(workspace, job), ignore_errors=True),
            partial(workspace.objects.delete, f"pipelines/{job}/status.json"),
            partial(_delete_records, workspace, job),
        ]
        for step in steps:
            before()
            step()


def _delete_records(workspace: Workspace, job: str) -> None:
    for each in sorted(workspace.objects.list(f"pipelines/{job}/records"), key=lambda it: it.key):
        workspace.objects.delete(each.key)


def _directory(workspace: Workspace, job: str) -> Path:
    assert workspace.directory is not None
    return workspace.directory.absolute() / "pipelines" / job


# -- what is garbage -----------------------------------------------------------------------------


def _find(workspace: Workspace, record: JobRecord) -> Garbage:
    # A record without partitions is that of a run that died before it began: nothing is kept.
    kept_topics: set[str] = set()
    if record.partitions:
        kept_topics = {record.topic_name(stage) for stage in record.stages}
        kept_topics |= {f"{topic}{DEAD}" for topic in kept_topics}
    topics, refs = run_async(_read_topics(workspace, record.job, kept_topics))
    keys = {payload_place(ref).key for ref in refs}
    if record.partitions:
        keys |= _listed_payloads(workspace, record)
    return Garbage(
        topics,
        _unneeded_objects(workspace, record, keys),
        _unneeded_calls(workspace, record),
        _unneeded_shuffles(workspace, record),
    )


async def _read_topics(
    workspace: Workspace, job: str, kept: set[str]
) -> tuple[list[str], set[str]]:
    """Return the topics of the job that are not kept, and what the messages of others refer to."""
    refs: set[str] = set()
    async with LocalBackend(workspace) as backend:
        present = await backend.topics()
        mine = {topic: count for topic, count in present.items() if topic.startswith(f"{job}.")}
        for topic in kept & mine.keys():
            for partition in range(mine[topic]):
                offset = await backend.begin_offset(topic, partition=partition)
                while found := await backend.fetch(topic, offset, _FETCH, partition=partition):
                    refs.update(decode_message(each.value).data_ref for each in found)
                    offset = found[-1].offset + 1
    return sorted(mine.keys() - kept), refs - {""}


def _listed_payloads(workspace: Workspace, record: JobRecord) -> set[str]:
    """Return the payloads of units that may not be in their topic yet."""
    lists = unit_lists(workspace, record)
    sealed = SealedResults(workspace.objects, job_prefix(record), record)
    units = [
        unit
        for name, stage in record.stages.items()
        for plan in stage.plans
        if lists.exists(name, plan)
        for unit in lists.load(name, plan)
    ]
    for name in record.stages:
        if result := sealed.load(name):
            units += sealed.units(name, result)
    return {payload_place(each.ref).key for each in units if isinstance(each, TableUnit)}


def _unneeded_objects(
    workspace: Workspace, record: JobRecord, payloads: set[str]
) -> list[ObjectInfo]:
    root = f"pipelines/{record.job}/"
    newest = f"{root}records/{record.number:020d}.json"
    return [
        each
        for each in workspace.objects.list(root.removesuffix("/"))
        if each.key not in (newest, f"{root}status.json")
        and not _is_needed(each.key.removeprefix(root), each.key, record, payloads)
    ]


def _is_needed(path: str, key: str, record: JobRecord, payloads: set[str]) -> bool:
    generation, _, rest = path.partition("/")
    if generation == "records":
        return False
    if not record.partitions or generation != record.generation:
        return False
    kind, _, place = rest.partition("/")
    stage, _, name = place.partition("/")
    if kind == "payloads":
        return key in payloads
    if kind == "units":
        plans = record.stages[stage].plans if stage in record.stages else ()
        return int(name.removesuffix(".filled")) in plans
    if kind in ("results", "sinks"):
        return stage in {f"{name}.r{each.revision}" for name, each in record.stages.items()}
    return True


def _unneeded_calls(workspace: Workspace, record: JobRecord) -> list[LedgerPart]:
    current = {each.ledger_stage for each in record.stages.values()} if record.partitions else ()
    found = []
    for generation, stage, totals in list_ledger(_directory(workspace, record.job) / "ledger"):
        is_same = bool(record.partitions) and generation == record.generation
        if is_same and (stage in current or not totals.results):
            continue
        found.append(LedgerPart(generation, stage, totals.results, is_same))
    return found


def _unneeded_shuffles(workspace: Workspace, record: JobRecord) -> list[ShuffleFiles]:
    """Return the shuffle files of all stages but those that a run began and did not seal."""
    needed: set[str] = set()
    if record.partitions:
        sealed = SealedResults(workspace.objects, job_prefix(record), record)
        unsealed = [stage for stage in record.stages if sealed.load(stage) is None]
        needed = {shuffle_name(record, stage) for stage in unsealed}
    found = list_shuffle_files(workspace.objects, record.job)
    return [each for each in found if each.name not in needed]


# -- how it is removed ---------------------------------------------------------------------------


def _steps(workspace: Workspace, job: str, garbage: Garbage) -> Iterator[Step]:
    for topic in garbage.topics:
        yield partial(_delete_topic, workspace, topic)
    for each in garbage.objects:
        yield partial(workspace.objects.delete, each.key)
    for files in garbage.shuffles:
        yield partial(remove_shuffle_files, workspace.objects, files.query_id)
    ledger = _directory(workspace, job) / "ledger"
    for part in garbage.ledger:
        yield partial(_forget_calls, ledger, part)


def _delete_topic(workspace: Workspace, topic: str) -> None:
    async def delete() -> None:
        async with LocalBackend(workspace) as backend:
            await backend.delete_topic(topic)

    run_async(delete())


def _forget_calls(ledger: Path, part: LedgerPart) -> None:
    store = LedgerStore(ledger, part.generation)
    try:
        with store.write() as txn:
            if part.keeps_totals:
                txn.forget_results(part.stage)
            else:
                txn.forget(part.stage)
    finally:
        store.close()
