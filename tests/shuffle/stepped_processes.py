"""Runs processes that share objects one step at a time, in an order that the test chooses.

A step is one request to the objects. The test can kill a process before any of its steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random

from headrace.storage import ObjectInfo, Objects
from tests.shuffle.faulty_objects import Killed


class Process:
    """Runs `program`; each of its requests waits for a call of `step`."""

    def __init__(self, objects: Objects, program: Callable[[Objects], None], rng: Random) -> None:
        self._turn = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._is_killed = False
        self.error: BaseException | None = None
        self.is_alive = True
        self._program = program
        self._objects = SteppedObjects(objects, self._wait, rng)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._done.acquire()

    def step(self, *, kill: bool = False) -> None:
        """Let the process make its waiting request and run until the next one."""
        self._is_killed = kill
        self._turn.release()
        self._done.acquire()
        if not self.is_alive:
            self._thread.join()

    def _wait(self) -> None:
        self._done.release()
        self._turn.acquire()
        if self._is_killed:
            raise Killed

    def _run(self) -> None:
        try:
            self._program(self._objects)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.error = error
        self.is_alive = False
        self._done.release()


class SteppedObjects:
    """Wait before each request; a listing takes one step per directory, in random order.

    So a listing mixes several moments, as the contract allows.
    """

    def __init__(self, objects: Objects, wait: Callable[[], None], rng: Random) -> None:
        self._objects = objects
        self._wait = wait
        self._rng = rng

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._wait()
        self._objects.put(key, data)

    def put_all(self, objects: Sequence[tuple[str, bytes | bytearray | memoryview]]) -> None:
        for key, data in objects:
            self.put(key, data)

    def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        self._wait()
        return self._objects.put_if_absent(key, data)

    def get(self, key: str) -> bytes:
        self._wait()
        return self._objects.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._wait()
        return self._objects.get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo | None:
        self._wait()
        return self._objects.head(key)

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        return sorted(self._scan(prefix), key=lambda info: info.key)

    def _scan(self, prefix: str) -> Iterator[ObjectInfo]:
        self._wait()
        directories = sorted({_directory(each) for each in self._objects.list(prefix)})
        self._rng.shuffle(directories)
        for directory in directories:
            self._wait()
            found = self._objects.list(directory)
            yield from (each for each in found if _directory(each) == directory)

    def move(self, key: str, to: str) -> None:
        self._wait()
        self._objects.move(key, to)

    def delete_all(self, prefix: str) -> None:
        for info in self.list(prefix):
            self.delete(info.key)

    def delete(self, key: str) -> None:
        self._wait()
        self._objects.delete(key)


def _directory(info: ObjectInfo) -> str:
    return info.key.rpartition("/")[0]


def run_interleaved(
    objects: Objects, programs: Sequence[Callable[[Objects], None]], rng: Random, kills: float
) -> int:
    """Run all programs to their ends in an order that `rng` chooses; return how many it killed."""
    processes = [Process(objects, each, rng) for each in programs]
    killed = 0
    # Some processes rarely get a turn, as one that others have given up.
    weights = [rng.choice([0.02, 1.0, 1.0]) for _ in processes]
    while alive := [index for index, each in enumerate(processes) if each.is_alive]:
        (index,) = rng.choices(alive, [weights[each] for each in alive])
        kill = rng.random() < kills
        processes[index].step(kill=kill)
        killed += kill
        if rng.random() < 0.02:
            weights[index] = rng.choice([0.02, 1.0])
    for each in processes:
        if each.error:
            raise each.error
    return killed
