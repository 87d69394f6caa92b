"""Removes attempts that nobody needs any more.

The order, for a published attempt that a later generation has replaced: mark it -> look for pins ->
withdraw its record -> delete its files -> delete the mark. For an attempt that nobody published:
note its generation -> rule that it is void, so that no writer can publish the attempt any more ->
delete its files -> delete the note. The next pass finishes what a pass that died began.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Self

from headrace.errors import DataError, HeadraceError, NotFoundError, UsageError, VersionError
from headrace.exchange.cleanup.cleanup_plan import (
    Attempt,
    ExpiredAttempt,
    TaskCleanup,
    TaskObjects,
    group_by_task,
    plan_cleanup,
)
from headrace.exchange.cleanup.pinned_stage import is_pinned, list_pins, now_ms
from headrace.exchange.cleanup.removal_marks import RemovalMarks
from headrace.exchange.format.layout import (
    INDEX_BIN,
    INDEX_JSON,
    NAME,
    PINS,
    PLAN,
    PUBLISHED,
    REMOVED,
    ROOT,
    MapTask,
    decode_index,
    index_payload,
    is_attempt_file,
    query_directory,
    stage_directory,
)
from headrace.exchange.format.publication import Claim, PublishedOutput, decode_record
from headrace.exchange.output_registry import OutputRegistry
from headrace.storage import Objects

logger = logging.getLogger(__name__)

TTL_S = 24 * 3600.0


@dataclass
class CleanupReport:
    """What a pass of cleanup did."""

    removed: list[ExpiredAttempt] = field(default_factory=list)
    held: list[ExpiredAttempt] = field(default_factory=list)
    """Attempts that stay because a reader has pinned their stage."""


class AttemptCleanup:
    """Cleans up the map outputs among some objects. Several may run at once."""

    def __init__(self, objects: Objects, *, now_ms: Callable[[], int] = now_ms) -> None:
        self._objects = objects
        self._registry = OutputRegistry(objects)
        self._now_ms = now_ms

    def cleanup_expired_attempts(self, ttl_s: float = TTL_S) -> int:
        """Remove attempts older than `ttl_s` that are replaced or were never published.

        Keeps the latest published attempt of every map task, whatever its age, and everything of a
        stage that a reader has pinned. Returns how many attempts it removed.
        """
        return len(self.carry_out(self.plan(ttl_s)).removed)

    def plan(self, ttl_s: float, query_id: int | None = None) -> list[TaskCleanup]:
        """Return what `cleanup_expired_attempts` would remove now, if nobody pinned it.

        Looks at one query only if it is given.
        """
        if ttl_s < 0:
            raise UsageError(f"ttl_s must not be negative, got {ttl_s}", do="use 0 or more")
        expired_before_ms = self._now_ms() - int(ttl_s * 1_000)
        root = ROOT if query_id is None else query_directory(query_id)
        tasks = group_by_task(list(self._objects.list(root)))
        plans = (
            self._plan_task(task, tasks[task], expired_before_ms)
            for task in sorted(tasks)
            if not tasks[task].is_settled
        )
        return [each for each in plans if each.replaced or each.unpublished]

    def carry_out(self, plans: Iterable[TaskCleanup]) -> CleanupReport:
        """Remove what was planned, but for what is pinned or published meanwhile."""
        report = CleanupReport()
        for (query_id, stage_id), stage in _by_stage(plans):
            replaced = [output for plan in stage for output in plan.replaced]
            is_removed = self._remove_replaced(query_id, stage_id, replaced)
            (report.removed if is_removed else report.held).extend(_replaced(stage))
            for plan in stage:
                if self._remove_unpublished(plan):
                    report.removed += plan.expired(is_replaced=False)
        return report

    def preview(self, plans: Iterable[TaskCleanup]) -> CleanupReport:
        """Return what `carry_out` would do now. Changes nothing."""
        report = CleanupReport()
        for (query_id, stage_id), stage in _by_stage(plans):
            pins = list_pins(self._objects, query_id, self._now_ms())
            is_held = any(pin.stage_id in (stage_id, None) for pin in pins)
            (report.held if is_held else report.removed).extend(_replaced(stage))
            for plan in stage:
                report.removed += plan.expired(is_replaced=False)
        return report

    def remove_query(self, query_id: int) -> int:
        """Remove everything of a query, and return how many objects that were.

        Raises UsageError if a reader has pinned a stage of it. Nothing may compute the query
        meanwhile.
        """
        marks = RemovalMarks(self._objects)
        marks.mark_query(query_id)
        if is_pinned(self._objects, query_id, None, self._now_ms()):
            marks.unmark_query(query_id)
            holders = dict.fromkeys(map(str, list_pins(self._objects, query_id, self._now_ms())))
            raise UsageError(
                f"query {query_id} is held by {', '.join(holders) or 'a reader'}",
                do="remove it when nobody computes or reads it",
            )
        keys = [info.key for info in self._objects.list(query_directory(query_id))]
        attempts = {key.rpartition("/")[0] for key in keys if is_attempt_file(key)}
        others = [key for key in keys if not is_attempt_file(key)]
        # Without its record nobody looks for an attempt. The name, the plan, the marks, and pins
        # that come too late to hold anything, go last.
        last = [key for key in others if key.split("/")[2] in (NAME, PLAN, REMOVED, PINS)]
        for key in sorted(set(others) - set(last), key=lambda key: PUBLISHED not in key):
            self._objects.delete(key)
        for directory in sorted(attempts):
            self._objects.delete_all(directory)
        for key in last:
            self._objects.delete(key)
        return len(keys) - len(last)

    def _plan_task(
        self, task: MapTask, objects: TaskObjects, expired_before_ms: int
    ) -> TaskCleanup:
        try:
            attempts = [
                self._attempt(task, objects, attempt)
                for attempt in sorted(objects.claimed | objects.files.keys())
            ]
            records = self._registry.records(task)
        except VersionError as error:
            logger.info("cleanup keeps %s: %s", task, error)
            return TaskCleanup(task)  # only the newer Headrace that wrote it knows what it is
        return plan_cleanup(task, records, attempts, expired_before_ms)

    def _attempt(self, task: MapTask, objects: TaskObjects, attempt: int) -> Attempt:
        files = objects.files.get(attempt, [])
        try:
            key = task.claim(attempt)
            claim = decode_record(self._objects.get(key), Claim, key)
        except (NotFoundError, DataError):
            claim = None
        created_at_ms = self._created_at_ms(task, attempt) if files else None
        if created_at_ms is None:
            times = [int(info.modified.timestamp() * 1_000) for info in files]
            created_at_ms = max([*times, claim.claimed_at_ms if claim else 0])
        return Attempt(
            attempt,
            created_at_ms,
            claim.generation if claim else None,
            has_files=bool(files),
            bytes=sum(info.bytes for info in files),
        )

    def _created_at_ms(self, task: MapTask, attempt: int) -> int | None:
        """Return when an attempt was created, as its index says; None without a readable index."""
        for name in (INDEX_BIN, INDEX_JSON):
            file = task.file(attempt, name)
            try:
                data = self._objects.get(file)
                payload = index_payload(data, file) if name == INDEX_BIN else data
                return decode_index(payload, task, attempt, file).created_at_ms
            except (NotFoundError, DataError):
                continue
        return None

    def _remove_replaced(
        self, query_id: int, stage_id: int, outputs: list[PublishedOutput]
    ) -> bool:
        """Remove outputs of a stage. Returns False if they stay because a reader holds it."""
        if not outputs:
            return True
        marks = RemovalMarks(self._objects)
        for output in outputs:
            marks.mark(output.task, output.attempt)
        if is_pinned(self._objects, query_id, stage_id, self._now_ms()):
            logger.info("%s is pinned: kept", stage_directory(query_id, stage_id))
            for output in outputs:
                marks.unmark(output.task, output.attempt)
            return False
        for output in outputs:
            self._registry.withdraw(output)
            self._objects.delete_all(output.task.attempt_directory(output.attempt))
            marks.clear(output.task, output.attempt)
        return True

    def _remove_unpublished(self, plan: TaskCleanup) -> bool:
        """Remove attempts. Returns False if they stay because one was published meanwhile."""
        marks, generation = RemovalMarks(self._objects), plan.void_generation
        if generation is not None:
            marks.note_generation(plan.task, generation)
            if not self._registry.void(plan.task, generation):
                marks.clear_generation(plan.task, generation)
                return False  # the next pass sees which attempts lost
        for attempt in plan.unpublished:
            self._objects.delete_all(plan.task.attempt_directory(attempt))
        if generation is not None:
            marks.clear_generation(plan.task, generation)
        return True


def _by_stage(
    plans: Iterable[TaskCleanup],
) -> Iterator[tuple[tuple[int, int], list[TaskCleanup]]]:
    """Yield the query and the stage of plans, and the plans."""
    for stage, group in groupby(plans, lambda plan: (plan.task.query_id, plan.task.stage_id)):
        yield stage, list(group)


def _replaced(plans: Iterable[TaskCleanup]) -> list[ExpiredAttempt]:
    return [each for plan in plans for each in plan.expired(is_replaced=True)]


class BackgroundCleanup:
    """Cleans up every so often, in a thread, until it is stopped."""

    def __init__(
        self, cleanup: AttemptCleanup, *, ttl_s: float = TTL_S, interval_s: float = 600.0
    ) -> None:
        self._cleanup = cleanup
        self._ttl_s = ttl_s
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self.removed = 0
        """How many attempts it has removed so far."""
        self._thread = threading.Thread(target=self._run, name="exchange cleanup", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when the present pass is over. It is no error to stop twice."""
        self._stopped.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _run(self) -> None:
        while True:
            try:
                self.removed += self._cleanup.cleanup_expired_attempts(self._ttl_s)
            except HeadraceError as error:
                # What failed for now, such as a disk, is tried again at the next pass.
                logger.warning("cleanup of map outputs: %s", error)
            if self._stopped.wait(self._interval_s):
                return
