"""Reads a member's Queue: the documents that became visible between two checkpoints. Pure.

A document is visible once its clock is at or below its producer's last commit in its place, unless
a rollback retracted it. Slices send nothing that was committed before the Session's first
checkpoint, so of the state before that nothing is needed.

For each checkpoint the reader passes over the entries that came since the one before, and over
those it left open. It keeps the positions of entries that are not yet shown completely, and the
retractions that concern them: memory grows with open transactions, not with documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import StorageError
from headrace.frontier import BindingTag, Frontier
from headrace.shuffle.block import BlockHead, SpanEnd, decode_block

Key = tuple[int, int]
"""A place and a producer."""


class BlockEntry(NamedTuple):
    """A block on disk."""

    position: int
    head: BlockHead


class RetractionEntry(NamedTuple):
    """Rollbacks, after the blocks that they concern."""

    position: int
    retracted: tuple[SpanEnd, ...]


class StopEntry(NamedTuple):
    """Places that are not read any more, after all of their blocks."""

    position: int
    places: tuple[int, ...]
    made: int
    """The last checkpoint that may show anything of them."""


Entry = BlockEntry | RetractionEntry | StopEntry


class Shown(NamedTuple):
    """What a block shows at one checkpoint: rows of each pair with clocks in (above, upto].

    `whole` if that is every row.
    """

    position: int
    head: BlockHead
    whole: bool
    above: NDArray[np.uint64]
    upto: NDArray[np.uint64]
    retracted: tuple[SpanEnd, ...]

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the block that are shown."""
        if self.whole:
            return batch
        clocks = batch.column(batch.num_columns - 2).to_numpy()
        pairs = batch.column(batch.num_columns - 1).to_numpy()
        mask = (clocks > self.above[pairs]) & (clocks <= self.upto[pairs])
        if self.retracted:
            table = self.head.pair_rows()
            for end in self.retracted:
                pair = np.flatnonzero(
                    (table["place"] == end.place) & (table["producer"] == end.producer)
                )
                mask &= ~(np.isin(pairs, pair) & (clocks >= end.first) & (clocks <= end.last))
        return batch.filter(pa.array(mask))


@dataclass(slots=True)
class _Open:
    """A block that is not yet shown completely."""

    entry: BlockEntry
    keys: list[Key]
    upto: NDArray[np.uint64]
    """For each pair, the greatest clock that was shown."""
    waiting: set[Key]
    """Those of which more may be shown."""


class CheckpointChange(NamedTuple):
    """What a checkpoint changes."""

    shown: list[Shown]
    """In the Queue's order."""
    closed: list[int]
    """The positions of blocks of which nothing more will be shown."""


class QueueReader:
    def __init__(self) -> None:
        self.open: dict[int, _Open] = {}
        """By position, the blocks of which more may be shown."""
        self._by_key: dict[Key, dict[int, int]] = {}
        """The open blocks that each producer has rows in, with its least clock there: ascending."""
        self._retracted: dict[Key, list[SpanEnd]] = {}
        self._stopping: dict[int, int] = {}
        """Places that are not read any more, with the last checkpoint that may show any of them."""
        self._closed: list[int] = []

    def advance(
        self, entries: Iterable[Entry], checkpoint: Frontier, number: int
    ) -> CheckpointChange:
        """`entries` are those that came since the last call; they include at least all that were
        flushed before the checkpoint was made, which has this number."""
        self._closed = []
        commits: dict[Key, int] = {
            (place, producer): commit
            for place, producer, commit, _ in checkpoint.producers.tolist()
        }
        touched = {at for key in commits for at in self._by_key.get(key, ())}
        for entry in entries:
            if isinstance(entry, BlockEntry):
                self._add(entry)
                touched.add(entry.position)
            elif isinstance(entry, StopEntry):
                self._stopping |= dict.fromkeys(entry.places, entry.made)
            else:
                for end in entry.retracted:
                    key = end.place, end.producer
                    if blocks := self._by_key.get(key):
                        self._retracted.setdefault(key, []).append(end)
                        touched |= blocks.keys()
        shown = [self._show(self.open[at], commits) for at in sorted(touched)]
        self._stop({place for place, made in self._stopping.items() if made <= number})
        return CheckpointChange([each for each in shown if each is not None], self._closed)

    def _add(self, entry: BlockEntry) -> None:
        firsts: dict[Key, int] = {
            (place, producer): first for place, producer, first, *_ in _rows(entry.head)
        }
        self.open[entry.position] = _Open(
            entry, list(firsts), np.zeros(len(firsts), np.uint64), set(firsts)
        )
        for key, first in firsts.items():
            self._by_key.setdefault(key, {})[entry.position] = first

    def _show(self, opened: _Open, commits: Mapping[Key, int]) -> Shown | None:
        table = opened.entry.head.pair_rows()
        above = opened.upto
        upto = np.array(
            [commits.get(key, 0) if key in opened.waiting else 0 for key in opened.keys], np.uint64
        )
        upto = opened.upto = np.maximum(upto, above)
        retracted = tuple(
            end
            for key, first, last in zip(
                opened.keys, table["first"].tolist(), table["last"].tolist(), strict=True
            )
            for end in self._retracted.get(key, ())
            if end.first <= last and end.last >= first
        )
        self._stop_waiting(opened, table, retracted)
        if not ((upto >= table["first"]) & (upto > above)).any():
            return None
        whole = not retracted and (upto >= table["last"]).all() and (above < table["first"]).all()
        return Shown(*opened.entry, bool(whole), above, upto, retracted)

    def _stop_waiting(
        self, opened: _Open, table: NDArray[np.void], retracted: Sequence[SpanEnd]
    ) -> None:
        """For the pairs of which nothing more can come."""
        limits = opened.upto.tolist()
        for at, (place, producer, first, last, _) in enumerate(table.tolist()):
            key, limit = (place, producer), limits[at]
            done = limit >= last or any(
                (end.place, end.producer) == key
                and end.last >= last
                and (end.first <= first or end.last_commit <= max(limit, first - 1))
                for end in retracted
            )
            if done and key in opened.waiting:
                self._let_go(key, opened.entry.position)
                self._wait_no_more(opened, key)

    def _stop(self, places: set[int]) -> None:
        """Nothing more is shown of these."""
        if not places:
            return
        for key in [key for key in self._by_key if key[0] in places]:
            self._retracted.pop(key, None)
            for position in self._by_key.pop(key):
                self._wait_no_more(self.open[position], key)
        for place in places:
            del self._stopping[place]

    def _wait_no_more(self, opened: _Open, key: Key) -> None:
        opened.waiting.discard(key)
        if not opened.waiting:
            del self.open[opened.entry.position]
            self._closed.append(opened.entry.position)

    def _let_go(self, key: Key, position: int) -> None:
        """Of a block, and of the retractions that concern none but it."""
        blocks = self._by_key[key]
        del blocks[position]
        if not blocks:
            del self._by_key[key]
            self._retracted.pop(key, None)
        elif retracted := self._retracted.get(key):
            oldest = next(iter(blocks.values()))
            self._retracted[key] = [end for end in retracted if end.last >= oldest]


def _rows(head: BlockHead) -> list[tuple[int, int, int, int, int]]:
    rows: list[tuple[int, int, int, int, int]] = head.pair_rows().tolist()
    return rows


class BlockLoader:
    """The documents of what is shown."""

    def __init__(self, body: Callable[[int], Any], schemas: Mapping[BindingTag, pa.Schema]) -> None:
        """`body` finds a whole block, encoded, by its position."""
        self._body = body
        self._schemas = schemas

    def encoded(self, shown: Shown) -> Iterator[tuple[int, Any]]:
        """How many rows are shown, and those rows, if there are any."""
        if shown.whole:
            yield shown.head.rows, self._body(shown.position)
        elif (batch := self.load(shown)).num_rows:
            yield batch.num_rows, batch.serialize()

    def load(self, shown: Shown) -> pa.RecordBatch:
        """The rows that are shown."""
        body, schema = self._body(shown.position), self._schemas[shown.head.binding]
        try:
            return shown.select(decode_block(body, schema))
        except (pa.ArrowException, OSError) as error:
            raise StorageError(
                f"a block of the Queue cannot be read at {shown.position}: {error}",
                do="the Session must be opened again",
            ) from error
