"""Finds in a Queue's file the documents that each checkpoint makes visible. Pure.

A document is visible once its clock is at or below its producer's last commit in its place, unless
a rollback retracted it. Slices send nothing that was committed before the Session's first
checkpoint, so the reader needs to know nothing from before it.

For each checkpoint the reader visits the entries that came since the one before, and the open
blocks: those of which it may still show more. It keeps only the heads of open blocks, and the
retractions that concern them, so its memory grows with open transactions and not with documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.arrow_numbers import arrow_numbers, numpy_numbers
from headrace.errors import StorageError
from headrace.frontier import BindingTag, Frontier
from headrace.shuffle.block import BlockHead, SpanEnd, decode_block

Key = tuple[int, int]
"""A place and a producer."""


class BlockEntry(NamedTuple):
    """A block in the file."""

    position: int
    head: BlockHead


class RetractionEntry(NamedTuple):
    """Spans that were rolled back. It follows the blocks that hold their documents."""

    position: int
    retracted: tuple[SpanEnd, ...]


class StopEntry(NamedTuple):
    """Places that the Slice has stopped reading. It follows all of their blocks."""

    position: int
    places: tuple[int, ...]
    last_checkpoint: int
    """The last checkpoint that may show documents of these places."""


Entry = BlockEntry | RetractionEntry | StopEntry


class Shown(NamedTuple):
    """The rows of a block that one checkpoint shows."""

    position: int
    head: BlockHead
    whole: bool
    """True if they are all rows of the block."""
    above: NDArray[np.uint64]
    upto: NDArray[np.uint64]
    """For each pair, the checkpoint shows the rows with clocks in (above, upto]."""
    retracted: tuple[SpanEnd, ...]
    """It does not show the rows of these spans."""

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the shown rows of the whole block `batch`."""
        if self.whole:
            return batch
        clocks = numpy_numbers(batch.column(batch.num_columns - 2))
        pairs = numpy_numbers(batch.column(batch.num_columns - 1))
        mask = (clocks > self.above[pairs]) & (clocks <= self.upto[pairs])
        if self.retracted:
            table = self.head.pair_rows()
            for end in self.retracted:
                pair = np.flatnonzero(
                    (table["place"] == end.place) & (table["producer"] == end.producer)
                )
                mask &= ~(np.isin(pairs, pair) & (clocks >= end.first) & (clocks <= end.last))
        return batch.filter(arrow_numbers(mask))


@dataclass(slots=True)
class _Open:
    """A block of which more may be shown."""

    entry: BlockEntry
    keys: list[Key]
    upto: NDArray[np.uint64]
    """For each pair, all rows up to this clock were shown or retracted."""
    waiting: set[Key]
    """The pairs of which more may be shown."""


class CheckpointChange(NamedTuple):
    """What a checkpoint shows, and which blocks it closes."""

    shown: list[Shown]
    """In the order of the Queue's file."""
    closed: list[int]
    """The positions of blocks of which nothing more will be shown."""


class QueueReader:
    """Keeps the open blocks of a Queue between checkpoints."""

    def __init__(self) -> None:
        self.open: dict[int, _Open] = {}
        """The blocks of which more may be shown, by position."""
        self._by_key: dict[Key, dict[int, int]] = {}
        """For each pair, its open blocks by position, with its least clock in each: ascending."""
        self._retracted: dict[Key, list[SpanEnd]] = {}
        self._stopping: dict[int, int] = {}
        """Stopped places, with the last checkpoint that may show documents of them."""
        self._closed: list[int] = []

    def advance(
        self, entries: Iterable[Entry], checkpoint: Frontier, number: int
    ) -> CheckpointChange:
        """Find what the checkpoint with this number shows.

        `entries` are those that came since the last call. They include all entries that Slices
        flushed before the Session made the checkpoint.
        """
        self._closed = []
        commits: dict[Key, int] = {
            (place, producer): commit
            for place, producer, commit, _ in checkpoint.producers.tolist()
        }
        touched = {position for key in commits for position in self._by_key.get(key, ())}
        for entry in entries:
            if isinstance(entry, BlockEntry):
                self._add(entry)
                touched.add(entry.position)
            elif isinstance(entry, StopEntry):
                self._stopping |= dict.fromkeys(entry.places, entry.last_checkpoint)
            else:
                for end in entry.retracted:
                    key = end.place, end.producer
                    if blocks := self._by_key.get(key):
                        self._retracted.setdefault(key, []).append(end)
                        touched |= blocks.keys()
        shown = [self._show(self.open[position], commits) for position in sorted(touched)]
        self._stop({place for place, last in self._stopping.items() if last <= number})
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
        """Return what the commits show of an open block; None if that is nothing."""
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
        """Stop waiting for the pairs of which nothing more can be shown."""
        limits = opened.upto.tolist()
        for limit, (place, producer, first, last, _) in zip(limits, table.tolist(), strict=True):
            key = place, producer
            done = limit >= last or any(
                (end.place, end.producer) == key
                and end.last >= last
                and (end.first <= first or end.last_commit <= max(limit, first - 1))
                for end in retracted
            )
            if done and key in opened.waiting:
                self._forget(key, opened.entry.position)
                self._remove_pair(opened, key)

    def _stop(self, places: set[int]) -> None:
        """Forget what the open blocks have of these places."""
        if not places:
            return
        for key in [key for key in self._by_key if key[0] in places]:
            self._retracted.pop(key, None)
            for position in self._by_key.pop(key):
                self._remove_pair(self.open[position], key)
        for place in places:
            del self._stopping[place]

    def _remove_pair(self, opened: _Open, key: Key) -> None:
        """Wait for the pair no more, and close the block if it was the last pair."""
        opened.waiting.discard(key)
        if not opened.waiting:
            del self.open[opened.entry.position]
            self._closed.append(opened.entry.position)

    def _forget(self, key: Key, position: int) -> None:
        """Forget that a pair has rows in a block, and the retractions that concern no other."""
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
    """Loads the documents that are shown."""

    def __init__(self, body: Callable[[int], Any], schemas: Mapping[BindingTag, pa.Schema]) -> None:
        """`body` returns the whole block at a position, encoded."""
        self._body = body
        self._schemas = schemas

    def encoded(self, shown: Shown) -> Iterator[tuple[int, Any]]:
        """Yield the number of rows that are shown, and these rows, if there are any."""
        if shown.whole:
            yield shown.head.rows, self._body(shown.position)
        elif (batch := self.load(shown)).num_rows:
            yield batch.num_rows, batch.serialize()

    def load(self, shown: Shown) -> pa.RecordBatch:
        """Return the rows that are shown."""
        body, schema = self._body(shown.position), self._schemas[shown.head.binding]
        try:
            return shown.select(decode_block(body, schema))
        except (pa.ArrowException, OSError) as error:
            raise StorageError(
                f"the Queue cannot read its block at {shown.position}: {error}",
                do="open another Session",
            ) from error
