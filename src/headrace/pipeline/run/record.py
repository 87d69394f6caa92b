"""The record of a job: what it began with, so that a later run can tell what has changed.

Records are objects `pipelines/<job>/records/<number>`, written with put-if-absent. The highest
number counts. Every run writes one, so of two drivers that start at once one is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import msgspec

from headrace.decoders import decode_json
from headrace.errors import ChangedError, DataError, ExistsError, UsageError
from headrace.files import lock, make_directory, storage_errors
from headrace.journal.workspace import Workspace
from headrace.pipeline.job import Job
from headrace.storage import Objects

OnChange = Literal["refuse", "resume", "restart", "recompute"]

_CHOICES = (
    "run with on_change='resume' (keep what is done, go on with the change), 'recompute' (do what"
    " changed and all below it again) or 'restart' (do everything again)"
)


class StageRecord(msgspec.Struct, frozen=True):
    """What a stage was when its results began."""

    fingerprint: str
    revision: int
    """The number of the record with which its results began. Names its topics and offsets."""
    ledger_stage: str = ""
    plans: tuple[int, ...] = ()
    """Numbers of the lists of units of a source, in the order in which they were added."""
    layout: str = ""
    """What its offsets mean: see `Job.layout`."""
    accepted: str = ""
    """What a source was when a run resumed with the units of an earlier one."""

    def is_still(self, source: str, on_change: OnChange) -> bool:
        """Tell whether a source is as it was.

        What a run has resumed with counts as that, unless what changed is to be computed again.
        """
        is_accepted = on_change != "recompute" and self.accepted == source
        return is_accepted or self.fingerprint == source

    def accept(self, source: str) -> StageRecord:
        """Return the record of a source that a run resumes with the units that it has."""
        accepted = source if source != self.fingerprint else ""
        return msgspec.structs.replace(self, accepted=accepted)


class JobRecord(msgspec.Struct, frozen=True):
    """The state of a job between runs."""

    job: str
    number: int
    generation: str
    """Identifies a run from scratch."""
    partitions: int
    """Of source topics; 0 until the units are planned."""
    stages: dict[str, StageRecord]

    def topic_name(self, stage: str) -> str:
        """Return the name of a stage's output topic, if it is durable."""
        return f"{self.job}.{self.generation}.{stage}.r{self.stages[stage].revision}"


class Change(msgspec.Struct, frozen=True):
    """One thing that is not as it was."""

    stage: str
    text: str
    is_only_added: bool = False
    """True if a source has new units, and all others are as they were."""


def find_changes(record: JobRecord, job: Job, inputs: Mapping[str, Change | None]) -> list[Change]:
    """Return what differs between the record and the job. Pure.

    `inputs` has the change of each source, None if it holds what it held, and of each stage that
    was computed from all rows and has more to read now.
    """
    changes: list[Change] = []
    for name, stage in job.stages.items():
        before = record.stages.get(name)
        if before is None:
            changes.append(Change(name, f"stage {name!r} is new"))
        elif not stage.source and before.fingerprint != job.fingerprint(name):
            changes.append(Change(name, f"the operator of stage {name!r} has changed"))
        elif found := inputs.get(name):
            changes.append(found)
    gone = record.stages.keys() - job.stages.keys()
    return changes + [Change(name, f"stage {name!r} is gone") for name in sorted(gone)]


def first_record(job: Job, sources: Mapping[str, str], number: int, generation: str) -> JobRecord:
    """Return the record of a job that begins from scratch. Pure.

    `sources` has the fingerprint of each source.
    """
    stages = {name: _begin(job, name, sources, number, generation) for name in job.stages}
    return JobRecord(job.id, number, generation, 0, stages)


def _begin(
    job: Job, name: str, sources: Mapping[str, str], number: int, generation: str
) -> StageRecord:
    layout = job.layout(name)
    if name in sources:
        return StageRecord(sources[name], number, plans=(number,), layout=layout)
    fingerprint = job.fingerprint(name)
    ledger_stage = f"{generation}.{name}.{fingerprint[:12]}"
    return StageRecord(fingerprint, number, ledger_stage, layout=layout)


def next_record(
    record: JobRecord,
    job: Job,
    sources: Mapping[str, str],
    changes: list[Change],
    on_change: OnChange,
    *,
    number: int,
    generation: str,
) -> JobRecord:
    """Return the record of the next run. Pure. Raises ChangedError if it must not go on so.

    `generation` is for a run from scratch.
    """
    if not changes:
        return msgspec.structs.replace(record, number=number)
    if on_change == "refuse":
        text = "; ".join(change.text for change in changes)
        raise ChangedError(f"job {job.id!r} is not as it was: {text}", do=_CHOICES)
    if on_change == "restart":
        return first_record(job, sources, number, generation)
    if on_change == "resume":
        _check_resumable(job, record)
        stages = {
            name: before.accept(sources[name])
            if name in sources
            else msgspec.structs.replace(before, fingerprint=job.fingerprint(name))
            for name, before in ((name, record.stages[name]) for name in job.stages)
        }
        return msgspec.structs.replace(record, number=number, stages=stages)
    return _recomputed(record, job, sources, changes, number)


def _check_resumable(job: Job, record: JobRecord) -> None:
    if job.stages.keys() != record.stages.keys():
        raise ChangedError(
            f"job {job.id!r} has other stages than before, and cannot be resumed",
            do="run with on_change='recompute' or 'restart'",
        )
    for name, before in record.stages.items():
        if before.layout not in ("", job.layout(name)):
            raise ChangedError(
                f"stage {name!r} of job {job.id!r} reads from other stages than before, or no"
                " longer keeps its output where it did, and cannot be resumed",
                do="run with on_change='recompute' or 'restart'",
            )


def _recomputed(
    record: JobRecord, job: Job, sources: Mapping[str, str], changes: list[Change], number: int
) -> JobRecord:
    changed = {change.stage: change for change in changes}
    renewed: set[str] = set()
    grown: set[str] = set()
    stages: dict[str, StageRecord] = {}
    for name in job.stages:
        before = record.stages.get(name)
        change = changed.get(name)
        begun = _begin(job, name, sources, number, record.generation)
        upstreams = set(job.upstreams(name))
        # What was computed from all rows is not what all rows and some more would give.
        is_stale = job.stages[name].takes_all and bool(grown & upstreams)
        if before and change and change.is_only_added:
            grown.add(name)
            stages[name] = msgspec.structs.replace(
                before, fingerprint=sources[name], plans=(*before.plans, number), accepted=""
            )
        elif before is None or change or is_stale or renewed & upstreams:
            renewed.add(name)
            # A stage whose operator is the same finds in the ledger what it paid for.
            is_same = before is not None and before.fingerprint == begun.fingerprint
            ledger_stage = before.ledger_stage if before and is_same else begun.ledger_stage
            stages[name] = msgspec.structs.replace(begun, ledger_stage=ledger_stage)
        else:
            stages[name] = before
            grown |= {name} if grown & upstreams else set()
    return msgspec.structs.replace(record, number=number, stages=stages)


class Records:
    """The records of one job among the objects of a workspace."""

    def __init__(self, objects: Objects, job: str) -> None:
        self._objects = objects
        self._prefix = f"pipelines/{job}/records"
        self._job = job

    def newest(self) -> JobRecord | None:
        found = self._objects.list(self._prefix)
        if not found:
            return None
        key = max(info.key for info in found)
        try:
            return decode_json(self._objects.get(key), JobRecord)
        except msgspec.MsgspecError as error:
            raise DataError(
                f"the record {key} of job {self._job!r} is damaged: {error}",
                do="restore it from a backup",
            ) from error

    def write(self, record: JobRecord) -> None:
        """Store a record. Raises ExistsError if another driver was faster."""
        key = f"{self._prefix}/{record.number:020d}.json"
        if not self._objects.put_if_absent(key, msgspec.json.encode(record)):
            raise ExistsError(
                f"another driver runs job {self._job!r}", do="wait for it, or end it first"
            )


class JobLock:
    """Keeps other processes of this machine from running the same job, until closed."""

    def __init__(self, workspace: Workspace, job: str) -> None:
        if workspace.directory is None:
            raise UsageError(
                f"{workspace.location} is an address, and pipelines need the workspace's directory",
                do="open the workspace by its directory",
            )
        path = Path(workspace.directory) / "pipelines" / f"{job}.lock"
        with storage_errors(str(path), do="let this user write to the workspace's directory"):
            make_directory(path.parent)
            path.touch()
        try:
            self._descriptor = lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExistsError(
                f"job {job!r} is already running in this workspace",
                do="wait until it ends, or give this job another name",
            ) from None

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
