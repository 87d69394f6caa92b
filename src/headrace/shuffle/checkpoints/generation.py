"""Generations of a task: creating the task puts the first, and each reset puts another.

A process puts a generation under the next number, if absent, and only then deletes older ones: the
newest that a listing shows is the current one. The keys of checkpoints contain the generation's id.
It is random, so that nobody mistakes them for those of a task that was removed and created again
under the same name.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import NamedTuple

from headrace.errors import NotFoundError, UsageError
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.checkpoints import checkpoint_objects
from headrace.shuffle.checkpoints.checkpoint_objects import Label, parse_key
from headrace.shuffle.checkpoints.task_keys import checkpoints_prefix
from headrace.storage import Objects


class Generation(NamedTuple):
    number: int
    id: str
    start: Checkpoint


def list_labels(objects: Objects, task: str) -> dict[Label, int]:
    """Return the labels of all objects of a task, with their bytes."""
    found = ((parse_key(each.key), each.bytes) for each in objects.list(checkpoints_prefix(task)))
    return {label: size for label, size in found if label}


def newest_generation(listed: Iterable[Label]) -> int | None:
    return max((each.number for each in listed if each.kind == "generations"), default=None)


def current_generation(objects: Objects, task: str) -> Generation:
    while True:
        number = newest_generation(list_labels(objects, task))
        if number is None:
            raise _no_task(task)
        label = Label(task, "", "generations", number)
        try:
            data = objects.get(label.key)
        except NotFoundError:
            continue  # somebody reset the task after the listing
        return Generation(number, *checkpoint_objects.decode(label, data))


def put_first_generation(objects: Objects, task: str, start: Checkpoint) -> None:
    """Put generation 0, unless another process has just put it."""
    _put(objects, Label(task, _new_id(), "generations", 0), start)


def put_next_generation(objects: Objects, task: str, start: Checkpoint) -> str:
    """Put the next generation and return its id.

    It is not current if another process has reset the task at the same time.
    """
    number = newest_generation(list_labels(objects, task))
    if number is None:
        raise _no_task(task)
    label = Label(task, _new_id(), "generations", number + 1)
    _put(objects, label, start)
    return label.generation


def check_current(objects: Objects, task: str, generation: str) -> None:
    """Raise UsageError if the task has another generation now."""
    if current_generation(objects, task).id != generation:
        raise was_reset(task, generation)


def was_reset(task: str, generation: str) -> UsageError:
    return UsageError(
        f"task {task!r} has no generation {generation}: it was reset, or belongs to "
        "another workspace",
        do="begin anew without the progress of that generation, or open the right workspace",
    )


def _no_task(task: str) -> NotFoundError:
    return NotFoundError(f"there is no task {task!r}", do="check its name, and the workspace")


def _new_id() -> str:
    return secrets.token_hex(8)


def _put(objects: Objects, label: Label, start: Checkpoint) -> None:
    objects.put_if_absent(label.key, checkpoint_objects.encode(label, start))
