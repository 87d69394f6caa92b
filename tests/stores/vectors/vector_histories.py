"""Random histories of a vector store beside a dict that says what it must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.settings import VectorSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.vectors.distance import Metric, Vectors, distances
from headrace.stores.vectors.filters import Between
from headrace.stores.vectors.vector_storage import (
    ChunkCodec,
    read_centroids,
    read_chunks,
    read_dead,
    read_state,
)
from headrace.stores.vectors.vector_store import VectorStore

DIMENSION = 6
METADATA = pa.schema([("size", pa.int64()), ("color", pa.string())])
SMALL = VectorSettings(
    list_rows=8, tail_rows_max=24, probe_rows=48, exact_rows_max=10, garbage_rows_min=16
)
"""Lists of so few rows that short histories split, merge and dissolve them."""
TASK = "fill"


class HistoryKind(StrEnum):
    UPSERT = "rows were written"
    REPEATED_ID = "a batch named an id twice"
    DELETE = "rows were deleted"
    DELETE_MOST = "most rows were deleted"
    FLUSH = "a flush"
    APPLY = "a checkpoint was applied"
    REPLAY = "a checkpoint was applied twice"
    REOPEN = "the store was opened again"
    LISTS = "there were posting lists"
    DISSOLVED = "all posting lists went away"
    COMPACTED = "memory was compacted"


@dataclass
class VectorHistory:
    """One history: `step` changes store and dict alike, `check` compares them."""

    seed: int
    open_kv: Callable[[], KeyValueStore]
    metric: Metric = Metric.L2
    counts: Counter[HistoryKind] = field(default_factory=Counter)
    rows: dict[str, tuple[Vectors, int | None, str]] = field(default_factory=dict)
    named: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """Every internal id that storage ever held, with what it named."""
    next_row: int = 1
    checkpoints: int = 0
    recalls: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.kv = self.open_kv()
        self.store = VectorStore.create(self.kv, DIMENSION, self.metric, METADATA, SMALL)
        self.centers = self.rng.standard_normal((12, DIMENSION)).astype(np.float32)
        self.store.take(TASK, "g1")

    def step(self) -> None:
        steps = [self.upsert, self.upsert, self.upsert, self.delete, self.flush, self.apply]
        chance = self.rng.random()
        if chance < 0.04:
            self.reopen()
        elif chance < 0.08:
            self.delete_most()
        else:
            steps[self.rng.integers(len(steps))]()

    # What happens

    def vectors(self, count: int) -> Vectors:
        """Clusters, some of whose vectors are equal."""
        near = self.centers[self.rng.integers(len(self.centers), size=count)]
        noise = self.rng.standard_normal((count, DIMENSION)).astype(np.float32)
        return near + 0.2 * noise * (self.rng.random((count, 1)) < 0.9)

    def _some_rows(self) -> pa.RecordBatch:
        count = int(self.rng.integers(1, 40))
        ids = [f"id-{number}" for number in self.rng.integers(0, 300, count)]
        vectors = self.vectors(count).astype(np.float32)
        sizes = [None if s == 0 else int(s) for s in self.rng.integers(0, 10, count)]
        colors = [f"c{c}" for c in self.rng.integers(0, 4, count)]
        deleted = (self.rng.random(count) < 0.1).tolist()
        for row in zip(ids, vectors, sizes, colors, deleted, strict=True):
            name, vector, size, color, is_deleted = row
            if is_deleted:
                self.rows.pop(name, None)
            else:
                self.rows[name] = vector, size, color
        self.counts[HistoryKind.REPEATED_ID] += len(set(ids)) < count
        return pa.RecordBatch.from_pydict(
            {
                "id": ids,
                "vector": pa.array(vectors.tolist(), pa.list_(pa.float32())),
                "size": pa.array(sizes, pa.int64()),
                "color": colors,
                "_deleted": deleted,
            }
        )

    def upsert(self) -> None:
        self.counts[HistoryKind.UPSERT] += 1
        self.store.write(self._some_rows())

    def delete(self) -> None:
        self.counts[HistoryKind.DELETE] += 1
        self._delete(int(self.rng.integers(1, 20)))

    def delete_most(self) -> None:
        self.counts[HistoryKind.DELETE_MOST] += 1
        self._delete(len(self.rows) * 9 // 10)

    def _delete(self, count: int) -> None:
        names = [*self.rows, "nobody"]
        gone = [names[i] for i in self.rng.permutation(len(names))[:count]]
        self.store.delete(gone)
        for name in gone:
            self.rows.pop(name, None)

    def flush(self) -> None:
        self.counts[HistoryKind.FLUSH] += 1
        used = self.store.view().snapshot.matrix.rows.size
        lists = self.store.stat()["lists"]
        self.store.flush()
        self.counts[HistoryKind.COMPACTED] += self.store.view().snapshot.matrix.rows.size < used
        self.counts[HistoryKind.LISTS] += self.store.stat()["lists"] != 0
        self.counts[HistoryKind.DISSOLVED] += lists != 0 and self.store.stat()["lists"] == 0

    def apply(self) -> None:
        self.counts[HistoryKind.APPLY] += 1
        self.checkpoints += 1
        rows, checkpoint = self._some_rows(), StoreCheckpoint(TASK, "g1", self.checkpoints)
        assert self.store.apply(rows, checkpoint)
        if self.rng.random() < 0.3:
            self.counts[HistoryKind.REPLAY] += 1
            assert not self.store.apply(rows, checkpoint)

    def reopen(self) -> None:
        self.counts[HistoryKind.REOPEN] += 1
        self.store.close()
        self.kv = self.open_kv()
        self.store = VectorStore(self.kv, SMALL)
        assert self.store.take(TASK, "g1") == self.checkpoints

    # What must hold

    def check(self) -> None:
        self._check_reads(fresh=True)
        self.flush()
        self._check_reads(fresh=False)
        self._check_stored()
        self._check_lists()

    def _check_reads(self, *, fresh: bool) -> None:
        view = self.store.view(fresh=fresh)
        scanned = [row for batch in view.scan(None, None) for row in batch.to_pylist()]
        assert len(scanned) == len(self.rows)
        assert {row["id"]: _told(row) for row in scanned} == {
            name: (vector.tolist(), size, color)
            for name, (vector, size, color) in self.rows.items()
        }
        names = [*list(self.rows)[::-3], "nobody", *list(self.rows)[:1]]
        got = view.get(names)
        assert got.column("id").to_pylist() == [name for name in names if name in self.rows]
        self._check_search(fresh)

    def _check_search(self, fresh: bool) -> None:
        query = self.vectors(1)[0]
        k = int(self.rng.choice([1, 10, 400]))
        below = int(self.rng.integers(1, 12))
        for kept in (None, Between("size", below=below)):
            names = [
                name
                for name, (_, size, _) in self.rows.items()
                if kept is None or (size is not None and size < below)
            ]
            exact = self.store.search(query, k, kept, exact=True, fresh=fresh)
            self._check_nearest(query, k, names, exact, is_exact=True)
            found = self.store.search(query, k, kept, fresh=fresh)
            self._check_nearest(query, k, names, found, is_exact=len(names) <= SMALL.exact_rows_max)
            if len(exact):
                near = set(exact.column("id").to_pylist()) & set(found.column("id").to_pylist())
                self.recalls.append(len(near) / len(exact))

    def _check_nearest(
        self, query: Vectors, k: int, names: list[str], found: pa.RecordBatch, *, is_exact: bool
    ) -> None:
        answer = found.column("id").to_pylist()
        away = found.column("distance").to_numpy()
        assert len(set(answer)) == len(answer)
        assert set(answer) <= set(names)
        assert (np.diff(away) >= 0).all()
        assert away == _approx(self._away(query, answer))
        if is_exact:
            assert away == _approx(np.sort(self._away(query, names))[:k])
        assert len(answer) == min(k, len(names))

    def _away(self, query: Vectors, names: list[str]) -> Any:
        if not names:
            return np.empty(0)
        return distances(self.metric, np.stack([self.rows[each][0] for each in names]), query)

    def _check_stored(self) -> None:
        """Storage holds each live row once, and no internal id ever names a second row."""
        codec = ChunkCodec(self.store.vector_schema)
        with self.kv.snapshot() as stored:
            dead = set(read_dead(stored).numbers.tolist())
            live: list[str] = []
            held: set[int] = set()
            state, lists = read_state(stored), {0, *read_centroids(stored, DIMENSION)}
            for number, chunk, contents in read_chunks(stored):
                assert number in lists
                assert chunk < state.next_chunk
                batch = codec.decode(contents, "")
                vectors = codec.vectors(batch)
                for row, name, vector in zip(
                    codec.numbers(batch).tolist(), codec.names(batch), vectors, strict=True
                ):
                    assert self.named.setdefault(row, (name, vector.tobytes())) == (
                        name,
                        vector.tobytes(),
                    )
                    assert row not in held
                    held.add(row)
                    if row not in dead:
                        live.append(name)
        assert lists == self.store.view().snapshot.lists.lists.keys()
        assert sorted(live) == sorted(self.rows)
        assert dead <= held
        assert max(held, default=0) < state.next_row
        assert state.next_row >= self.next_row
        self.next_row = state.next_row

    def _check_lists(self) -> None:
        lists = self.store.view().snapshot.lists
        assert lists.lists.keys() == {0, *lists.centroids}
        for number, each in lists.lists.items():
            assert each.live <= (SMALL.tail_rows_max if number == 0 else 2 * SMALL.list_rows)
            assert each.stored - each.live < max(32, each.live + 1)
            sizes = [chunk.size for chunk in each.chunks]
            assert all(2 * later <= earlier for earlier, later in pairwise(sizes))


def _told(row: dict[str, Any]) -> tuple[list[float], int | None, str]:
    return row["vector"], row["size"], row["color"]


def _approx(values: Any) -> Any:
    return pytest.approx(values, rel=1e-9, abs=1e-9)


def run(history: VectorHistory, steps: int) -> None:
    """Run a history and close its store; what fails says the seed."""
    try:
        for number in range(steps):
            history.step()
            if number % 4 == 3:
                history.check()
        history.check()
    except BaseException as error:
        error.add_note(f"history of seed {history.seed}, {history.metric}, {steps} steps")
        raise
    finally:
        history.store.close()
