"""ProgressReport: what a Slice reports to its Session after a Flush, in columns. Pure.

`producers` has two columns that a frontier does not have. They describe the first span that no
earlier report had as committed: `since` is the offset where the span begins, `first` is the clock
of its commit. If there is no such span, they are -1 and 0. `commits` and `parts` describe
transactions that may be incomplete as far as this Slice knows:

    commits  this Slice read the transaction's ACK in `place`; the transaction's first document
             there has the clock `first` and the offset `begin`
    parts    the transaction also has an ACK of `producer` with `clock` at `offset` of `journal`;
             `journal` is an id, since the journal may not have a tag yet

Every Slice identifies a transaction within a cohort in the same way: by the least (producer, clock)
of its ACKs, in the columns `transaction_producer` and `transaction_clock`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headrace.frontier import JOURNAL_ROW, Place

PROGRESS_ROW = np.dtype(
    [
        ("place", np.uint64),
        ("producer", np.uint64),
        ("last_commit", np.uint64),
        ("span", np.int64),
        ("since", np.int64),
        ("first", np.uint64),
    ]
)
COMMIT_ROW = np.dtype(
    [
        ("cohort", np.uint32),
        ("transaction_producer", np.uint64),
        ("transaction_clock", np.uint64),
        ("place", np.uint64),
        ("producer", np.uint64),
        ("clock", np.uint64),
        ("first", np.uint64),
        ("begin", np.int64),
    ]
)
PART_ROW = np.dtype(
    [
        ("cohort", np.uint32),
        ("transaction_producer", np.uint64),
        ("transaction_clock", np.uint64),
        ("journal", np.uint64),
        ("binding", np.uint32),
        ("producer", np.uint64),
        ("clock", np.uint64),
        ("offset", np.int64),
    ]
)

Rows = NDArray[np.void]


def _no_rows(dtype: np.dtype[np.void]) -> Rows:
    return np.zeros(0, dtype)


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """A report of one Slice about one lane."""

    journals: Rows = field(default_factory=lambda: _no_rows(JOURNAL_ROW))
    producers: Rows = field(default_factory=lambda: _no_rows(PROGRESS_ROW))
    commits: Rows = field(default_factory=lambda: _no_rows(COMMIT_ROW))
    parts: Rows = field(default_factory=lambda: _no_rows(PART_ROW))
    documents: int = 0
    """How many documents the report commits, whether or not their transactions are complete."""

    @property
    def rows(self) -> int:
        tables = self.journals, self.producers, self.commits, self.parts
        return sum(map(len, tables))

    def places(self) -> set[Place]:
        """Return the places that the report has progress of."""
        return {*self.journals["place"].tolist(), *self.commits["place"].tolist()}

    def without(self, places: Collection[int]) -> ProgressReport:
        """Return the same report without those places."""
        left_out = np.array([*places], np.uint64)
        journals, producers, commits = (
            rows[~np.isin(rows["place"], left_out)]
            for rows in (self.journals, self.producers, self.commits)
        )
        return replace(self, journals=journals, producers=producers, commits=commits)

    def bodies(self) -> list[bytes]:
        """Return the tables for the wire, in the order that `from_bodies` expects."""
        return [
            rows.tobytes() for rows in (self.journals, self.producers, self.commits, self.parts)
        ]

    @classmethod
    def from_bodies(cls, bodies: Sequence[memoryview], documents: int) -> ProgressReport:
        """Return the report that `bodies` made. Raises ValueError if these are not its tables."""
        dtypes = (JOURNAL_ROW, PROGRESS_ROW, COMMIT_ROW, PART_ROW)
        if len(bodies) != len(dtypes):
            raise ValueError(f"it has {len(bodies)} tables, not {len(dtypes)}")
        for number, (body, dtype) in enumerate(zip(bodies, dtypes, strict=True), 1):
            if body.nbytes % dtype.itemsize:
                raise ValueError(
                    f"table {number} has {body.nbytes} bytes, in rows of {dtype.itemsize}"
                )
        tables = [np.frombuffer(b, d) for b, d in zip(bodies, dtypes, strict=True)]
        journals, producers, commits, parts = tables
        return cls(journals, producers, commits, parts, documents)
