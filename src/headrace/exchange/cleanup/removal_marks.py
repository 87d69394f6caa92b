"""Marks that say what cleanup is about to remove.

Each cleanup makes marks of its own, so that none takes back what another has announced.
"""

from __future__ import annotations

import secrets

from headrace.exchange.format.layout import REMOVED, MapTask, query_directory, stage_directory
from headrace.storage import Objects


class RemovalMarks:
    """The marks of one cleanup, and what it sees of all marks."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._mine = secrets.token_hex(8)

    def mark(self, task: MapTask, attempt: int) -> None:
        self._objects.put(self._key(task, attempt), b"")

    def mark_query(self, query_id: int) -> None:
        self._objects.put(f"{_query_marks(query_id)}/{self._mine}", b"")

    def unmark(self, task: MapTask, attempt: int) -> None:
        """Take the own mark back, and leave those of others."""
        self._objects.delete(self._key(task, attempt))

    def unmark_query(self, query_id: int) -> None:
        self._objects.delete(f"{_query_marks(query_id)}/{self._mine}")

    def clear(self, task: MapTask, attempt: int) -> None:
        """Delete every mark of an attempt that is removed."""
        for key in _marks(self._objects, task, attempt):
            self._objects.delete(key)

    def note_generation(self, task: MapTask, generation: int) -> None:
        """Note that a generation is about to be void. All cleanups share the note."""
        self._objects.put(_generation_note(task, generation), b"")

    def clear_generation(self, task: MapTask, generation: int) -> None:
        self._objects.delete(_generation_note(task, generation))

    def _key(self, task: MapTask, attempt: int) -> str:
        return f"{_stage_marks(task)}/{task.map_task}-{attempt}-{self._mine}"


def is_marked(objects: Objects, task: MapTask, attempt: int) -> bool:
    return bool(_marks(objects, task, attempt))


def is_query_marked(objects: Objects, query_id: int) -> bool:
    return bool(objects.list(_query_marks(query_id)))


def _marks(objects: Objects, task: MapTask, attempt: int) -> list[str]:
    prefix = f"{_stage_marks(task)}/{task.map_task}-{attempt}-"
    keys = (info.key for info in objects.list(_stage_marks(task)))
    return [key for key in keys if key.startswith(prefix)]


def _generation_note(task: MapTask, generation: int) -> str:
    return f"{_stage_marks(task)}/{task.map_task}-{generation}"


def _stage_marks(task: MapTask) -> str:
    return f"{stage_directory(task.query_id, task.stage_id)}/{REMOVED}"


def _query_marks(query_id: int) -> str:
    return f"{query_directory(query_id)}/{REMOVED}"
