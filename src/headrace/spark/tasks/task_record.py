"""What a task says of itself, stored in the workspace each time that it is run."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from headrace.errors import NotFoundError, UsageError
from headrace.shuffle import Binding
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
    bindings: tuple[Binding, ...] = ()


def put_about(objects: Objects, about: About) -> None:
    objects.put(_key(about.task), msgspec.json.encode(about))


def get_about(objects: Objects, task: str) -> About | None:
    """Nothing of a task that is no more than a reader's name for its progress."""
    try:
        return msgspec.json.decode(objects.get(_key(task)), type=About)
    except NotFoundError:
        return None


def list_abouts(objects: Objects) -> list[About]:
    """Of all tasks that were run, or were to be run."""
    found = (each.key.partition("/task-")[2] for each in objects.list(_ROOT))
    return [about for name in found if (about := get_about(objects, unquote(name)))]


def delete_about(objects: Objects, task: str) -> None:
    objects.delete(_key(task))


def file_of(objects: Objects, task: str) -> Path:
    """Where a task can be loaded from."""
    do = "run it with `headrace run FILE.py`"
    about = get_about(objects, task)
    if about is None:
        raise UsageError(f"no file is known that defines task {task!r}", do=do)
    if not Path(about.file).is_file():
        raise UsageError(f"task {task!r} was defined in {about.file}, which is not there", do=do)
    return Path(about.file)


def _key(task: str) -> str:
    # No component of a key may begin with a dot.
    return f"{_ROOT}/task-{quote(task, safe='')}"
