"""An owner without a workspace, with two journals and frames whose bodies are words."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, Self

from headrace.clock import Clock
from headrace.ids import JournalId
from headrace.journal.collection import define
from headrace.journal.contract import CommitRequest, DocsHead, Lease, Write
from headrace.journal.local.local_journals import LocalJournals
from headrace.journal.local.owner import Owner
from headrace.journal.names import Selector
from headrace.journal.sequencer import Flags
from tests.journal.conftest import SETTINGS

Seen = dict[str, list[str]]
"""The committed words of each journal."""


class BareOwner:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.owner = Owner(root, SETTINGS)
        self.journals = LocalJournals(self.owner)
        self.journals.put_collection(define("c", "x long", key="x", journals=2))
        self._clocks = count(max(self.journals.open_publisher("").clock, 1) + 1)

    def write(self, lease: Lease, words: Sequence[str], *, commit: bool = True) -> Future[Any]:
        """Write each word to both journals."""
        bodies = [word.encode() for word in words for _ in range(2)]
        heads = [
            DocsHead(JournalId(1 + at % 2), Clock(next(self._clocks)), 1, 0, Flags.CONTINUE)
            for at in range(len(bodies))
        ]
        end = CommitRequest(Clock(next(self._clocks))) if commit else None
        return self.journals.write(Write(lease.producer, lease.holder, tuple(heads), end), bodies)

    def add(self, *words: str) -> None:
        """Write words in a transaction of their own."""
        self.write(self.journals.open_publisher(""), words).result()

    def seen(self) -> Seen:
        return {
            journal.name: [
                bytes(frame.body).decode()
                for frame in self.owner.read(journal.id, journal.begin, journal.head, True)
            ]
            for journal in self.owner.journals(Selector("c"))
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.owner.close()


def in_both(*words: str) -> Seen:
    return {"c/0000": list(words), "c/0001": list(words)}
