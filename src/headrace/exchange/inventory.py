"""What the exchange holds: the names of queries, and an overview of their stages."""

from __future__ import annotations

from typing import NamedTuple

from headrace.exchange.cleanup.cleanup_plan import group_by_task
from headrace.exchange.format.layout import NAME, ROOT, query_directory
from headrace.storage import Objects


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


def list_stages(objects: Objects) -> list[StageInventory]:
    """Return every stage of every query that has anything stored, by number."""
    totals: dict[tuple[int, int], list[int]] = {}
    for task, found in group_by_task(list(objects.list(ROOT))).items():
        total = totals.setdefault((task.query_id, task.stage_id), [0, 0, 0, 0])
        total[0] += 1
        total[1] += bool(found.generations)
        total[2] += len(found.files)
        total[3] += sum(info.bytes for files in found.files.values() for info in files)
    return [StageInventory(*stage, *total) for stage, total in sorted(totals.items())]


def name_query(objects: Objects, query_id: int, name: str) -> None:
    """Store the name of a query beside its outputs, for people."""
    objects.put_if_absent(f"{query_directory(query_id)}/{NAME}", name.encode())


def query_names(objects: Objects) -> dict[int, str]:
    """Return the name of every query that has one."""
    found: dict[int, str] = {}
    for info in objects.list(ROOT):
        match info.key.split("/"):
            case [_, query, name] if name == NAME and query.isdecimal():
                found[int(query)] = objects.get(info.key).decode(errors="replace")
    return found
