"""Objects with a fault: they kill their user, pause it, or list what is no longer so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.shuffle import Checkpoint
from headrace.shuffle.checkpoints.checkpoint_objects import Label, decode
from headrace.storage import ObjectInfo, Objects, open_objects
from tests.shuffle.sample_deltas import START, keys, merged


class Killed(BaseException):
    """Stands for the death of a process; nothing in `src` catches it."""


def _die() -> None:
    raise Killed


class KillingObjects:
    """Kill their user before or after its change of this number."""

    def __init__(
        self, objects: Objects, change: int, when: str, die: Callable[[], object] = _die
    ) -> None:
        self._objects = objects
        self._left = change
        self._when = when
        self._die = die
        self.get, self.head, self.list = objects.get, objects.head, objects.list

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._pass("before")
        won = self._objects.put_if_absent(key, data)
        self._pass("after")
        return won

    def delete(self, key: str) -> None:
        self._pass("before")
        self._objects.delete(key)
        self._pass("after")

    def _pass(self, when: str) -> None:
        if when == self._when:
            if self._left == 0:
                self._die()
            self._left -= 1


class PausingObjects:
    """Pause their user before its request of this number, and run something else meanwhile."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._requests = -1
        self.do: Callable[[], None] | None = None

    def arm(self, request: int, do: Callable[[], None]) -> None:
        self._requests, self.do = request, do

    def __getattr__(self, name: str) -> object:
        if self._requests == 0 and self.do:
            do, self.do = self.do, None
            do()
        self._requests -= 1
        return getattr(self._objects, name)


class StaleListObjects:
    """After a put, the next listing omits full checkpoints that come or go while it runs, except 0.

    A store has to list only what exists before the listing and after it.
    """

    def __init__(self, objects: Objects, do: Callable[[], None]) -> None:
        self._objects = objects
        self._do: Callable[[], None] | None = None
        self.do = do
        self.get, self.head, self.delete = objects.get, objects.head, objects.delete

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._do = self.do
        return self._objects.put_if_absent(key, data)

    def list(self, prefix: str) -> Sequence[ObjectInfo]:
        if self._do is None:
            return self._objects.list(prefix)
        before = self._objects.list(prefix)
        self._do()
        self._do = None
        after = keys(self._objects)
        return [info for info in before if info.key in after or info.key.endswith(f"/{0:020d}")]


class RecordingObjects:
    """Remember what was first put under each key, also after it is deleted."""

    def __init__(self) -> None:
        self._objects = open_objects("memory://")
        self.first: dict[str, bytes] = {}
        self.put_again = 0
        self.get, self.head, self.list, self.delete = (
            self._objects.get,
            self._objects.head,
            self._objects.list,
            self._objects.delete,
        )

    def put_if_absent(self, key: str, data: bytes) -> bool:
        won = self._objects.put_if_absent(key, data)
        if won and key in self.first:
            self.put_again += "/delta/" in key
        elif won:
            self.first[key] = data
        return won

    def delta(self, generation: str, number: int) -> Checkpoint:
        label = Label("t", generation, "delta", number)
        return decode(label, self.first[label.key])[1]

    def whole(self, generation: str, number: int) -> Checkpoint:
        deltas = [self.delta(generation, each) for each in range(1, number + 1)]
        return merged(START, deltas)
