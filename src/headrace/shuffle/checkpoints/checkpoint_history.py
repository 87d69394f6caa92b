"""The checkpoints of a task, durable and numbered.

Checkpoint 0 is where the task starts. A History stores every other one as a delta, put if absent:
the first process to append a number wins, and the others get what it wrote. A reset gives the task
another generation, whose numbers begin at 0 again.

This order makes a release safe: **put a full checkpoint → delete older full ones → delete the
deltas up to it.** The greatest full checkpoint is the floor. Nobody uses what lies below the floor,
whether or not it is deleted yet, so a process may die anywhere in between.

A process that was replaced may run on for a while, and put another delta where one was released. So
a History trusts what it read or put only after a later listing has shown that the task still has
this generation, and that the floor is below: as long as a floor exists, nobody has deleted a delta
above it.

A listing does not show one moment, and has no order: it may show the floor from before a release
and the deltas from after it. So a History trusts a listing only if its floor still exists after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headrace.errors import DataError, NotFoundError, UsageError
from headrace.settings import KIB
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.checkpoints import checkpoint_objects
from headrace.shuffle.checkpoints.checkpoint_objects import (
    Kind,
    Label,
    parse_key,
)
from headrace.shuffle.checkpoints.generation import (
    current_generation,
    list_labels,
    newest_generation,
    put_first_generation,
    put_next_generation,
    was_reset,
)
from headrace.shuffle.checkpoints.task_keys import CHECKPOINTS, check_task_name
from headrace.storage import Objects

_OUTWEIGHS_BYTES = 64 * KIB
"""Deltas that have fewer bytes together do not cause a full checkpoint, however small the last."""

_NOTHING = (-1, Checkpoint())
"""A base that stands before every checkpoint."""


class TaskInfo(NamedTuple):
    """What is stored of a task."""

    task: str
    generation: str
    first: int
    """The number of the oldest checkpoint that is kept."""
    last: int
    """The number of the newest checkpoint."""
    objects: int
    bytes: int


class StoredCheckpoint(NamedTuple):
    """An object that holds a checkpoint of a task."""

    number: int
    kind: Kind
    bytes: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a listing showed of one generation."""

    bytes: Mapping[Label, int]
    floor: int
    last: int

    def is_outweighed(self, number: int) -> bool:
        """Return True if the deltas up to `number` have more bytes than the floor."""
        full = sum(size for each, size in self._of("full") if each == self.floor)
        deltas = sum(size for each, size in self._of("delta") if self.floor < each <= number)
        return deltas > max(full, _OUTWEIGHS_BYTES)

    def _of(self, kind: Kind) -> Iterable[tuple[int, int]]:
        return ((each.number, size) for each, size in self.bytes.items() if each.kind == kind)


class History:
    """The checkpoints of one generation of a task. Only one thread may call it.

    What a call returns is durable, and stays true. A call raises UsageError if another process has
    reset the task or released the checkpoint. A History keeps in memory one checkpoint, and the
    deltas that it read or appended since the last release.
    """

    def __init__(
        self,
        objects: Objects,
        task: str,
        *,
        generation: str | None = None,
        start: Checkpoint | None = None,
        full_every: int = 64,
    ) -> None:
        """Create the task at `start` if it does not exist and no `generation` is given.

        A release writes a full checkpoint after at most `full_every` deltas.
        """
        if full_every < 1:
            raise UsageError(f"full_every must be at least 1, got {full_every}", do="use 1 or more")
        self.task = check_task_name(task)
        self._objects = objects
        self._full_every = full_every
        self._base = _NOTHING
        self._deltas: dict[int, Checkpoint] = {}
        earlier = list_labels(objects, task)
        if generation is None and newest_generation(earlier) is None:
            put_first_generation(objects, task, start or Checkpoint())
        current = current_generation(objects, task)
        if generation not in (None, current.id):
            raise was_reset(task, str(generation))
        self.generation = current.id
        self._generation_number = current.number
        if not any(each.generation == current.id for each in list_labels(objects, task)):
            first = self._label("full", 0)
            objects.put_if_absent(first.key, checkpoint_objects.encode(first, current.start))
        self._kept = self._refresh()
        # This listing came before the generation was read, so it shows no later generation.
        self._delete_outdated(earlier)

    def offset(self, number: int) -> dict[str, Any]:
        """Return what names a checkpoint of this task elsewhere. It stays small."""
        return {"task": self.task, "generation": self.generation, "checkpoint": number}

    def last(self) -> int:
        """Return the number of the newest checkpoint."""
        return self._refresh().last

    def age_s(self) -> float:
        """Return how long ago the newest checkpoint was stored."""
        kept = self._refresh()
        newest = max(each for each in kept.bytes if each.number == kept.last)
        # If the object is gone, a release has just put another in its stead.
        info = self._objects.head(newest.key)
        return (datetime.now(UTC) - info.modified).total_seconds() if info else 0.0

    def load(self, number: int) -> Checkpoint:
        """Return the whole checkpoint."""
        if not self._knows(number):
            self._read(lambda floor: self._needed(floor, number))
        base, checkpoint = self._base
        for each in range(base + 1, number + 1):
            checkpoint = self._merged(checkpoint, each)
        self._base = number, checkpoint
        return checkpoint

    def delta(self, number: int) -> Checkpoint:
        """Return what the checkpoint adds to the one before it."""
        if number == 0:
            raise UsageError(
                f"checkpoint 0 of task {self.task!r} is no delta: the task starts there",
                do="load it",
            )
        if number not in self._deltas:
            self._read(lambda floor: [self._label("delta", self._check_kept(number, floor + 1))])
        return self._deltas[number]

    def append(self, number: int, delta: Checkpoint) -> Checkpoint | None:
        """Store a delta under the number after the last, and return None.

        If another process was first, return the delta that it stored under the number. After a
        `StorageError` the delta may be stored or not.
        """
        if number > self._kept.last + 1:
            self._refresh()
        if not 1 <= number <= self._kept.last + 1:
            raise UsageError(
                f"checkpoint {number} of task {self.task!r} cannot follow {self._kept.last}, "
                "its last",
                do=f"append {self._kept.last + 1}",
            )
        label = self._label("delta", number)
        won = number > self._kept.floor and self._put(label, delta)
        if number <= self._kept.floor:
            if won:
                self._objects.delete(label.key)
            raise UsageError(
                f"another process has appended and released checkpoint {number} of task "
                f"{self.task!r}, and has reached {self._kept.last}",
                do="end this process: the other one has replaced it",
            )
        if not won:
            return self.delta(number)
        self._deltas[number] = delta
        return None

    def release(self, number: int) -> None:
        """Say that nobody will load the checkpoints before this one again.

        If a full checkpoint is due, put this one as such and delete those before it.
        """
        if number > self._kept.last or not self._knows(number):
            self._refresh()
        self._check_kept(number, 0)
        if number <= self._kept.floor:
            return
        checkpoint = self.load(number)
        is_due = number - self._kept.floor >= self._full_every
        if is_due or self._kept.is_outweighed(number):
            self._put(self._label("full", number), checkpoint)
            self._delete_outdated(self._kept.bytes)
        self._deltas = {n: delta for n, delta in self._deltas.items() if n > number}

    # -- what is stored ----------------------------------------------------------------------

    def _refresh(self) -> _Kept:
        # A listing does not show one moment: it may have the first delta and lack its floor.
        kept = self._list() or self._list()
        if kept is None:
            raise checkpoint_objects.missing(self._label("full", 0))
        self._kept = kept
        return kept

    def _list(self) -> _Kept | None:
        listed, kept = _list_kept(self._objects, self.task, self.generation)
        if newest_generation(listed) != self._generation_number:
            raise was_reset(self.task, self.generation)
        return kept

    def _knows(self, number: int) -> bool:
        """Return True if the checkpoint can be loaded from memory."""
        base, _ = self._base
        return 0 <= base <= number and all(n in self._deltas for n in range(base + 1, number + 1))

    def _needed(self, floor: int, number: int) -> list[Label]:
        """Return the objects that must be read to load a checkpoint."""
        self._check_kept(number, floor)
        base, _ = self._base
        full = [] if floor <= base <= number else [self._label("full", floor)]
        numbers = range((floor if full else base) + 1, number + 1)
        return full + [self._label("delta", n) for n in numbers if n not in self._deltas]

    def _read(self, needed: Callable[[int], list[Label]]) -> None:
        """Read into memory what is `needed` above a floor.

        Begins again if the floor rises meanwhile. `needed` raises if it rises too far.
        """
        while True:
            floor = self._refresh().floor
            try:
                found = {label: self._get(label) for label in needed(floor)}
            except DataError:
                if self._refresh().floor == floor:
                    raise
                continue
            if self._refresh().floor == floor:
                break
        for label, checkpoint in found.items():
            if label.kind == "full":
                self._base = label.number, checkpoint
            else:
                self._deltas[label.number] = checkpoint

    def _get(self, label: Label) -> Checkpoint:
        try:
            data = self._objects.get(label.key)
        except NotFoundError as error:
            raise checkpoint_objects.missing(label) from error
        return checkpoint_objects.decode(label, data)[1]

    def _merged(self, checkpoint: Checkpoint, number: int) -> Checkpoint:
        try:
            return checkpoint.merge(self._deltas[number])
        except UsageError as error:
            raise DataError(
                f"{self._label('delta', number).key} does not fit the checkpoint before it: "
                f"{error.what}",
                do="reset the task",
            ) from error

    def _check_kept(self, number: int, lowest: int) -> int:
        if 0 <= number < lowest:
            raise NotFoundError(
                f"checkpoint {number} of task {self.task!r} was released: "
                f"the task keeps those from {self._kept.floor} on",
                do="ask for a later checkpoint",
            )
        if not 0 <= number <= self._kept.last:
            raise NotFoundError(
                f"task {self.task!r} has no checkpoint {number}: its last is {self._kept.last}",
                do="ask for a checkpoint that was appended",
            )
        return number

    # -- changes ---------------------------------------------------------------------------

    def _put(self, label: Label, checkpoint: Checkpoint) -> bool:
        """Put an object, refresh what is kept, and return True if the object was absent."""
        won = self._objects.put_if_absent(label.key, checkpoint_objects.encode(label, checkpoint))
        try:
            self._refresh()
        except UsageError:
            if won:
                self._objects.delete(label.key)
            raise
        return won

    def _delete_outdated(self, labels: Iterable[Label]) -> None:
        outdated = [each for each in labels if self._is_outdated(each)]
        for each in sorted(outdated, key=lambda label: (label.kind != "full", label.number)):
            self._objects.delete(each.key)

    def _is_outdated(self, label: Label) -> bool:
        if label.kind == "generations":
            return label.number < self._generation_number
        if label.generation != self.generation:
            return True
        return label.number < self._kept.floor + (label.kind == "delta")

    def _label(self, kind: Kind, number: int) -> Label:
        return Label(self.task, self.generation, kind, number)


def reset_task(objects: Objects, task: str, start: Checkpoint | None = None) -> str:
    """Let a task begin again at `start`, without its checkpoints. Returns its new generation."""
    generation = put_next_generation(objects, check_task_name(task), start or Checkpoint())
    return History(objects, task, generation=generation).generation


def delete_checkpoints(objects: Objects, task: str) -> None:
    """Delete all objects of a task, generations last. The caller has reset the task before."""
    labels = list_labels(objects, check_task_name(task))
    for each in sorted(labels, key=lambda label: (label.kind == "generations", label.number)):
        objects.delete(each.key)


def has_checkpoints(objects: Objects, task: str) -> bool:
    """Return True if the task has stored a checkpoint since it was created or reset."""
    with suppress(UsageError):
        return describe_task(objects, task).last > 0
    return False


def list_tasks(objects: Objects) -> list[TaskInfo]:
    """Return all tasks, sorted by name."""
    labels = filter(None, (parse_key(each.key) for each in objects.list(CHECKPOINTS)))
    names = {label.task for label in labels if label.kind == "generations"}
    return [describe_task(objects, name) for name in sorted(names)]


def describe_task(objects: Objects, task: str) -> TaskInfo:
    while True:
        current = current_generation(objects, check_task_name(task))
        listed, kept = _list_kept(objects, task, current.id)
        if newest_generation(listed) == current.number:
            break
    first, last = (kept.floor, kept.last) if kept else (0, 0)
    return TaskInfo(task, current.id, first, last, len(listed), sum(listed.values()))


def list_checkpoints(objects: Objects, task: str) -> list[StoredCheckpoint]:
    """Return the checkpoints that are kept of a task's current generation, sorted by number."""
    current = current_generation(objects, check_task_name(task))
    _, kept = _list_kept(objects, task, current.id)
    found = kept.bytes.items() if kept else ()
    return sorted(StoredCheckpoint(each.number, each.kind, size) for each, size in found)


def _list_kept(
    objects: Objects, task: str, generation: str
) -> tuple[Mapping[Label, int], _Kept | None]:
    """Return all objects of a task, and what is kept of the generation.

    The second is None if the generation has no full checkpoint.
    """
    while True:
        listed = list_labels(objects, task)
        mine = {each: size for each, size in listed.items() if each.generation == generation}
        floor = max((each for each in mine if each.kind == "full"), default=None)
        if floor is None:
            return listed, None
        if objects.head(floor.key) is not None:
            return listed, _Kept(mine, floor.number, max(each.number for each in mine))
