"""Generations of a task: the first is made when the task is, another by each reset.

They are numbered and put if absent, and the older are deleted only after: the newest that is
listed is the one that counts. Checkpoints are known by its id, which is random, so that they are
not taken for those of a task of the same name that was removed and made again.
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
    """Everything there is of a task, with its bytes."""
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
            continue  # the task was reset since it was listed
        return Generation(number, *checkpoint_objects.decode(label, data))


def put_first_generation(objects: Objects, task: str, start: Checkpoint) -> None:
    """Unless another process has just done it."""
    _put(objects, Label(task, _new_id(), "generations", 0), start)


def put_next_generation(objects: Objects, task: str, start: Checkpoint) -> str:
    """The id that the current one has, unless another process has reset the task too."""
    number = newest_generation(list_labels(objects, task))
    if number is None:
        raise _no_task(task)
    label = Label(task, _new_id(), "generations", number + 1)
    _put(objects, label, start)
    return label.generation


def check_current(objects: Objects, task: str, generation: str) -> None:
    if current_generation(objects, task).id != generation:
        raise was_reset(task, generation)


def was_reset(task: str, generation: str) -> UsageError:
    return UsageError(
        f"task {task!r} has no generation {generation}: it was reset, or is another workspace's",
        do="begin anew, with no progress of that generation, or open the right workspace",
    )


def _no_task(task: str) -> NotFoundError:
    return NotFoundError(f"there is no task {task!r}", do="check its name, and the workspace")


def _new_id() -> str:
    return secrets.token_hex(8)


def _put(objects: Objects, label: Label, start: Checkpoint) -> None:
    objects.put_if_absent(label.key, checkpoint_objects.encode(label, start))
