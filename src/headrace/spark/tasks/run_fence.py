"""The fence between runs of a task: only the run that took the task last may go on.

A new run cannot ask the run before it to end: that one may be stopped or cut off, and may go on at
any time. So each run takes the next number, put if absent, before it opens anything. Before each
batch, and before it starts again after a failure, it looks for a higher number and ends if there is
one. Two runs that kept taking the task from each other would get nothing done.

The sink makes sure that a run which was replaced does no harm until it looks.
"""

from __future__ import annotations

from headrace.errors import FencedError
from headrace.shuffle.checkpoints.task_keys import fence_key, fence_prefix, parse_fence_key
from headrace.storage import Objects


class RunFence:
    """Takes the task when it is constructed."""

    def __init__(self, objects: Objects, task: str) -> None:
        self._objects = objects
        self._task = task
        while True:
            earlier = self._taken()
            self._number = max(earlier, default=0) + 1
            # Other runs may have taken this number and deleted it since. Then it can be put again,
            # but it is not the highest.
            if objects.put_if_absent(fence_key(task, self._number), b"") and self.is_mine:
                break
        for number in earlier:
            objects.delete(fence_key(task, number))

    @property
    def number(self) -> int:
        """The number of the run."""
        return self._number

    @property
    def is_mine(self) -> bool:
        """True if no later run has taken the task."""
        return max(self._taken(), default=0) == self._number

    def check(self) -> None:
        """Raise FencedError if a later run has taken the task."""
        if not self.is_mine:
            raise FencedError(
                f"task {self._task!r} was taken over by another process, which runs it",
                do="end this process: another one has replaced it",
            )

    def _taken(self) -> list[int]:
        return [parse_fence_key(each.key) for each in self._objects.list(fence_prefix(self._task))]
