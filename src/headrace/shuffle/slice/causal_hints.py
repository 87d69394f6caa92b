"""Causal hints: which other ACKs belong to the transaction of an ACK. Pure.

An ACK carries a table with a row for every ACK of its transaction: journal, offset, producer and
clock. All ACKs of a transaction share one table, so a Slice works on each table once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from headrace.ids import JournalId
from headrace.journal.contract import Frame
from headrace.journal.hint_tables import HintTable
from headrace.shuffle.binding import Sources

_WIDE_ROWS = 16


class TransactionPart(NamedTuple):
    """One ACK of a transaction, under one of the bindings that read its journal."""

    journal: int
    binding: int
    producer: int
    clock: int
    offset: int


class HintedTransaction(NamedTuple):
    """The ACKs of a transaction that has several; no rows if it has one or none.

    `producer` and `clock` are those of its least ACK.
    """

    rows: list[tuple[int, int, int, int]]
    producer: int
    clock: int
    parts: dict[int, list[TransactionPart]]
    """By cohort, once somebody has asked for them."""


class CausalHints:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._bindings: dict[int, tuple[int, ...]] = {}
        """By journal, the tags of the bindings that read it."""
        self._hinted: dict[tuple[int, object], HintedTransaction] = {}
        """By the length and the first row of its table. No two transactions share both."""
        self._wide: dict[tuple[int, object], HintedTransaction] = {}
        """The transactions whose ACKs come over several reports."""
        self._known: WeakValueDictionary[int, HintTable] = WeakValueDictionary()
        """By identity, the tables that name no unknown journal."""

    def reported(self) -> None:
        """Forget the transactions of the last report, except for wide ones: more ACKs will come."""
        self._wide = {key: found for key, found in self._hinted.items() if key[0] > _WIDE_ROWS}
        self._hinted = {}

    def unknown_journals(self, frames: Iterable[Frame]) -> set[int]:
        """Return the journals that the frames hint at and that were never `learned`."""
        tables = {id(frame.hints): frame.hints for frame in frames if frame.hints is not None}
        unknown: set[int] = set()
        for identity, table in tables.items():
            if len(table) < 2 or self._known.get(identity) is table:
                continue
            hinted = table["journal"].tolist()
            found = {journal for journal in hinted if journal and journal not in self._bindings}
            if not found:
                self._known[identity] = table
            unknown |= found
        return unknown

    def learned(self, journal: JournalId, tags: Iterable[int]) -> None:
        """The bindings with these tags read the journal."""
        self._bindings[journal] = tuple(tags)

    def of_transaction(self, hints: HintTable | None) -> HintedTransaction:
        if hints is None or len(hints) < 2:
            return _ALONE
        key = len(hints), hints[0].item()
        if (found := self._hinted.get(key)) is None:
            found = self._hinted[key] = self._wide.get(key) or _hinted(hints.tolist())
        return found

    def parts_of(self, hinted: HintedTransaction, cohort: int) -> list[TransactionPart]:
        """Return the parts of the transaction that the cohort reads."""
        if (found := hinted.parts.get(cohort)) is None:
            found = hinted.parts[cohort] = [
                TransactionPart(journal, tag, producer, clock, offset)
                for journal, offset, producer, clock in hinted.rows
                for tag in self.in_cohort(journal, cohort)
            ]
        return found

    def in_cohort(self, journal: int, cohort: int) -> list[int]:
        """Return the bindings of the cohort that read the journal."""
        return [
            tag
            for tag in self._bindings[journal]
            if self._sources.by_tag[tag].cohort == cohort  # type: ignore[index]
        ]


_ALONE = HintedTransaction([], 0, 0, {})


def _hinted(rows: list[tuple[int, int, int, int]]) -> HintedTransaction:
    # A row of clock 0 rolls back. A row without a journal is that of a coordinator that wrote
    # nothing.
    commits = [row for row in rows if row[0] and row[3]]
    if len(commits) < 2:
        return _ALONE
    producer, clock = min((producer, clock) for *_, producer, clock in commits)
    return HintedTransaction(commits, producer, clock, {})
