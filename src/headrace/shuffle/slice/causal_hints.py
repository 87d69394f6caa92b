"""What is known of the transactions whose ACKs a Slice reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from headrace.ids import JournalId
from headrace.journal.contract import Frame
from headrace.journal.hint_tables import HintTable
from headrace.shuffle.binding import Sources

_WIDE_ROWS = 16


class Part(NamedTuple):
    journal: int
    binding: int
    producer: int
    clock: int
    offset: int


class Hinted(NamedTuple):
    """The commits of a transaction, if it has several, and the least of them."""

    rows: list[tuple[int, int, int, int]]
    producer: int
    clock: int
    parts: dict[int, list[Part]]
    """By cohort; made when they are wanted."""


class CausalHints:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._bindings: dict[int, tuple[int, ...]] = {}
        self._hinted: dict[tuple[int, object], Hinted] = {}
        """By the length and the first row of their table, which no two transactions share."""
        self._wide: dict[tuple[int, object], Hinted] = {}
        """Those whose ACKs come over several reports."""
        self._known: WeakValueDictionary[int, HintTable] = WeakValueDictionary()
        """Tables of hints that name no unknown journal, by identity: ACKs share them."""

    def reported(self) -> None:
        """What was hinted so far is hardly asked for again, unless it is wide."""
        self._wide = {key: each for key, each in self._hinted.items() if key[0] > _WIDE_ROWS}
        self._hinted = {}

    def unknown_journals(self, frames: Iterable[Frame]) -> set[int]:
        tables = {id(frame.hints): frame.hints for frame in frames if frame.hints is not None}
        unknown: set[int] = set()
        for at, table in tables.items():
            if len(table) < 2 or self._known.get(at) is table:
                continue
            named = table["journal"].tolist()
            found = {journal for journal in named if journal and journal not in self._bindings}
            if not found:
                self._known[at] = table
            unknown |= found
        return unknown

    def learned(self, journal: JournalId, tags: Iterable[int]) -> None:
        self._bindings[journal] = tuple(tags)

    def of_transaction(self, hints: HintTable | None) -> Hinted:
        if hints is None or len(hints) < 2:
            return _ALONE
        key = len(hints), hints[0].item()
        if (found := self._hinted.get(key)) is None:
            found = self._hinted[key] = self._wide.get(key) or _hinted(hints.tolist())
        return found

    def parts_of(self, hinted: Hinted, cohort: int) -> list[Part]:
        if (found := hinted.parts.get(cohort)) is None:
            found = hinted.parts[cohort] = [
                Part(journal, tag, producer, clock, offset)
                for journal, offset, producer, clock in hinted.rows
                for tag in self.in_cohort(journal, cohort)
            ]
        return found

    def in_cohort(self, journal: int, cohort: int) -> list[int]:
        """The bindings of the cohort that read the journal."""
        return [
            tag
            for tag in self._bindings[journal]
            if self._sources.by_tag[tag].cohort == cohort  # type: ignore[index]
        ]


_ALONE = Hinted([], 0, 0, {})


def _hinted(rows: list[tuple[int, int, int, int]]) -> Hinted:
    # Rows of clock 0 roll back; those without a journal are of a coordinator that wrote nothing.
    commits = [row for row in rows if row[0] and row[3]]
    if len(commits) < 2:
        return _ALONE
    producer, clock = min((producer, clock) for *_, producer, clock in commits)
    return Hinted(commits, producer, clock, {})
