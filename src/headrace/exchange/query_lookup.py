"""Finds what people name: a query by its name or number, its stages and map tasks."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from headrace.errors import NotFoundError
from headrace.exchange.inventory import PlannedStage, QueryInventory, list_queries
from headrace.exchange.stage_description import StageDescription, TaskDescription
from headrace.storage import Objects

_SHOWN = 5
"""An error names at most this many others."""


def find_query(objects: Objects, given: str) -> QueryInventory:
    """Return the query of a name, or else of a number. Raises NotFoundError."""
    queries = list_queries(objects)
    for each in queries:
        if given == each.name:
            return each
    for each in queries:
        if given == str(each.query_id):
            return each
    raise NotFoundError(
        f"no query {given!r} is stored", do=_others(given, [each.label for each in queries])
    )


def find_stage(
    stages: Sequence[StageDescription], planned: Sequence[PlannedStage], given: int
) -> StageDescription:
    """Return the stage of a number, or else of a place in the plan. Raises NotFoundError."""
    numbers = {each.stage_id: each for each in stages}
    if given in numbers:
        return numbers[given]
    if given < len(planned) and planned[given].stage_id in numbers:
        return numbers[planned[given].stage_id]
    places = [str(place) for place, each in enumerate(planned) if each.stage_id in numbers]
    named = {each.stage_id for each in planned}
    known = places + [str(number) for number in numbers if number not in named]
    raise NotFoundError(f"no stage {given} is stored", do=_others(str(given), known))


def find_task(stages: Sequence[StageDescription], given: int) -> list[TaskDescription]:
    """Return the map task of a number, of each stage that has one. Raises NotFoundError."""
    tasks = [task for stage in stages for task in stage.tasks]
    if found := [each for each in tasks if each.task.map_task == given]:
        return found
    known = [str(each.task.map_task) for each in tasks]
    raise NotFoundError(f"no map task {given} is stored", do=_others(str(given), known))


def _others(given: str, known: Sequence[str]) -> str:
    if not known:
        return "nothing is stored here: check the workspace, or run a query first"
    if close := get_close_matches(given, known, n=3):
        return f"use {' or '.join(close)}"
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"use one of {', '.join(known[:_SHOWN])}{more}"
