"""Which jobs a workspace knows, and everything that is stored of one, for whoever looks at it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from headrace.errors import NotFoundError, UsageError
from headrace.journal.workspace import Workspace
from headrace.pipeline.dead_letters import DEAD, DeadLetter, DeadLetters
from headrace.pipeline.ledger.ledger_store import read_figures
from headrace.pipeline.ledger.totals import CallFigures
from headrace.pipeline.messages import ONLY, decode_message
from headrace.pipeline.run.job_run import job_prefix, run_async
from headrace.pipeline.run.record import JobRecord, Records
from headrace.pipeline.run.shuffle_files import list_shuffle_files
from headrace.pipeline.status.job_status import JobStatus, read_status
from headrace.queues.local_backend import LocalBackend

_FETCH = 5000


class TopicReader(NamedTuple):
    """A group that reads a topic."""

    group: str
    behind: int
    """Messages that it has not processed."""
    offsets: dict[int, int]
    """What it has committed, by partition."""


class TopicDescription(NamedTuple):
    """A durable topic of a job."""

    topic: str
    stage: str
    """The stage that writes it."""
    is_dead: bool
    """True if it holds dead letters."""
    is_current: bool
    """False if no run will use it any more."""
    partitions: int
    bounds: list[tuple[int, int]]
    """Where the messages of each partition begin and end."""
    messages: int
    rows: int | None
    """None if nobody has read some of the units."""
    readers: list[TopicReader]


class JobDescription(NamedTuple):
    """Everything that is stored of a job."""

    record: JobRecord
    status: JobStatus | None
    """None if its first run was never seen."""
    topics: list[TopicDescription]
    calls: dict[str, CallFigures]
    """By stage; stages without calls are left out."""
    payload_objects: int
    payload_bytes: int
    shuffle_objects: int
    shuffle_bytes: int


def list_jobs(directory: Path | None, location: str) -> list[str]:
    """Return the jobs that somebody ran, or tried to run, in a workspace directory."""
    if directory is None:
        raise UsageError(
            f"{location} is an address, and pipelines need the workspace's directory",
            do="name the workspace by its directory",
        )
    return sorted(path.stem for path in (directory / "pipelines").glob("*.lock"))


def find_dead_letters(workspace: Workspace, job: str, stage: str = "") -> list[DeadLetter]:
    """Return the rows that stages gave up and nobody replayed; without a stage, those of all."""
    job_record(workspace, job)

    async def find() -> list[DeadLetter]:
        async with LocalBackend(workspace) as backend:
            letters = DeadLetters(workspace, job, backend)
            found = await letters.find(stage or None)
            rows = letters.rows(found)
            return [each._replace(value=row) for each, row in zip(found, rows, strict=True)]

    return run_async(find())


def replay_dead_letters(workspace: Workspace, job: str, stage: str = "") -> int:
    """Send rows that were given up back to their stage, for the next run. Return how many."""
    job_record(workspace, job)

    async def replay() -> int:
        async with LocalBackend(workspace) as backend:
            return await DeadLetters(workspace, job, backend).replay(stage or None)

    return run_async(replay())


def list_statuses(workspace: Workspace) -> list[JobStatus]:
    """Return how the last run of every job stands."""
    found = []
    for name in list_jobs(workspace.directory, workspace.location):
        try:
            found.append(read_status(workspace, name))
        except NotFoundError:
            continue
    return found


def job_record(workspace: Workspace, job: str) -> JobRecord:
    """Return the newest record of a job. Raises NotFoundError if there is none."""
    names = list_jobs(workspace.directory, workspace.location)
    record = Records(workspace.objects, job).newest() if job in names else None
    if record is None:
        raise NotFoundError(
            f"there is no job {job!r} in {workspace.location}",
            do="check its name, and the workspace",
        )
    return record


def describe_job(workspace: Workspace, job: str) -> JobDescription:
    """Return everything that is stored of a job. Changes nothing."""
    record = job_record(workspace, job)
    try:
        status = read_status(workspace, job)
    except NotFoundError:
        status = None
    assert workspace.directory is not None
    ledger = workspace.directory.absolute() / "pipelines" / job / "ledger"
    found = read_figures(ledger, record.generation)
    calls = {}
    for name, stage in record.stages.items():
        if figures := found.get(stage.ledger_stage):
            if status is None or status.outcome != "running":
                # Whoever made calls is gone, and nobody knows how they ended.
                in_doubt = figures.in_doubt + figures.under_way
                figures = figures._replace(under_way=0, in_doubt=in_doubt)
            calls[name] = figures
    shuffles = list_shuffle_files(workspace.objects, job)
    payloads = workspace.objects.list(f"{job_prefix(record)}/payloads")
    return JobDescription(
        record,
        status,
        run_async(_describe_topics(workspace, record)),
        calls,
        len(payloads),
        sum(each.bytes for each in payloads),
        sum(each.objects for each in shuffles),
        sum(each.bytes for each in shuffles),
    )


async def _describe_topics(workspace: Workspace, record: JobRecord) -> list[TopicDescription]:
    current = {record.topic_name(stage) for stage in record.stages}
    current |= {f"{topic}{DEAD}" for topic in current}
    order = list(record.stages)
    async with LocalBackend(workspace) as backend:
        found = [
            await _describe_topic(backend, record, topic, partitions, topic in current)
            for topic, partitions in (await backend.topics()).items()
            if topic.startswith(f"{record.job}.")
        ]
    known = {stage: number for number, stage in enumerate(order)}
    return sorted(found, key=lambda each: (known.get(each.stage, len(order)), each.topic))


async def _describe_topic(
    backend: LocalBackend, record: JobRecord, topic: str, partitions: int, is_current: bool
) -> TopicDescription:
    committed = await backend.committed_by_all(topic)
    bounds = []
    messages, rows, is_known = 0, 0, True
    # The groups `plan…` mark what was put into the topic, and read nothing.
    groups = sorted({group for _, group in committed if not group.startswith("plan.")})
    behind: Counter[str] = Counter()
    for partition in range(partitions):
        begin = await backend.begin_offset(topic, partition=partition)
        end = await backend.end_offset(topic, partition=partition)
        bounds.append((begin, end))
        offset = begin
        while records := await backend.fetch(topic, offset, _FETCH, partition=partition):
            for each in records:
                message = decode_message(each.value)
                messages += 1
                rows += max(message.rows, 0)
                is_known &= message.rows >= 0
                behind.update(
                    group
                    for group in groups
                    if each.offset >= committed.get((partition, group), 0)
                    and message.metadata.get(ONLY) in (None, group)
                )
            offset = records[-1].offset + 1
    is_dead = topic.endswith(DEAD)
    stage = topic.removesuffix(DEAD).split(".")[2]
    readers = [
        TopicReader(
            group,
            behind[group],
            {partition: offset for (partition, each), offset in committed.items() if each == group},
        )
        for group in groups
    ]
    return TopicDescription(
        topic, stage, is_dead, is_current, partitions, bounds, messages,
        rows if is_known else None, readers,
    )  # fmt: skip
