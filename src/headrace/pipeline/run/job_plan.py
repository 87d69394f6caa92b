"""What a run of a job would do, before anything is paid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.errors import StorageError
from headrace.journal.workspace import Workspace
from headrace.pipeline.job import Job, Stage
from headrace.pipeline.ledger.ledger_store import read_totals
from headrace.pipeline.ledger.totals import StageTotals
from headrace.pipeline.run.job_run import input_changes, ledger_directory, unit_lists
from headrace.pipeline.run.record import Change, JobRecord, Records, find_changes
from headrace.pipeline.run.shuffle_files import count_published
from headrace.pipeline.source.source_units import known_rows


@dataclass(frozen=True)
class StageForecast:
    """What is known of a stage before it runs."""

    stage: str
    is_durable: bool
    workers: int
    expensive: bool
    calls_max: int | None = None
    """Calls if no earlier stage drops or adds rows; None if the number of rows is not known."""
    calls_recorded: int = 0
    """Calls whose results are in the ledger: they are not made again."""
    cost_max: float | None = None
    """What the calls that are not recorded cost; None if only their answers tell."""
    query: str = ""
    """What a stage that shuffles computes; such a stage has tasks in place of workers."""
    tasks_published: int = 0
    """Tasks of its query whose output is there: they are not computed again."""


@dataclass(frozen=True)
class JobPlan:
    """What a run would do."""

    job: str
    is_new: bool
    """True if no run has begun, or if the next one would begin from scratch."""
    units: int
    rows: int | None
    """None if files must be read to know."""
    stages: list[StageForecast]
    changes: list[Change] = field(default_factory=list)
    """What is not as it was in the last run: `run` refuses it without a choice."""


def plan_job(workspace: Workspace, job: Job) -> JobPlan:
    """Return what a run would do. Writes nothing."""
    job.validate()
    record = Records(workspace.objects, job.id).newest()
    if record is not None and not record.partitions:
        record = None
    counts = _count(workspace, job, record)
    rows = _rows_out(job, {name: each[1] for name, each in counts.items()})
    totals = _totals(workspace, job, record) if record else {}
    published = _published(workspace, job, record) if record else {}
    stages = [
        _forecast(
            stage, job, _rows_in(stage, job, rows), record, totals, published.get(stage.stage_id, 0)
        )
        for stage in job.operators
    ]
    changes: list[Change] = []
    if record:
        sources = {each.stage_id: each.source.fingerprint() for each in job.sources if each.source}
        changes = find_changes(
            record, job, input_changes(workspace, record, job, sources, "refuse")
        )
    units = sum(each[0] for each in counts.values())
    total = _sum(each[1] for each in counts.values())
    return JobPlan(job.id, record is None, units, total, stages, changes)


def _count(
    workspace: Workspace, job: Job, record: JobRecord | None
) -> dict[str, tuple[int, int | None]]:
    """Return the units and the rows of each source; None if rows must be read to know."""
    counts: dict[str, tuple[int, int | None]] = {}
    for stage in job.sources:
        assert stage.source
        before = record.stages.get(stage.stage_id) if record else None
        if record and before:
            lists = unit_lists(workspace, record)
            planned = lists.load_all(stage.stage_id, before.plans)
            counts[stage.stage_id] = len(planned), known_rows(planned)
        else:
            counts[stage.stage_id] = stage.source.preview()
    return counts


def _rows_out(job: Job, of_sources: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the rows of each stage if none drops or adds any; None if nobody can tell. Pure.

    A key has at least one row, so a group makes no more rows than it gets; a join may make more.
    """
    found: dict[str, int | None] = dict(of_sources)
    for stage in job.operators:
        is_join = stage.shuffle is not None and stage.shuffle.sides > 1
        found[stage.stage_id] = None if is_join else _rows_in(stage, job, found)
    return found


def _rows_in(stage: Stage, job: Job, rows: Mapping[str, int | None]) -> int | None:
    return _sum([rows[each] for each in job.upstreams(stage.stage_id)])


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for each in counts:
        if each is None:
            return None
        total += each
    return total


def _forecast(
    stage: Stage,
    job: Job,
    rows: int | None,
    record: JobRecord | None,
    totals: dict[str, StageTotals],
    published: int,
) -> StageForecast:
    spec = stage.spec
    per_call = getattr(spec, "rows_per_call", None)
    calls = -(-rows // per_call) if rows is not None and per_call else None
    before = record.stages.get(stage.stage_id) if record else None
    counted = totals.get(before.ledger_stage) if before else None
    recorded = counted.results if counted else 0
    cost = getattr(spec, "cost", None)
    is_priced = spec.expensive and calls is not None and isinstance(cost, int | float)
    return StageForecast(
        stage.stage_id,
        job.is_durable(stage.stage_id),
        stage.config.workers,
        spec.expensive,
        calls,
        recorded,
        max(calls - recorded, 0) * cost if is_priced and calls is not None and cost else None,
        f"{stage.shuffle}; {stage.shuffle.partitions} partitions" if stage.shuffle else "",
        published,
    )


def _published(workspace: Workspace, job: Job, record: JobRecord) -> dict[str, int]:
    stages = [each.stage_id for each in job.operators if each.shuffle]
    known = [stage for stage in stages if stage in record.stages]
    return count_published(workspace.objects, record, known)


def _totals(workspace: Workspace, job: Job, record: JobRecord) -> dict[str, StageTotals]:
    """Return what the ledger holds for each stage; nothing while this process runs the job."""
    try:
        return read_totals(ledger_directory(workspace, job), record.generation)
    except StorageError:
        # LMDB refuses a process that has the ledger open already.
        return {}
