"""A whole Session in memory, over journals that a test writes frame by frame.

A hint can name an ACK before the test writes it; for the Session that is an ACK it has yet to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from headrace.clock import Clock
from headrace.ids import JournalId, Producer
from headrace.journal.contract import Frame
from headrace.journal.local.records import ACK_ROW
from headrace.journal.sequencer import Flags
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.routing import split_evenly
from headrace.testing.shuffle.memory_journal import Journal
from headrace.testing.shuffle.memory_journals import MemoryJournals
from headrace.testing.shuffle.memory_run import Conditions, MemoryRun
from headrace.testing.shuffle.simulator import draw_limits
from tests.shuffle.builders import Hint, documents

DOCUMENT_BYTES = 10
ACK_BYTES = 5
_PASSES = 10_000


class MemorySession:
    def __init__(
        self,
        collections: Sequence[str],
        sources: Sequence[Source],
        *,
        members: int = 2,
        seed: int = 2,
    ) -> None:
        """Each collection has one journal; their ids are 1, 2, …

        The seed decides how much Slices take and report at once.
        """
        rng = Random(seed)
        self._rng = rng
        self._conditions = Conditions(limits=draw_limits(rng))
        self.world = MemoryJournals()
        for name in collections:
            self.world.create_journal(name)
        self.sources = Sources(sources)
        self.members = members
        self.last_commit = Checkpoint()
        self.run = self.open()

    def open(self, read_through: Checkpoint | None = None, *, is_cut: bool = False) -> MemoryRun:
        """Open another Session that resumes from the last committed checkpoint."""
        self.run = MemoryRun(
            self.world,
            self.sources,
            split_evenly(self.members),
            self.last_commit,
            read_through,
            is_cut=is_cut,
            conditions=self._conditions,
        )
        return self.run

    # -- writing ---------------------------------------------------------------------------

    def journal(self, number: int) -> Journal:
        return self.world.journals[JournalId(number)]

    def write(
        self, journal: int, clock: int, *, producer: int = 1, flags: Flags = Flags.CONTINUE
    ) -> Frame:
        """Write one document, numbered by its clock."""
        return self.journal(journal).add(
            DOCUMENT_BYTES,
            producer=Producer(producer),
            clock=Clock(clock),
            documents=1,
            flags=flags,
            body=documents(clock, 1),
            bytes=DOCUMENT_BYTES,
        )

    def outside(self, journal: int, clock: int, *, producer: int = 1) -> Frame:
        return self.write(journal, clock, producer=producer, flags=Flags.OUTSIDE)

    def hints(self, clock: int, *journals: int, producer: int = 1) -> list[Hint]:
        """Hints of one ACK in each journal, if each is the next frame there."""
        return [(each, self.journal(each).head, producer, clock) for each in journals]

    def ack(
        self, journal: int, clock: int, *, producer: int = 1, hints: Sequence[Hint] = ()
    ) -> Frame:
        return self.journal(journal).add(
            ACK_BYTES,
            producer=Producer(producer),
            clock=Clock(clock),
            documents=0,
            flags=Flags.ACK,
            body=b"",
            bytes=ACK_BYTES,
            hints=np.array(list(hints), ACK_ROW) if hints else None,
        )

    def commit(self, clock: int, *journals: int, producer: int = 1) -> None:
        """Write all ACKs of a transaction, each with hints of all."""
        hints = self.hints(clock, *journals, producer=producer)
        for each in journals:
            self.ack(each, clock, producer=producer, hints=hints)

    # -- reading ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Deliver every message, until all that was written is read and reported."""
        self.run.watch()
        for _ in range(_PASSES):
            if busy := self.run.busy_pipes():
                self.run.deliver(self._rng.choice(busy))
            else:
                self.world.pass_time(1000)
                for member in range(self.members):
                    self.run.advance(member)
                if not self.run.busy_pipes():
                    return
        raise AssertionError("the Session does not settle")

    def delete(self, journal: int) -> None:
        """Delete a journal and tell the Session, but deliver nothing to its members yet."""
        self.world.deleted.add(JournalId(journal))
        self.run.watch()

    def poll(self, documents_max: int | None = None) -> Checkpoint | None:
        """Take the next checkpoint and commit it."""
        self.settle()
        delta = self.run.session.next_checkpoint(documents_max)
        if delta is not None:
            self.last_commit = Checkpoint.decode(self.last_commit.merge(delta).encode())
        return delta

    def shown(self, delta: Checkpoint) -> list[tuple[int, int]]:
        """(binding, clock) of every document that a checkpoint shows."""
        return sorted(
            (int(binding), number) for some in self.run.read(delta) for binding, number in some
        )

    def next(self) -> list[tuple[int, int]]:
        """What the next checkpoint shows; empty if there is none."""
        delta = self.poll()
        return [] if delta is None else self.shown(delta)

    def tag(self, journal: int) -> int:
        return self.run.session.assignment._tags[JournalId(journal)]

    def waits_for(self) -> list[tuple[int, str]]:
        return list(self.run.session.waiting_for())
