"""What runs in the process that consumes: every checkpoint is stored before its documents are read.

In its folder, for the checkpoint N of the task: `intent-N` is the delta, written before anything
of it is read; `documents-N` what was read, by member; `commit-N` the whole checkpoint, written
last. A life that finds an intent without its commit replays it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

import headrace as hr
from headrace.testing.crash import end_uncleanly
from tests.shuffle.crash.writers import COLLECTIONS, SETTINGS

Document = tuple[str, str, int, int]
"""Its collection, label, transaction and part."""

Step = Literal["asked", "stored", "reading", "written", "committed", "released"]
POLL_S = 0.5

BINDINGS = [
    hr.Binding(collection=COLLECTIONS[0]),
    hr.Binding(collection=COLLECTIONS[1]),
    hr.Binding(collection=COLLECTIONS[2], priority=-1),
]
COHORTS = {COLLECTIONS[0]: 0, COLLECTIONS[1]: 0, COLLECTIONS[2]: 1}


class Death(NamedTuple):
    """Ends the process at a step of the n-th checkpoint of its life."""

    step: Step
    checkpoint: int


class Yielded(msgspec.Struct):
    """What one checkpoint showed, by member."""

    members: list[list[Document]]


class Coordinator:
    def __init__(self, root: Path, folder: Path, death: Death | None = None) -> None:
        self._workspace = hr.open(root, settings=SETTINGS)
        self._folder = folder
        self._death = death
        self._taken = 0
        self.replays = 0

    def consume(self, members: Sequence[str], checkpoints: int, documents: int = 0) -> int:
        """Commit so many checkpoints, or go on until the task has shown so many documents.

        Returns how many it has shown. Raises what ends the Session.
        """
        last, base = newest_commit(self._folder)
        through = self._read("intent", last + 1)
        shuffle = hr.Shuffle(
            self._workspace,
            BINDINGS,
            members,
            last_commit=base,
            read_through=hr.Checkpoint.decode(through) if through else None,
            service=SETTINGS.service,
        )
        with shuffle:
            shown = sum(sum(map(len, each.members)) for each in committed(self._folder))
            wanted = last + checkpoints
            while last < wanted or shown < documents:
                self._reach("asked")
                if (found := shuffle.next_checkpoint(POLL_S)) is None:
                    continue
                self._taken += 1
                last += 1
                shown += self._take(shuffle, last, found, base, through)
                base, through = base.merge(found.delta), None
        return shown

    def _take(
        self,
        shuffle: hr.Shuffle,
        number: int,
        found: hr.NextCheckpoint,
        base: hr.Checkpoint,
        through: bytes | None,
    ) -> int:
        delta = found.delta.encode()
        if through is None:
            self._write("intent", number, delta)
        else:
            assert delta == through, f"checkpoint {number} was replayed as another one"
            self.replays += 1
        self._reach("stored")
        yielded = Yielded([])
        for member in range(shuffle.members):
            yielded.members.append(_documents(shuffle, member, found))
            self._reach("reading")
        self._compare(number, yielded)
        self._write("documents", number, msgspec.msgpack.encode(yielded))
        self._reach("written")
        self._write("commit", number, base.merge(found.delta).encode())
        self._reach("committed")
        shuffle.release(found)
        self._reach("released")
        return sum(map(len, yielded.members))

    def _compare(self, number: int, yielded: Yielded) -> None:
        """With what a life before saw of the same checkpoint."""
        if (data := self._read("documents", number)) is None:
            return
        before = msgspec.msgpack.decode(data, type=Yielded)
        if len(before.members) == len(yielded.members):
            same = all(map(_equal, yielded.members, before.members))
            assert same, f"checkpoint {number} has other documents on the same members"
        same = _equal(chain(*yielded.members), chain(*before.members))
        assert same, f"checkpoint {number} has other documents"

    def _reach(self, step: Step) -> None:
        if self._death and self._death.step == step and self._taken >= self._death.checkpoint:
            end_uncleanly()

    def _write(self, kind: str, number: int, data: bytes) -> None:
        """Durably, all of it or nothing."""
        unfinished = self._folder / "unfinished"
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._folder / f"{kind}-{number}")
        directory = os.open(self._folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def _read(self, kind: str, number: int) -> bytes | None:
        file = self._folder / f"{kind}-{number}"
        return file.read_bytes() if file.exists() else None


def _documents(shuffle: hr.Shuffle, member: int, found: hr.NextCheckpoint) -> list[Document]:
    return [
        (source.name, label, tx, part)
        for source, batch in shuffle.read(member, found)
        for label, tx, part in zip(
            *(batch[name].to_pylist() for name in ("label", "tx", "part")), strict=True
        )
    ]


def _equal(some: Iterable[Document], others: Iterable[Document]) -> bool:
    return sorted(some) == sorted(others)


def newest_commit(folder: Path) -> tuple[int, hr.Checkpoint]:
    numbers = [int(file.name.rpartition("-")[2]) for file in folder.glob("commit-*")]
    if not numbers:
        return 0, hr.Checkpoint()
    newest = max(numbers)
    return newest, hr.Checkpoint.decode((folder / f"commit-{newest}").read_bytes())


def committed(folder: Path) -> list[Yielded]:
    """What each committed checkpoint showed, in order."""
    newest, _ = newest_commit(folder)
    return [
        msgspec.msgpack.decode((folder / f"documents-{number}").read_bytes(), type=Yielded)
        for number in range(1, newest + 1)
    ]
