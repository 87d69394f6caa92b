"""Chooses the journal of each document, by its partition values and then by the hash of its key.

Documents of equal keys go to the same journal, so a producer's order holds per key.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pyarrow as pa

from headrace.errors import DocumentError
from headrace.ids import JournalId
from headrace.journal.collection import Collection
from headrace.journal.contract import Journals
from headrace.journal.documents.keyhash import key_hash
from headrace.journal.names import escape_value

_HALF = np.uint64(32)
_PARTITION_BYTES_MAX = 2048


class Partitioner:
    """Remembers the journals of each partition, and creates those that are missing."""

    def __init__(self, journals: Journals) -> None:
        self.journals = journals
        self._known: dict[tuple[int, tuple[str, ...]], list[JournalId]] = {}
        self._turn = count()

    def forget(self) -> None:
        """Look journals up again: some may have been deleted."""
        self._known.clear()

    def partition(
        self, collection: Collection, batch: pa.RecordBatch
    ) -> Iterator[tuple[JournalId, pa.RecordBatch]]:
        """Split a batch into parts for one journal each; a part keeps the order of documents."""
        parts = list(_partitions(collection, batch))
        known = self._look_up(collection, [values for values, _ in parts])
        for values, part in parts:
            journals = known[values]
            if len(journals) == 1:
                yield journals[0], part
            elif not collection.key:
                yield journals[next(self._turn) % len(journals)], part
            else:
                yield from _by_key(collection, part, journals)

    def _look_up(
        self, collection: Collection, partitions: list[tuple[str, ...]]
    ) -> dict[tuple[str, ...], list[JournalId]]:
        # Look them all up before anything else: another thread may forget them meanwhile.
        found = {values: self._known.get((collection.id, values), []) for values in partitions}
        unknown = [values for values, ids in found.items() if not ids]
        if unknown:
            created = iter(self.journals.create_journals(collection.name, collection.id, unknown))
            for values in unknown:
                found[values] = [next(created).id for _ in range(collection.journals)]
                self._known[collection.id, values] = found[values]
        return found


def _partitions(
    collection: Collection, batch: pa.RecordBatch
) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    if not collection.partition_by:
        yield (), batch
        return
    code = np.zeros(batch.num_rows, np.int64)
    for field in collection.partition_by:
        encoded = batch.column(field).dictionary_encode(null_encoding="encode")
        code = code * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        # Renumber the codes, so that they stay below the number of documents for any fields.
        code = np.unique(code, return_inverse=True)[1]
    for _, part in _split(batch, code):
        values = tuple(escape_value(part[field][0].as_py()) for field in collection.partition_by)
        if sum(map(len, values)) > _PARTITION_BYTES_MAX:
            raise DocumentError(
                f"the partition values {values[0][:32]!r}… have {sum(map(len, values))} bytes",
                do=f"keep them below {_PARTITION_BYTES_MAX}: they are part of a journal's name",
            )
        yield values, part


def _by_key(
    collection: Collection, batch: pa.RecordBatch, journals: list[JournalId]
) -> Iterator[tuple[JournalId, pa.RecordBatch]]:
    """Split a batch by key: journal i of n takes the i-th of n equal ranges of key hashes."""
    high = key_hash(batch, collection.key) >> _HALF
    which = (high * np.uint64(len(journals))) >> _HALF
    for number, part in _split(batch, which.astype(np.int64)):
        yield journals[number], part


def _split(batch: pa.RecordBatch, code: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each code with its rows, in their order."""
    if not len(code):
        return
    if (code == code[0]).all():
        yield int(code[0]), batch
        return
    order = np.argsort(code, kind="stable")
    sorted_code = code[order]
    rows = batch.take(pa.array(order))
    starts = np.flatnonzero(np.diff(sorted_code, prepend=sorted_code[0] - 1))
    for start, end in zip(starts, [*starts[1:], len(code)], strict=True):
        yield int(sorted_code[start]), rows.slice(start, end - start)
