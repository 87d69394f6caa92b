"""Whose turn it is to run a task: whoever took it last.

The one before cannot be asked to end: it may be stopped, or cut off, and go on at any time. So each
run takes the next number, put if absent, before it opens anything. It looks before each batch, and
before it starts again after a failure, whether there is a later one, and ends then: two that take
the task from each other would get nothing done.

That what it does meanwhile does no harm is for the sink to see to.
"""

from __future__ import annotations

from urllib.parse import quote

from headrace.errors import FencedError
from headrace.storage import Objects

_ROOT = "turns"


class Turn:
    """Taken as it is made."""

    def __init__(self, objects: Objects, task: str) -> None:
        self._objects = objects
        self._task = task
        # No component of a key may begin with a dot.
        self._prefix = f"{_ROOT}/task-{quote(task, safe='')}"
        while True:
            earlier = self._listed()
            self._number = max(earlier, default=0) + 1
            # A number that others took and deleted since can be put again: it is not the last.
            if objects.put_if_absent(self._key(self._number), b"") and self.is_mine:
                break
        for number in earlier:
            objects.delete(self._key(number))

    @property
    def number(self) -> int:
        return self._number

    @property
    def is_mine(self) -> bool:
        return max(self._listed(), default=0) == self._number

    def check(self) -> None:
        if not self.is_mine:
            raise FencedError(
                f"task {self._task!r} was taken over by another process, which runs it",
                do="end this one, which was replaced",
            )

    def _listed(self) -> list[int]:
        listed = self._objects.list(self._prefix)
        return [int(each.key.rpartition("/")[2]) for each in listed]

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number:020d}"
