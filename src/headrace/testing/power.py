"""A disk in memory that records every operation, and knows what a power failure could leave.

What a sync covered survives a power failure. Every other operation survives or is lost on its own,
in whatever order the operations happened:

- A write is cut at sector boundaries. Each sector is written, lost, torn, or full of zeros (the
  file grew, but its data never arrived). Bytes of the same sector that were synced before stay.
- A truncation or a punched hole took place or did not.
- A created name is there or not, even if the file itself was synced. An unlinked name is gone or
  back. Only a sync of the directory settles names.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

SECTOR_BYTES = 512

Files = dict[str, bytes]
"""The contents of a directory, by name."""

LOST, KEPT, ZEROED, TORN = range(4)


@dataclass(slots=True, eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class _Written:
    inode: _Inode
    start: int
    data: bytes
    fates = (LOST, KEPT, ZEROED, TORN)

    def apply(self, content: bytearray, fate: int) -> None:
        data = {
            KEPT: self.data,
            ZEROED: bytes(len(self.data)),
            TORN: self.data[: len(self.data) // 2],
        }[fate]
        content.extend(bytes(max(0, self.start - len(content))))
        content[self.start : self.start + len(data)] = data


@dataclass(frozen=True, slots=True)
class _Truncated:
    inode: _Inode
    size: int
    fates = (LOST, KEPT)

    def apply(self, content: bytearray, _: int) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(frozen=True, slots=True)
class _Punched:
    inode: _Inode
    start: int
    length: int
    fates = (LOST, KEPT)

    def apply(self, content: bytearray, _: int) -> None:
        end = min(self.start + self.length, len(content))
        content[self.start : end] = bytes(max(0, end - self.start))


@dataclass(frozen=True, slots=True)
class _Named:
    """A name now stands for this file, or for nothing."""

    name: str
    inode: _Inode | None
    fates = (LOST, KEPT)


@dataclass(frozen=True, slots=True)
class _Synced:
    inode: _Inode


@dataclass(frozen=True, slots=True)
class _DirectorySynced:
    pass


_Change = _Written | _Truncated | _Punched
_Unsettled = _Change | _Named
_Operation = _Unsettled | _Synced | _DirectorySynced


class RecordedDisk:
    """Implements `headrace.log.Disk`. Every operation counts as one more `point` in time."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self._names = {
            name: _Inode(bytearray(content)) for name, content in sorted((files or {}).items())
        }
        self._first_names = dict(self._names)
        self._first_contents = {inode: bytes(inode.content) for inode in self._first_names.values()}
        self._operations: list[_Operation] = []
        self._lock = threading.RLock()

    @property
    def point(self) -> int:
        """The number of operations so far."""
        return len(self._operations)

    def files(self) -> Files:
        """Return what another process sees now: the result of all operations, synced or not."""
        with self._lock:
            return {name: bytes(inode.content) for name, inode in self._names.items()}

    def after_power_failure(
        self, point: int, *, states_max: int = 256, seed: int = 0
    ) -> Iterator[Files]:
        """Yield each different state that a power failure after `point` operations may leave.

        If there are more than `states_max`, yield those that tell most: everything up to each
        operation, everything but one, only one, each also with the rest zeroed or torn; and as many
        random ones, which are the same for the same seed.
        """
        names, contents, unsettled = self._settled(point)
        seen = set()
        for fates in _fates(unsettled, states_max, random.Random(f"{seed}/{point}")):
            files = _outcome(names, contents, unsettled, fates)
            key = frozenset(files.items())
            if key not in seen:
                seen.add(key)
                yield files

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._names)

    def create(self, name: str) -> _RecordedFile:
        with self._lock:
            if name in self._names:
                raise FileExistsError(17, "File exists", name)
            self._names[name] = inode = _Inode()
            self._operations.append(_Named(name, inode))
            return _RecordedFile(self, inode)

    def open(self, name: str) -> _RecordedFile:
        return _RecordedFile(self, self._inode(name))

    def map(self, name: str, room: int = 0) -> memoryview:
        with self._lock:
            return memoryview(bytes(self._inode(name).content))

    def unlink(self, name: str) -> None:
        with self._lock:
            self._inode(name)
            del self._names[name]
            self._operations.append(_Named(name, None))

    def sync(self) -> None:
        with self._lock:
            self._operations.append(_DirectorySynced())

    def path(self, name: str) -> str:
        return f"recorded/{name}"

    def _inode(self, name: str) -> _Inode:
        with self._lock:
            if name not in self._names:
                raise FileNotFoundError(2, "No such file or directory", name)
            return self._names[name]

    def _change(self, change: _Change) -> None:
        with self._lock:
            change.apply(change.inode.content, KEPT)
            self._operations.append(change)

    def _sync(self, inode: _Inode) -> None:
        with self._lock:
            self._operations.append(_Synced(inode))

    def _settled(
        self, point: int
    ) -> tuple[dict[str, _Inode], dict[_Inode, bytes], list[_Unsettled]]:
        """Return the names and contents that are sure after `point` operations, and the operations
        that are not."""
        names = dict(self._first_names)
        contents = {inode: bytearray(data) for inode, data in self._first_contents.items()}
        unsettled: list[_Unsettled] = []
        for operation in self._operations[:point]:
            if isinstance(operation, _DirectorySynced):
                for each in unsettled:
                    if isinstance(each, _Named):
                        _rename(names, each)
                unsettled = [each for each in unsettled if not isinstance(each, _Named)]
            elif isinstance(operation, _Synced):
                content = contents.setdefault(operation.inode, bytearray())
                for each in unsettled:
                    if not isinstance(each, _Named) and each.inode is operation.inode:
                        each.apply(content, KEPT)
                unsettled = [
                    each
                    for each in unsettled
                    if isinstance(each, _Named) or each.inode is not operation.inode
                ]
            elif isinstance(operation, _Written):
                unsettled += _sectors(operation)
            else:
                unsettled.append(operation)
        return names, {inode: bytes(content) for inode, content in contents.items()}, unsettled


class _RecordedFile:
    def __init__(self, disk: RecordedDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.content)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        self._disk._change(_Written(self._inode, self.size(), b"".join(parts)))

    def sync(self) -> None:
        self._disk._sync(self._inode)

    def truncate(self, size: int) -> None:
        self._disk._change(_Truncated(self._inode, size))

    def punch(self, start: int, length: int) -> None:
        self._disk._change(_Punched(self._inode, start, length))

    def close(self) -> None:
        pass


def _rename(names: dict[str, _Inode], change: _Named) -> None:
    if change.inode is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.inode


def _sectors(write: _Written) -> Iterator[_Written]:
    done = 0
    while done < len(write.data):
        length = SECTOR_BYTES - (write.start + done) % SECTOR_BYTES
        yield _Written(write.inode, write.start + done, write.data[done : done + length])
        done += length


def _fates(
    unsettled: Sequence[_Unsettled], states_max: int, chance: random.Random
) -> Iterator[tuple[int, ...]]:
    if prod(len(each.fates) for each in unsettled) <= states_max:
        yield from product(*(each.fates for each in unsettled))
        return
    count = len(unsettled)
    kept = [KEPT] * count
    lost = [LOST] * count
    for index in range(count + 1):
        for rest in (LOST, ZEROED, TORN):
            tail = [rest if rest in each.fates else LOST for each in unsettled[index:]]
            yield tuple(kept[:index] + tail)
        for fate in unsettled[index].fates if index < count else ():
            yield (*kept[:index], fate, *kept[index + 1 :])
            yield (*kept[:index], fate, *lost[index + 1 :])
            yield (*lost[:index], fate, *lost[index + 1 :])
    for _ in range(states_max):
        yield tuple(chance.choice(each.fates) for each in unsettled)


def _outcome(
    settled_names: Mapping[str, _Inode],
    settled_contents: Mapping[_Inode, bytes],
    unsettled: Sequence[_Unsettled],
    fates: Sequence[int],
) -> Files:
    names = dict(settled_names)
    contents: dict[_Inode, bytearray] = {}
    for each, fate in zip(unsettled, fates, strict=True):
        if fate == LOST:
            continue
        if isinstance(each, _Named):
            _rename(names, each)
        else:
            if each.inode not in contents:
                contents[each.inode] = bytearray(settled_contents.get(each.inode, b""))
            each.apply(contents[each.inode], fate)
    return {
        name: bytes(contents.get(inode, settled_contents.get(inode, b"")))
        for name, inode in names.items()
    }
