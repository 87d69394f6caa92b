"""Which sequence of batches a sink holds: that of a task's generation, or of a pipeline's stage.

Results of a stage that begin again are another generation: a sink never holds batches of both.
"""

from __future__ import annotations

from headrace.pipeline.run.record import JobRecord, Records
from headrace.shuffle.checkpoints.generation import check_current, was_reset
from headrace.spark.sinks.contract import CheckpointId
from headrace.storage import Objects

_PIPELINE = "pipeline/"


def first_batch(record: JobRecord, stage: str) -> CheckpointId:
    """Return the id from which a sink of a pipeline counts its batches."""
    generation = f"{record.generation}.r{record.stages[stage].revision}"
    return CheckpointId(f"{_PIPELINE}{record.job}/{stage}", generation, 0)


def check_generation(objects: Objects, opened: CheckpointId) -> None:
    """Raise UsageError if the task was reset, or the stage has begun again, since it was opened."""
    if not opened.task.startswith(_PIPELINE):
        check_current(objects, opened.task, opened.generation)
        return
    job, _, stage = opened.task.removeprefix(_PIPELINE).partition("/")
    record = Records(objects, job).newest()
    is_known = record is not None and stage in record.stages
    if record is None or not is_known or first_batch(record, stage)[:2] != opened[:2]:
        raise was_reset(opened.task, opened.generation)
