"""What a task says of itself, stored in the workspace each time that it is run."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from headrace.errors import NotFoundError, UsageError
from headrace.storage import Objects

_ROOT = "about"


class About(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    file: str
    """Where its function is defined."""
    sources: tuple[str, ...]
    sink: str
    is_exactly_once: bool
    shards: int


def put_about(objects: Objects, about: About) -> None:
    objects.put(_key(about.task), msgspec.json.encode(about))


def get_about(objects: Objects, task: str) -> About | None:
    """Nothing of a task that is no more than a reader's name for its progress."""
    try:
        return msgspec.json.decode(objects.get(_key(task)), type=About)
    except NotFoundError:
        return None


def file_of(objects: Objects, task: str) -> str:
    """Where a task can be loaded from."""
    if about := get_about(objects, task):
        return about.file
    raise UsageError(
        f"no file is known that defines task {task!r}", do="run it with `headrace run FILE.py`"
    )


def _key(task: str) -> str:
    # No component of a key may begin with a dot.
    return f"{_ROOT}/task-{quote(task, safe='')}"
