"""Brings a vector store into memory: when it is opened, and when too much of it is garbage."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headrace.errors import DataError
from headrace.stores.kv.contract import KeyValueSnapshot
from headrace.stores.vectors.distance import Positions
from headrace.stores.vectors.posting_lists import TAIL, ListChunk, PostingList, PostingLists
from headrace.stores.vectors.row_table import RowTable
from headrace.stores.vectors.vector_matrix import VectorMatrix
from headrace.stores.vectors.vector_rows import VectorSchema, no_columns
from headrace.stores.vectors.vector_snapshot import VectorSnapshot
from headrace.stores.vectors.vector_storage import (
    ChunkCodec,
    DeadRows,
    NextNumbers,
    check_rows,
    read_centroids,
    read_chunks,
    read_dead,
    read_state,
)


@dataclass(slots=True)
class LoadedVectors:
    """Everything of a store in memory. The thread that flushes owns all but the snapshot."""

    table: RowTable
    matrix: VectorMatrix
    dead: DeadRows
    state: NextNumbers
    snapshot: VectorSnapshot


def load(stored: KeyValueSnapshot, schema: VectorSchema) -> LoadedVectors:
    """Read a store. Raises DataError if it is not what flushes wrote."""
    codec, matrix = ChunkCodec(schema), VectorMatrix(schema.dimension)
    chunks: dict[int, list[ListChunk]] = {TAIL: []}
    batches: list[pa.RecordBatch] = []
    for number, chunk, contents in read_chunks(stored):
        batch = codec.decode(contents, f"chunk {chunk} of list {number}")
        start = matrix.used
        matrix.append(codec.vectors(batch), np.zeros(len(batch), np.int64))
        chunks.setdefault(number, []).append(ListChunk(chunk, start, matrix.used))
        batches.append(batch.drop_columns(["vector"]))
    state, centroids = read_state(stored), read_centroids(stored, schema.dimension)
    dead = read_dead(stored)
    numbers = np.concatenate([np.empty(0, np.int64), *map(codec.numbers, batches)])
    check_rows(numbers, state.next_row, chunks, {TAIL, *centroids})
    table, order = _table(schema, codec, batches, numbers)
    rows = np.empty(len(order), np.int64)
    rows[order] = np.arange(len(order))
    matrix.name_rows(rows)
    alive = ~np.isin(numbers[order], dead.numbers)
    _check_names(table, alive, dead.numbers, numbers)
    lists = {number: PostingList(tuple(each)) for number, each in chunks.items()}
    lists |= {number: PostingList() for number in centroids if number not in lists}
    snapshot = _snapshot(table, matrix, alive, PostingLists(lists, centroids))
    return LoadedVectors(table, matrix, dead, state, snapshot)


def _table(
    schema: VectorSchema, codec: ChunkCodec, batches: list[pa.RecordBatch], numbers: Positions
) -> tuple[RowTable, Positions]:
    table, order = RowTable(schema), np.argsort(numbers)
    if batches:
        joined = pa.concat_batches(batches).take(pa.array(order))
        metadata = codec.metadata(joined) if schema.metadata else no_columns(len(order))
        table.append(codec.names(joined), numbers[order], metadata)
    return table, order


def _check_names(table: RowTable, alive: np.ndarray, dead: Positions, numbers: Positions) -> None:
    names = table.names(np.flatnonzero(alive))
    if len(set(names.tolist())) < len(names):
        raise DataError(
            "the vector store is damaged: an id has two rows", do="restore it from a copy"
        )
    if not np.isin(dead, numbers).all():
        raise DataError(
            "the vector store is damaged: a row is dead that no chunk holds",
            do="restore it from a copy",
        )


def compacted(loaded: LoadedVectors) -> LoadedVectors:
    """Return the same in less memory: without rows that no chunk holds, nor slots that none uses.

    Readers of older snapshots keep what they have.
    """
    old = loaded.snapshot
    runs = [(number, chunk) for number, each in old.lists.lists.items() for chunk in each.chunks]
    empty = np.empty(0, np.int64)
    slots = np.concatenate([empty, *(np.arange(each.start, each.stop) for _, each in runs)])
    rows = old.matrix.rows[slots]
    held = np.sort(rows)
    table = RowTable(old.schema)
    numbers = old.table.numbers(held)
    table.append(old.table.names(held), numbers, old.table.metadata(held))
    matrix = VectorMatrix(old.schema.dimension)
    matrix.append(old.matrix.vectors[slots], np.searchsorted(held, rows))
    lists = {number: PostingList() for number in old.lists.lists}
    start = 0
    for number, chunk in runs:
        moved = ListChunk(chunk.number, start, start + chunk.size)
        lists[number] = PostingList((*lists[number].chunks, moved))
        start = moved.stop
    moved_lists = PostingLists(lists, old.lists.centroids)
    snapshot = _snapshot(table, matrix, old.alive[held], moved_lists)
    return LoadedVectors(table, matrix, loaded.dead, loaded.state, snapshot)


def _snapshot(
    table: RowTable, matrix: VectorMatrix, alive: np.ndarray, lists: PostingLists
) -> VectorSnapshot:
    """Return a snapshot of all rows: where each one is follows from the chunks."""
    slots = np.zeros(table.count, np.int64)
    list_of = np.zeros(table.count, np.int64)
    view = matrix.view()
    for number, each in lists.lists.items():
        live = 0
        for chunk in each.chunks:
            rows = view.rows[chunk.start : chunk.stop]
            slots[rows] = np.arange(chunk.start, chunk.stop)
            list_of[rows] = number
            live += int(np.count_nonzero(alive[rows]))
        lists.lists[number] = replace(each, live=live)
    memory_bytes = table.nbytes + matrix.nbytes
    return VectorSnapshot(
        table.schema, table, table.count, alive, slots, list_of, view, lists, memory_bytes
    )
