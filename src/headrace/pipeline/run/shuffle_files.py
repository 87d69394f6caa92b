"""The shuffle files of a job: the output of tasks, until the result of their stage is sealed.

They lie where those of every query lie (`exchange.format.layout`). The name of the query tells
which job, generation, stage and revision they belong to, so no other revision reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.exchange import AttemptCleanup
from headrace.exchange.cleanup.pinned_stage import release_pins
from headrace.exchange.format.layout import PUBLISHED, query_directory
from headrace.exchange.inventory import query_names
from headrace.pipeline.run.record import JobRecord
from headrace.plan.stage_tasks import number_of
from headrace.storage import Objects


class ShuffleFiles(NamedTuple):
    """What the exchange holds for one stage of a job."""

    name: str
    query_id: int
    objects: int
    bytes: int


def shuffle_name(record: JobRecord, stage: str) -> str:
    """Return the name of the query that computes a stage."""
    revision = record.stages[stage].revision
    return f"pipelines/{record.job}/{record.generation}/{stage}.r{revision}"


def list_shuffle_files(objects: Objects, job: str) -> list[ShuffleFiles]:
    """Return the shuffle files of all stages of a job, in all generations and revisions."""
    found = []
    for query_id, name in query_names(objects).items():
        if name.startswith(f"pipelines/{job}/"):
            infos = objects.list(query_directory(query_id))
            size = sum(each.bytes for each in infos)
            found.append(ShuffleFiles(name, query_id, len(infos), size))
    return sorted(found)


def count_published(objects: Objects, record: JobRecord, stages: Sequence[str]) -> dict[str, int]:
    """Return how many tasks of each stage have published their output."""
    found = {}
    for stage in stages:
        query_id = number_of("query", shuffle_name(record, stage))
        keys = (each.key for each in objects.list(query_directory(query_id)))
        outputs = {key.rpartition("-")[0] for key in keys if key.split("/")[-2] == PUBLISHED}
        found[stage] = len(outputs)
    return found


def remove_shuffle_files(objects: Objects, query_id: int) -> None:
    """Remove the shuffle files of a stage. Whoever calls it holds the lock of the job.

    So nobody computes the stage, and pins are those of runs that were killed.
    """
    release_pins(objects, query_id)
    AttemptCleanup(objects).remove_query(query_id)
