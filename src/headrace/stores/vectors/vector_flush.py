"""Moves written rows into storage: data, ids, posting lists and deletions in one atomic batch."""

from __future__ import annotations

import numpy as np

from headrace.ingest.contract import FlushResult
from headrace.settings import VectorSettings
from headrace.stores.kv.contract import KeyValueStore, WriteBatch, WriteSequence
from headrace.stores.vectors.distance import Positions, Vectors
from headrace.stores.vectors.posting_lists import ListEditor, WrittenChunk
from headrace.stores.vectors.vector_delta import VectorDelta
from headrace.stores.vectors.vector_loader import LoadedVectors, compacted
from headrace.stores.vectors.vector_rows import VectorRows
from headrace.stores.vectors.vector_snapshot import VectorSnapshot
from headrace.stores.vectors.vector_storage import (
    STATE_KEY,
    ChunkCodec,
    NextNumbers,
    centroid_key,
    chunk_key,
)


class VectorFlush:
    """The flush handler of a vector store.

    What it appends to the table and the matrix lies behind what the readers of the last snapshot
    see. If the write fails, it stays there unseen: the coordinator flushes no more.
    """

    def __init__(
        self, store: KeyValueStore, loaded: LoadedVectors, settings: VectorSettings
    ) -> None:
        self._store = store
        self._loaded = loaded
        self._settings = settings
        self._codec = ChunkCodec(loaded.snapshot.schema)

    def execute_flush(
        self, delta: VectorDelta, snapshot: VectorSnapshot
    ) -> FlushResult[VectorSnapshot]:
        batch = WriteBatch()
        rows = delta.rows()
        if len(rows):
            snapshot = self._change(rows, snapshot, batch)
        batch.put_many(delta.records.items())
        sequence = self._store.write(batch)
        if len(rows):
            snapshot = self._without_garbage(snapshot)
        return FlushResult(snapshot, sequence)

    def wait_durable(self, sequence: int) -> None:
        self._store.wait_durable(WriteSequence(sequence))

    def _change(
        self, rows: VectorRows, snapshot: VectorSnapshot, batch: WriteBatch
    ) -> VectorSnapshot:
        """Put the rows into memory and into the batch; return the snapshot that shows them."""
        state, table = self._loaded.state, self._loaded.table
        upserts = rows.take(np.flatnonzero(~rows.deleted))
        earlier = snapshot.find(rows.names.tolist())
        replaced = earlier[earlier >= 0]
        numbers = np.arange(state.next_row, state.next_row + len(upserts))
        new = table.append(upserts.names, numbers, upserts.metadata)
        alive = np.concatenate([snapshot.alive, np.ones(len(new), np.bool_)])
        alive[replaced] = False

        def vectors_of(wanted: Positions) -> Vectors:
            found = np.empty((len(wanted), snapshot.schema.dimension), np.float32)
            is_new = wanted >= snapshot.count
            found[is_new] = upserts.vectors[wanted[is_new] - snapshot.count]
            found[~is_new] = snapshot.vectors(wanted[~is_new])
            return found

        lists = snapshot.lists.kill(snapshot.list_of[replaced])
        editor = ListEditor(
            snapshot.schema.metric,
            self._settings,
            snapshot.matrix,
            alive,
            vectors_of,
            state.next_list,
            state.next_chunk,
            lists.lists,
            dict(lists.centroids),
        )
        editor.place(new)
        written = editor.merge_chunks()
        self._loaded.state = NextNumbers(
            state.next_row + len(new), editor.next_list, editor.next_chunk
        )
        self._loaded.dead.add(table.numbers(replaced))
        self._forget(editor, batch)
        return self._write(editor, written, snapshot, batch)

    def _forget(self, editor: ListEditor, batch: WriteBatch) -> None:
        """Delete what the lists dropped, and bury the dead rows that no chunk holds any more."""
        table = self._loaded.table
        for (number, chunk), slots in editor.dropped.items():
            batch.delete(chunk_key(number, chunk))
            rows = editor.matrix.rows[slots.start : slots.stop]
            dead = rows[~editor.alive[rows]]
            self._loaded.dead.remove(table.numbers(dead))
        for number in editor.old_centroids:
            batch.delete(centroid_key(number))
        for number in editor.new_centroids:
            batch.put(centroid_key(number), editor.centroids[number].tobytes())

    def _write(
        self,
        editor: ListEditor,
        written: list[WrittenChunk],
        snapshot: VectorSnapshot,
        batch: WriteBatch,
    ) -> VectorSnapshot:
        loaded, table, matrix = self._loaded, self._loaded.table, self._loaded.matrix
        rows = np.concatenate([np.empty(0, np.int64), *(each.rows for each in written)])
        vectors = editor.vectors_of(rows)
        start = matrix.used
        taken = matrix.append(vectors, rows)
        columns = self._codec.batch(
            table.numbers(rows), table.names(rows), vectors, table.metadata(rows)
        )
        first = 0
        for each in written:
            chunk = columns.slice(first, len(each.rows))
            batch.put(chunk_key(each.list, each.number), self._codec.encode(chunk))
            first += len(each.rows)
        loaded.dead.put_changes(batch)
        batch.put(STATE_KEY, loaded.state.encode())
        slots, list_of = (
            np.concatenate([each, np.zeros(table.count - snapshot.count, np.int64)])
            for each in (snapshot.slots, snapshot.list_of)
        )
        slots[rows] = taken
        list_of[rows] = np.repeat(
            [each.list for each in written], [len(each.rows) for each in written]
        )
        lists = editor.settle(written, start)
        memory_bytes = table.nbytes + matrix.nbytes
        return VectorSnapshot(
            snapshot.schema,
            table,
            table.count,
            editor.alive,
            slots,
            list_of,
            matrix.view(),
            lists,
            memory_bytes,
        )

    def _without_garbage(self, snapshot: VectorSnapshot) -> VectorSnapshot:
        self._loaded.snapshot = snapshot
        used = sum(each.stored for each in snapshot.lists.lists.values())
        # Rows that no chunk holds are fewer: each of them had a slot in a chunk that was dropped.
        garbage = self._loaded.matrix.used - used
        is_short = snapshot.memory_bytes > self._settings.memory_bytes_max // 2
        worth = used // 4 if is_short else max(used, self._settings.garbage_rows_min)
        if garbage > worth:
            self._loaded = compacted(self._loaded)
        return self._loaded.snapshot
