"""What runs in the process that owns the workspace: writers of every kind, until they are stopped.

A document says which transaction it is of: its writer's label and the number given to it. Writers
are one that has a name, one that has none, one whose transactions other producers join, and one
that appends outside of transactions. Some transactions are rolled back, and one stays open.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace as hr

COLLECTIONS = ("crash/a", "crash/b", "crash/late")
SCHEMA = "label string, tx long, part int"
JOURNALS = 3
OUTSIDE = "outside"
NAMED = "named"
PAUSE_S = 0.04

SETTINGS = hr.Settings(
    journal=hr.JournalSettings(transaction_buffer_bytes=2048, frame_bytes_target=1024),
    service=hr.ServiceSettings(heartbeat_s=0.2, silence_s=10.0),
)


def open_workspace(root: Path | str) -> hr.Workspace:
    workspace = hr.open(root, settings=SETTINGS)
    for name in COLLECTIONS:
        workspace.collection(name, SCHEMA, key="part", journals=JOURNALS)
    return workspace


def documents(label: str, tx: int, parts: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The parts of a transaction, spread over the collections."""
    whole = [{"label": label, "tx": tx, "part": n} for n in range(parts)]
    for at, name in enumerate(COLLECTIONS):
        if whole[at :: len(COLLECTIONS)]:
            yield name, whole[at :: len(COLLECTIONS)]


class Publishing:
    def __init__(self, root: Path, seed: str) -> None:
        self._workspace = open_workspace(root)
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._open = self._workspace.publisher().begin()
        self._append(self._open, "open", 0, 600)
        writers: dict[str, Callable[[int, int, random.Random], None]] = {
            NAMED: self._by_name,
            "pooled": self._pooled,
            "joined": self._joined,
            OUTSIDE: self._outside,
        }
        self._named = self._workspace.publisher(NAMED)
        self._writers = [
            threading.Thread(target=self._run, args=(write, random.Random(label + seed)))
            for label, write in writers.items()
        ]
        for writer in self._writers:
            writer.start()

    def stop(self) -> None:
        """Nothing is written any more; raises what went wrong in a writer."""
        self._stopped.set()
        for writer in self._writers:
            writer.join()
        if self._failure:
            raise self._failure

    def _run(self, write: Callable[[int, int, random.Random], None], chance: random.Random) -> None:
        tx = 0
        try:
            while not self._stopped.wait(PAUSE_S):
                tx += 1
                write(tx, chance.choice((1, 4, 9, 120)), chance)
        except BaseException as error:
            self._failure = error
            raise

    def _append(
        self, transaction: hr.Transaction | hr.Participant, label: str, tx: int, parts: int
    ) -> None:
        for collection, some in documents(label, tx, parts):
            transaction.append(collection, some)

    def _by_name(self, tx: int, parts: int, chance: random.Random) -> None:
        transaction = self._named.begin()
        self._append(transaction, NAMED, tx, parts)
        self._end(transaction, chance)

    def _pooled(self, tx: int, parts: int, chance: random.Random) -> None:
        transaction = self._workspace.publisher().begin()
        self._append(transaction, "pooled", tx, parts)
        self._end(transaction, chance)

    def _joined(self, tx: int, parts: int, chance: random.Random) -> None:
        """Each producer has some of the parts, in journals that the others write too."""
        transaction = self._workspace.publisher().begin()
        self._append(transaction, "joined", tx, parts)
        for other in ("joined second", "joined third"):
            part = self._workspace.join(transaction.invite())
            self._append(part, other, tx, chance.choice((1, 4, 9)))
            prepared = part.prepare()
            if chance.random() < 0.9:
                transaction.include(prepared)
        self._end(transaction, chance)

    def _outside(self, tx: int, parts: int, chance: random.Random) -> None:
        for collection, some in documents(OUTSIDE, tx, min(parts, 9)):
            self._workspace.append(collection, some)

    def _end(self, transaction: hr.Transaction, chance: random.Random) -> None:
        if chance.random() < 0.15:
            transaction.rollback()
        else:
            transaction.commit()
