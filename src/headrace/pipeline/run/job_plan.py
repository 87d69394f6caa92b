"""What a run of a job would do, before anything is paid."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import StorageError
from headrace.journal.workspace import Workspace
from headrace.pipeline.job import Job, Stage
from headrace.pipeline.ledger.ledger_store import read_totals
from headrace.pipeline.ledger.totals import StageTotals
from headrace.pipeline.run.job_run import input_changes, ledger_directory, unit_lists
from headrace.pipeline.run.record import Change, JobRecord, Records, find_changes
from headrace.pipeline.source.source_units import known_rows


@dataclass(frozen=True)
class StageForecast:
    """What is known of a stage before it runs."""

    stage: str
    is_durable: bool
    workers: int
    expensive: bool
    calls_max: int | None = None
    """Calls if no earlier stage drops rows; None if the number of rows is not known."""
    calls_recorded: int = 0
    """Calls whose results are in the ledger: they are not made again."""
    cost_max: float | None = None
    """What the calls that are not recorded cost; None if only their answers tell."""


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
    units, rows = _count(workspace, job, record)
    totals = _totals(workspace, job, record) if record else {}
    stages = [_forecast(stage, job, rows, record, totals) for stage in job.operators]
    changes: list[Change] = []
    if record:
        sources = {each.stage_id: each.source.fingerprint() for each in job.sources if each.source}
        changes = find_changes(record, job, input_changes(workspace, record, job, sources))
    return JobPlan(job.id, record is None, units, rows, stages, changes)


def _count(workspace: Workspace, job: Job, record: JobRecord | None) -> tuple[int, int | None]:
    units, rows = 0, 0
    is_known = True
    for stage in job.sources:
        assert stage.source
        found: tuple[int, int | None]
        before = record.stages.get(stage.stage_id) if record else None
        if record and before:
            lists = unit_lists(workspace, record)
            planned = lists.load_all(stage.stage_id, before.plans)
            found = len(planned), known_rows(planned)
        else:
            found = stage.source.preview()
        units += found[0]
        is_known = is_known and found[1] is not None
        rows += found[1] or 0
    return units, rows if is_known else None


def _forecast(
    stage: Stage,
    job: Job,
    rows: int | None,
    record: JobRecord | None,
    totals: dict[str, StageTotals],
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
    )


def _totals(workspace: Workspace, job: Job, record: JobRecord) -> dict[str, StageTotals]:
    """Return what the ledger holds for each stage; nothing while this process runs the job."""
    try:
        return read_totals(ledger_directory(workspace, job), record.generation)
    except StorageError:
        # LMDB refuses a process that has the ledger open already.
        return {}
