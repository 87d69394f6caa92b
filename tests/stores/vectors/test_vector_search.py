"""How much a search scores, and that no way of scoring loses a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.settings import VectorSettings
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.vectors import vector_search
from headrace.stores.vectors.distance import Vectors
from headrace.stores.vectors.vector_search import SearchEffort, VectorSearch
from headrace.stores.vectors.vector_snapshot import VectorSnapshot
from headrace.stores.vectors.vector_store import VectorStore

ROWS = 200
SETTINGS = VectorSettings(list_rows=4, tail_rows_max=5)


@pytest.fixture(scope="module")
def snapshot() -> Iterator[VectorSnapshot]:
    """Rows on a line, most of them in lists of at most 8."""
    with VectorStore.create(MemoryKeyValueStore(), 2, "l2", settings=SETTINGS) as store:
        for rows in (range(ROWS - 5), range(ROWS - 5, ROWS)):
            store.upsert([f"{row}" for row in rows], [[row, 1] for row in rows])
            store.flush()
        found = store.view().snapshot
        assert found.lists.lists[0].live == 5
        yield found


def query(at: float) -> Vectors:
    return np.array([at, 1], np.float32)


@pytest.mark.parametrize(("exact_rows_max", "is_exact"), [(ROWS, True), (ROWS - 1, False)])
def test_so_many_rows_are_all_scored_and_no_more(
    snapshot: VectorSnapshot, *, exact_rows_max: int, is_exact: bool
) -> None:
    search = VectorSearch(snapshot, snapshot.alive, SearchEffort(10, exact_rows_max))
    assert (search.nearest(query(50), 1).scored == ROWS) == is_exact


@pytest.mark.parametrize("probe_rows", [1, 10, 40])
def test_as_many_rows_of_lists_are_scored_as_were_asked_for(
    snapshot: VectorSnapshot, probe_rows: int
) -> None:
    search = VectorSearch(snapshot, snapshot.alive, SearchEffort(probe_rows, 0))
    for at in range(0, ROWS, 7):
        of_lists = search.nearest(query(at), 1).scored - 5
        wanted = max(2, probe_rows)
        assert wanted <= of_lists <= wanted + 2 * SETTINGS.list_rows


def test_a_search_finds_k_rows_that_fit_however_few_do(snapshot: VectorSnapshot) -> None:
    kept = np.arange(ROWS) % 10 == 0
    search = VectorSearch(snapshot, kept, SearchEffort(1, 0))
    for k in (1, 10, 20, 30):
        found = search.nearest(query(50), k)
        assert len(found.rows) == min(k, 20)
        assert kept[found.rows].all()


def test_gathered_rows_have_the_same_distances(
    snapshot: VectorSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = VectorSearch(snapshot, snapshot.alive, None).nearest(query(77.2), 9)
    monkeypatch.setattr(vector_search, "_GATHER_SHARE", 1.0)
    monkeypatch.setattr(vector_search, "_GATHERED_ROWS", 7)
    for at in range(0, ROWS, 7):
        found = VectorSearch(snapshot, snapshot.alive, None).nearest(query(at), 3)
        assert found.distances.tolist()[:2] == [0.0, 1.0]
    found = VectorSearch(snapshot, snapshot.alive, None).nearest(query(77.2), 9)
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.distances.tolist() == expected.distances.tolist()
