"""Decides which attempts of a map task cleanup removes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import DamagedOutputError
from headrace.exchange.format.layout import (
    CLAIMS,
    PUBLISHED,
    REMOVED,
    ROOT,
    MapTask,
    is_attempt_file,
    is_number,
    numbers_of,
)
from headrace.exchange.format.publication import PublishedOutput
from headrace.storage import ObjectInfo


@dataclass(slots=True)
class TaskObjects:
    """What a listing shows of one map task."""

    files: dict[int, list[ObjectInfo]] = field(default_factory=dict)
    """The files of each attempt that has any."""
    claimed: set[int] = field(default_factory=set)
    generations: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    """Generations that some cleanup began to rule void."""

    @property
    def is_settled(self) -> bool:
        """True if it is certain that it has nothing but one attempt, which is published.

        A listing does not tell whether a record is void. But cleanup notes what it gives up first,
        and the next writer makes another claim.
        """
        if not self.files or not self.generations:
            return bool(self.generations)
        return len(self.files) == 1 and self.claimed <= self.files.keys() and not self.given_up


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a map task that is claimed or has files."""

    attempt: int
    created_at_ms: int
    generation: int | None
    """The generation that its writer may publish it as; None if its claim cannot be read."""
    has_files: bool
    bytes: int = 0
    """The size of its files."""


class ExpiredAttempt(NamedTuple):
    """An attempt that nobody needs."""

    task: MapTask
    attempt: int
    is_replaced: bool
    """True if it was published, and a later generation has replaced it."""
    created_at_ms: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TaskCleanup:
    """What cleanup does with one map task."""

    task: MapTask
    replaced: tuple[PublishedOutput, ...] = ()
    """Remove these, unless a reader holds their stage."""
    void_generation: int | None = None
    """Rule first that this generation is void; `unpublished` stays if somebody publishes it."""
    unpublished: tuple[int, ...] = ()
    """Remove these attempts, which nobody can publish any more."""
    attempts: Mapping[int, Attempt] = field(default_factory=dict)
    """All attempts of the map task, by number."""

    def expired(self, *, is_replaced: bool) -> list[ExpiredAttempt]:
        """Return the attempts to remove that were replaced, or those that nobody published."""
        numbers = [each.attempt for each in self.replaced] if is_replaced else self.unpublished
        found = (self.attempts[number] for number in numbers)
        return [
            ExpiredAttempt(self.task, each.attempt, is_replaced, each.created_at_ms, each.bytes)
            for each in found
        ]


def group_by_task(infos: list[ObjectInfo]) -> dict[MapTask, TaskObjects]:
    """Return what a listing of all outputs shows of each map task."""
    found: dict[MapTask, TaskObjects] = {}
    for info in infos:
        match info.key.split("/"):
            case [root, query, stage, kind, name] if (
                root == ROOT and is_number(query) and is_number(stage)
            ):
                if numbers := numbers_of(name):
                    map_task, number = numbers
                    task = MapTask(int(query), int(stage), map_task)
                    objects = found.setdefault(task, TaskObjects())
                    by_kind = {
                        CLAIMS: objects.claimed,
                        PUBLISHED: objects.generations,
                        REMOVED: objects.given_up,
                    }
                    by_kind.get(kind, set()).add(number)
            case [_, *numbers, _] if is_attempt_file(info.key):
                query_id, stage_id, map_task, attempt = map(int, numbers)
                task = MapTask(query_id, stage_id, map_task)
                objects = found.setdefault(task, TaskObjects())
                objects.files.setdefault(attempt, []).append(info)
    return found


def plan_cleanup(
    task: MapTask,
    records: list[PublishedOutput | DamagedOutputError],
    attempts: list[Attempt],
    expired_before_ms: int,
) -> TaskCleanup:
    """Decide what to remove of one map task. Never the latest published attempt.

    Attempts of the generation that is not decided yet go only if all of them have expired, because
    no writer of that generation can publish afterwards.
    """
    outputs = [each for each in records if isinstance(each, PublishedOutput)]
    if len(outputs) < len(records):
        return TaskCleanup(task)  # a damaged record may be that of any attempt
    published = [each for each in outputs if not each.is_void]
    latest = published[-1] if published else None
    expired = {each.attempt for each in attempts if each.created_at_ms < expired_before_ms}
    replaced = tuple(each for each in published if each is not latest and each.attempt in expired)
    known = {each.attempt for each in published}
    others = [each for each in attempts if each.attempt not in known]
    decided = len(records)
    undecided = [each for each in others if each.generation is None or each.generation > decided]
    gone = [each for each in others if each not in undecided]
    void_generation = None
    if any(each.has_files for each in undecided) and all(
        each.attempt in expired for each in undecided
    ):
        void_generation = decided + 1
        gone += undecided
    removable = (each.attempt for each in gone if each.has_files and each.attempt in expired)
    by_number = {each.attempt: each for each in attempts}
    return TaskCleanup(task, replaced, void_generation, tuple(sorted(removable)), by_number)
