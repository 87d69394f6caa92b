"""Runs programs that share objects in every order of their requests.

Programs are deterministic: what one does next depends on the answers it got. So two orders that
gave every program the same answers, and left the same objects, go on in the same way, and only one
of them is explored. Each request of real code is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from headrace.errors import HeadraceError
from headrace.storage import ObjectInfo, Objects, open_objects
from tests.shuffle.stepped_processes import Process

Program = Callable[[Objects], None]
Check = Callable[[Objects, Mapping[str, BaseException | None]], None]


def explore(
    prepare: Callable[[Objects], None],
    programs: Callable[[], Mapping[str, Program]],
    check: Check,
) -> int:
    """Run the programs in every order, and `check` each end; returns how many ends there were.

    `check` gets the objects and the error with which each program ended.
    """
    seen: set[object] = set()
    waiting: list[tuple[str, ...]] = [()]
    ends = 0
    while waiting:
        order = waiting.pop()
        run = _Run(prepare, programs())
        try:
            for name in order:
                run.processes[name].step()
            alive = [name for name, each in run.processes.items() if each.is_alive]
            if run.state() in seen:
                continue
            seen.add(run.state())
            if not alive:
                ends += 1
                errors = {name: each.error for name, each in run.processes.items()}
                check(run.objects, errors)
            waiting += [(*order, name) for name in alive]
        finally:
            run.end()
    return ends


class _Run:
    def __init__(self, prepare: Callable[[Objects], None], programs: Mapping[str, Program]) -> None:
        self.objects = open_objects("memory://")
        prepare(self.objects)
        self._answers: dict[str, list[object]] = {name: [] for name in programs}
        self.processes = {
            name: Process(_ObservedObjects(self.objects, self._answers[name]), program, Random(0))
            for name, program in programs.items()
        }

    def state(self) -> object:
        contents = tuple((each.key, self.objects.get(each.key)) for each in self.objects.list())
        return contents, tuple(tuple(answers) for answers in self._answers.values())

    def end(self) -> None:
        for process in self.processes.values():
            while process.is_alive:
                process.step(kill=True)


class _ObservedObjects:
    """Keep every request and its answer."""

    def __init__(self, objects: Objects, answers: list[object]) -> None:
        self._objects = objects
        self._answers = answers

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._ask("put", key, data)

    def put_all(self, objects: Sequence[tuple[str, bytes | bytearray | memoryview]]) -> None:
        for key, data in objects:
            self.put(key, data)

    def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        return bool(self._ask("put_if_absent", key, data))

    def get(self, key: str) -> bytes:
        return bytes(self._ask("get", key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return bytes(self._ask("get_range", key, start, length))

    def head(self, key: str) -> ObjectInfo | None:
        found: ObjectInfo | None = self._ask("head", key)
        return found

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        found: Sequence[ObjectInfo] = self._ask("list", prefix)
        return found

    def move(self, key: str, to: str) -> None:
        self._ask("move", key, to)

    def delete_all(self, prefix: str) -> None:
        for info in self.list(prefix):
            self.delete(info.key)

    def delete(self, key: str) -> None:
        self._ask("delete", key)

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            answer = getattr(self._objects, name)(*arguments)
        except HeadraceError as error:
            self._answers.append((name, arguments[0], str(error)))
            raise
        self._answers.append((name, arguments[0], _comparable(answer)))
        return answer


def _comparable(answer: object) -> object:
    match answer:
        case ObjectInfo(key, bytes, _):
            return key, bytes
        case [*infos]:
            return tuple(map(_comparable, infos))
    return answer
