"""What `headrace exchange` shows of queries, stages, map tasks and cleanup.

In JSON the numbers of queries, stages and map tasks are text: many readers of JSON round numbers
of 64 bits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from headrace.cli.render.units import counted, format_rough_time, format_size
from headrace.errors import DamagedOutputError, VersionError
from headrace.exchange import QueryInventory, StageDescription, StageInventory
from headrace.exchange.cleanup.attempt_cleanup import CleanupReport
from headrace.exchange.cleanup.cleanup_plan import ExpiredAttempt
from headrace.exchange.cleanup.pinned_stage import Pin, list_pins, now_ms
from headrace.exchange.inventory import query_names, stored_plan
from headrace.exchange.stage_description import TaskDescription
from headrace.storage import Objects

QUERIES = (
    *("query", "number", "stages", "map tasks"),
    *("published", "attempts", "bytes", "age"),
)
STAGES = ("query", "stage", "map tasks", "published", "attempts", "bytes", "age", "what")
NUMBERS = ("number", "stages", "map tasks", "published", "attempts", "bytes", "age")
SKEWS = (
    *("stage", "map tasks", "published", "attempts", "rows", "bytes"),
    *("partitions", "largest", "skew"),
)
TASKS = (
    *("map task", "generation", "attempt", "partitions", "rows", "batches", "bytes", "age"),
    "problem",
)
PARTS = ("partition", "rows", "batches", "bytes", "file", "checksum")
PROBLEMS = ("query", "file", "what")
EXPIRED = ("what", "query", "stage", "map task", "attempt", "why", "age", "bytes")


class StageNames:
    """What people know the stages of a query by: their places in the plan that ran last."""

    def __init__(self, objects: Objects, query_id: int) -> None:
        self.planned = stored_plan(objects, query_id)

    def name(self, stage_id: int) -> str:
        """Return the places of a stage in the plan, or its number if it has none."""
        places = [str(n) for n, each in enumerate(self.planned) if each.stage_id == stage_id]
        return ", ".join(places) or str(stage_id)

    def what(self, stage_id: int) -> str:
        """Return what a stage does; of a stage that the last plan lacks, that it does."""
        for each in self.planned:
            if each.stage_id == stage_id:
                return each.what
        return "not in the plan that ran last" if self.planned else ""


# -- what there is -------------------------------------------------------------------------------


def query_row(query: QueryInventory, now_s: float) -> tuple[object, ...]:
    return (query.name, query.query_id, len(query.stages), *_figures(query, now_s))


def stage_row(
    query: QueryInventory, stage: StageInventory, names: StageNames, now_s: float
) -> tuple[object, ...]:
    number = stage.stage_id
    return (query.label, names.name(number), *_figures(stage, now_s), names.what(number))


def _figures(of: QueryInventory | StageInventory, now_s: float) -> tuple[object, ...]:
    written_s = of.written_at_ms / 1_000
    age = format_rough_time(max(0.0, now_s - written_s)) if written_s else ""
    return (of.map_tasks, of.published, of.attempts, format_size(of.bytes), age)


def described_query(query: QueryInventory) -> dict[str, Any]:
    return {
        "query": query.name or None,
        "number": str(query.query_id),
        "map_tasks": query.map_tasks,
        "published": query.published,
        "attempts": query.attempts,
        "bytes": query.bytes,
        "written_at_ms": query.written_at_ms or None,
        "stages": [
            {
                "stage": str(each.stage_id),
                "map_tasks": each.map_tasks,
                "published": each.published,
                "attempts": each.attempts,
                "bytes": each.bytes,
                "written_at_ms": each.written_at_ms or None,
            }
            for each in query.stages
        ],
    }


# -- one query -----------------------------------------------------------------------------------


def query_fields(query: QueryInventory, pins: Sequence[Pin]) -> dict[str, object]:
    holders = dict.fromkeys(map(str, pins))
    fields: dict[str, object] = {"query": query.label, "number": query.query_id}
    return fields | {"held by": ", ".join(holders) or "nobody"}


def stage_lines(stages: Sequence[StageDescription], names: StageNames) -> dict[str, object]:
    """Return what each stage does, and what of it cannot be read."""
    fields: dict[str, object] = {}
    for each in stages:
        name, what = names.name(each.stage_id), names.what(each.stage_id)
        if each.unreadable:
            problem = f"{counted(each.unreadable, 'map task')} cannot be read, see --stage {name}"
            what = f"{what}; {problem}" if what else problem
        if what:
            fields[f"stage {name}"] = what
    return fields


def skew_row(stage: StageDescription, names: StageNames) -> tuple[object, ...]:
    figures = ("", "")
    if skew := stage.skew:
        factor = "" if skew.factor is None else f"{skew.factor:.1f}x"
        figures = (format_size(skew.largest_bytes), factor)
    return (
        names.name(stage.stage_id),
        len(stage.tasks),
        stage.published,
        stage.attempts,
        f"{stage.rows:,}",
        format_size(stage.bytes),
        len(stage.partition_bytes) or "",
        *figures,
    )


def stage_fields(stage: StageDescription) -> dict[str, object]:
    fields: dict[str, object] = {}
    if skew := stage.skew:
        median = format_size(skew.median_bytes)
        fields["largest"] = f"partition {skew.largest}, {format_size(skew.largest_bytes)}"
        fields["median"] = f"{median} of {len(stage.partition_bytes)} partitions"
    return fields


def task_rows(stage: StageDescription) -> Iterator[tuple[object, ...]]:
    now_s = time.time()
    for each in stage.tasks:
        output, index = each.output, each.index
        yield (
            each.task.map_task,
            output.generation if output else "",
            output.attempt if output else "",
            len(index.partitions) if index else "",
            f"{output.rows:,}" if output else "",
            sum(part.batches for part in index.partitions) if index else "",
            format_size(output.bytes if output else each.bytes),
            format_rough_time(max(0.0, now_s - output.created_at_ms / 1_000)) if output else "",
            _problem(each),
        )


def task_fields(task: TaskDescription, names: StageNames) -> dict[str, object]:
    fields: dict[str, object] = {
        "stage": names.name(task.task.stage_id),
        "map task": task.task.map_task,
        "attempts": ", ".join(map(str, task.attempts)) or "none has files",
    }
    if task.output:
        fields["published"] = f"attempt {task.output.attempt}, generation {task.output.generation}"
        fields["created"] = _time(task.output.created_at_ms)
        fields["directory"] = task.task.attempt_directory(task.output.attempt)
    if problem := _problem(task):
        fields["problem"] = problem
    return fields


def _problem(task: TaskDescription) -> str:
    if task.error:
        return task.error.what
    return "" if task.output else "nothing is published"


def part_rows(task: TaskDescription) -> Iterator[tuple[object, ...]]:
    for each in task.index.partitions if task.index else ():
        size = format_size(each.bytes)
        yield each.reduce_partition, f"{each.rows:,}", each.batches, size, each.file, each.checksum


def described_stages(
    query: QueryInventory,
    stages: Sequence[StageDescription],
    names: StageNames,
    pins: Sequence[Pin],
    tasks: Sequence[TaskDescription] | None,
) -> dict[str, Any]:
    """Return the JSON of some stages of a query, with all their map tasks or these only."""
    return {
        "query": query.name or None,
        "number": str(query.query_id),
        "pins": [
            {
                "stage": None if each.stage_id is None else str(each.stage_id),
                "holder": each.holder,
                "kept_until_ms": each.kept_until_ms,
            }
            for each in pins
        ],
        "stages": [
            {
                "stage": str(each.stage_id),
                "places": [
                    place
                    for place, planned in enumerate(names.planned)
                    if planned.stage_id == each.stage_id
                ],
                "what": names.what(each.stage_id),
                "rows": each.rows,
                "bytes": each.bytes,
                "partition_bytes": each.partition_bytes,
                "skew": each.skew and {**each.skew._asdict(), "factor": each.skew.factor},
                "tasks": [
                    _described_task(task) for task in each.tasks if tasks is None or task in tasks
                ],
            }
            for each in stages
        ],
    }


def _described_task(task: TaskDescription) -> dict[str, Any]:
    output = task.output
    return {
        "map_task": str(task.task.map_task),
        "attempts": task.attempts,
        "bytes": task.bytes,
        "published": output
        and {
            "generation": output.generation,
            "attempt": output.attempt,
            "rows": output.rows,
            "bytes": output.bytes,
            "created_at_ms": output.created_at_ms,
        },
        "partitions": task.index and [msgspec.to_builtins(each) for each in task.index.partitions],
        "problem": _problem(task) or None,
    }


def _time(at_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ms // 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"  # of another writer, which may count otherwise


# -- damage and cleanup --------------------------------------------------------------------------


class Problem(NamedTuple):
    """A file that cannot be used."""

    query: QueryInventory
    error: DamagedOutputError | VersionError

    def row(self) -> tuple[object, ...]:
        file, what = self._file_and_what()
        return self.query.label, file, what

    def described(self) -> dict[str, Any]:
        file, what = self._file_and_what()
        shown: dict[str, Any] = {"query": self.query.name or None}
        shown["number"] = str(self.query.query_id)
        if isinstance(self.error, DamagedOutputError):
            shown |= {
                "stage": str(self.error.stage_id),
                "map_task": str(self.error.map_task),
                "attempt": self.error.attempt or None,
            }
        return shown | {"file": file, "what": what}

    def _file_and_what(self) -> tuple[str, str]:
        """Divide a message such as `the map output FILE is damaged: why` at the file."""
        what = self.error.what
        if isinstance(self.error, DamagedOutputError) and self.error.file:
            return self.error.file, what.partition(self.error.file)[2].strip()
        file, _, rest = what.partition(" ")
        return file, rest


class CleanupListing:
    """What a pass of cleanup did or would do, with names of queries, and who holds what stays."""

    def __init__(self, objects: Objects, report: CleanupReport) -> None:
        self._report = report
        self._names = query_names(objects)
        queries = {each.task.query_id for each in (*report.removed, *report.held)}
        self._stages = {each: StageNames(objects, each) for each in queries}
        self._pins = {each: list_pins(objects, each, now_ms()) for each in queries}

    def rows(self, *, dry_run: bool) -> Iterator[tuple[object, ...]]:
        now_s = time.time()
        done = "to remove" if dry_run else "removed"
        for each in self._report.removed:
            yield self._row(done, each, "replaced" if each.is_replaced else "unpublished", now_s)
        for each in self._report.held:
            holders = ", ".join(dict.fromkeys(self._holders(each))) or "a reader"
            yield self._row("held", each, f"by {holders}", now_s)

    def _row(self, what: str, each: ExpiredAttempt, why: str, now_s: float) -> tuple[object, ...]:
        task = each.task
        return (
            what,
            self._names.get(task.query_id) or task.query_id,
            self._stages[task.query_id].name(task.stage_id),
            task.map_task,
            each.attempt,
            why,
            format_rough_time(max(0.0, now_s - each.created_at_ms / 1_000)),
            format_size(each.bytes),
        )

    def _holders(self, attempt: ExpiredAttempt) -> Iterator[str]:
        for pin in self._pins[attempt.task.query_id]:
            if pin.stage_id in (attempt.task.stage_id, None):
                yield str(pin)

    def described(self) -> dict[str, Any]:
        return {
            "removed": [self._described(each) for each in self._report.removed],
            "held": [
                {**self._described(each), "held_by": list(dict.fromkeys(self._holders(each)))}
                for each in self._report.held
            ],
            "bytes": sum(each.bytes for each in self._report.removed),
        }

    def _described(self, each: ExpiredAttempt) -> dict[str, Any]:
        return {
            "query": self._names.get(each.task.query_id),
            "number": str(each.task.query_id),
            "stage": str(each.task.stage_id),
            "map_task": str(each.task.map_task),
            "attempt": each.attempt,
            "is_replaced": each.is_replaced,
            "created_at_ms": each.created_at_ms,
            "bytes": each.bytes,
        }
