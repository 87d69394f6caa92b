"""What the exchange holds: the names and plans of queries, and an overview of their stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from headrace.errors import DataError, NotFoundError, VersionError
from headrace.exchange.cleanup.cleanup_plan import group_by_task
from headrace.exchange.format.layout import NAME, PLAN, ROOT, is_number, query_directory
from headrace.exchange.format.publication import RECORD_VERSION, decode_record, encode_record
from headrace.storage import ObjectInfo, Objects


class StageInventory(NamedTuple):
    """What is stored of one stage."""

    query_id: int
    stage_id: int
    map_tasks: int
    """How many map tasks have anything stored."""
    published: int
    """How many map tasks have a publication record."""
    attempts: int
    """How many attempts have files, published or not."""
    bytes: int
    """The size of all files of all attempts."""
    written_at_ms: int
    """When the newest of these files was written; 0 if there is none."""


class QueryInventory(NamedTuple):
    """What is stored of one query."""

    query_id: int
    name: str
    """Empty if whoever computed it gave it none."""
    stages: tuple[StageInventory, ...]

    @property
    def label(self) -> str:
        """What people call it: its name, or its number."""
        return self.name or str(self.query_id)

    @property
    def map_tasks(self) -> int:
        return sum(each.map_tasks for each in self.stages)

    @property
    def published(self) -> int:
        return sum(each.published for each in self.stages)

    @property
    def attempts(self) -> int:
        return sum(each.attempts for each in self.stages)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.stages)

    @property
    def written_at_ms(self) -> int:
        return max((each.written_at_ms for each in self.stages), default=0)


class PlannedStage(msgspec.Struct, frozen=True):
    """A stage of the plan of a query, as people know it."""

    stage_id: int
    what: str
    """What it does, on one line."""


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored: the stages of the plan that ran last, in their order."""

    version: int = RECORD_VERSION
    stages: tuple[PlannedStage, ...]


def list_stages(objects: Objects) -> list[StageInventory]:
    """Return every stage of every query that has anything stored, by number."""
    return _stages(objects.list(ROOT))


def list_queries(objects: Objects) -> list[QueryInventory]:
    """Return every query that has a name or anything else stored, by name and number."""
    infos = objects.list(ROOT)
    names = _names(objects, infos)
    stages: dict[int, list[StageInventory]] = {query_id: [] for query_id in names}
    for each in _stages(infos):
        stages.setdefault(each.query_id, []).append(each)
    found = (
        QueryInventory(query_id, names.get(query_id, ""), tuple(stages[query_id]))
        for query_id in stages
    )
    return sorted(found, key=lambda each: (each.name, each.query_id))


def _stages(infos: Sequence[ObjectInfo]) -> list[StageInventory]:
    totals: dict[tuple[int, int], list[int]] = {}
    for task, found in group_by_task(list(infos)).items():
        total = totals.setdefault((task.query_id, task.stage_id), [0, 0, 0, 0, 0])
        files = [info for attempt in found.files.values() for info in attempt]
        total[0] += 1
        total[1] += bool(found.generations)
        total[2] += len(found.files)
        total[3] += sum(info.bytes for info in files)
        times = (int(info.modified.timestamp() * 1_000) for info in files)
        total[4] = max([total[4], *times])
    return [StageInventory(*stage, *total) for stage, total in sorted(totals.items())]


def name_query(objects: Objects, query_id: int, name: str) -> None:
    """Store the name of a query beside its outputs, for people."""
    objects.put_if_absent(f"{query_directory(query_id)}/{NAME}", name.encode())


def query_names(objects: Objects) -> dict[int, str]:
    """Return the name of every query that has one."""
    return _names(objects, objects.list(ROOT))


def _names(objects: Objects, infos: Iterable[ObjectInfo]) -> dict[int, str]:
    found: dict[int, str] = {}
    for info in infos:
        match info.key.split("/"):
            case [_, query, name] if name == NAME and is_number(query):
                found[int(query)] = objects.get(info.key).decode(errors="replace")
    return found


def store_plan(objects: Objects, query_id: int, stages: Sequence[PlannedStage]) -> None:
    """Store what the stages of a query do, for people. The plan that runs last is kept."""
    key, record = f"{query_directory(query_id)}/{PLAN}", encode_record(_Plan(stages=tuple(stages)))
    try:
        if objects.get(key) == record:
            return
    except NotFoundError:
        pass
    objects.put(key, record)


def stored_plan(objects: Objects, query_id: int) -> tuple[PlannedStage, ...]:
    """Return the stages of the plan that ran last; none if that is not known.

    Nothing but what people see depends on it, so a damaged one counts as unknown.
    """
    key = f"{query_directory(query_id)}/{PLAN}"
    try:
        return decode_record(objects.get(key), _Plan, key).stages
    except (NotFoundError, DataError, VersionError):
        return ()
