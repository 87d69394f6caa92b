"""Where a workspace keeps what belongs to a task. Pure.

Keys of objects:

    tasks/<task>/…              its checkpoints: `checkpoint_objects` has the rest of the key
    about/task-<task>           its record: what the task says of itself
    turns/task-<task>/<number>  its fence: the run with the highest number may write

Paths of files, in the workspace's directory on the machine that runs the task:

    tasks/<task>/<generation>   Spark's logs of a generation
    runs/<task>/<number>.…      how the run of that number stands
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from headrace.errors import UsageError

CHECKPOINTS = "tasks"
RECORDS = "about"
FENCES = "turns"
_RUNS = "runs"
_PREFIX = "task-"
"""Keeps the last component of a key from beginning with a dot, which no component may."""

TASK_NAME_MAX = 120
"""In characters. A name of this length fits into one component of a key, also when quoted."""

_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


def has_form_of_task(name: str) -> bool:
    """Return True if a task may have the name, as far as its length allows."""
    return bool(_NAME.fullmatch(name))


def check_task_name(name: str) -> str:
    """Return the name; raise UsageError if no task may have it."""
    if not has_form_of_task(name) or len(name) > TASK_NAME_MAX:
        raise UsageError(
            f"{name[: TASK_NAME_MAX + 1]!r} cannot name a task",
            do="use parts of letters, digits, '.', '_' and '-', joined by '/', "
            f"of {TASK_NAME_MAX} characters at most",
        )
    return name


def checkpoints_prefix(task: str) -> str:
    return f"{CHECKPOINTS}/{_component(task)}"


def parse_component(component: str) -> str:
    """Return the task of the second component of a checkpoint's key."""
    return unquote(component)


def record_key(task: str) -> str:
    return f"{RECORDS}/{_PREFIX}{quote(task, safe='')}"


def parse_record_key(key: str) -> str:
    """Return the task whose record has the key."""
    return unquote(key.partition(f"/{_PREFIX}")[2])


def fence_prefix(task: str) -> str:
    return f"{FENCES}/{_PREFIX}{quote(task, safe='')}"


def fence_key(task: str, number: int) -> str:
    return f"{fence_prefix(task)}/{number:020d}"


def parse_fence_key(key: str) -> int:
    """Return the number of the run that put the object."""
    return int(key.rpartition("/")[2])


def logs_path(task: str) -> str:
    return f"{CHECKPOINTS}/{_component(task)}"


def runs_path(task: str) -> str:
    return f"{_RUNS}/{_component(task)}"


def _component(task: str) -> str:
    """Return the name as one component of a key or a path; none may begin with a dot."""
    name = quote(task, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name
