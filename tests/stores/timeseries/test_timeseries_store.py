"""What a store keeps of what is written, across flushes and openings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.timeseries.series import LabelMatcher, MatchKind
from headrace.stores.timeseries.timeseries_store import TimeSeriesStore
from tests.stores.timeseries.sample_rows import HOUR_MS, all_samples, rows_of

NOW_MS = 500_000 * HOUR_MS

OpenStore = Callable[[], TimeSeriesStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    opened: list[TimeSeriesStore] = []

    def open_it() -> TimeSeriesStore:
        kv = LmdbKeyValueStore(tmp_path / "store")
        store = TimeSeriesStore(kv, now_ms=lambda: NOW_MS)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()


def test_what_was_flushed_is_there_after_opening_again(open_store: OpenStore) -> None:
    store = open_store()
    epoch = store.write(rows_of([("a", 1, 1.0), ("b", HOUR_MS, 2.0), ("a", HOUR_MS, 3.0)]))
    store.flush(epoch)
    expected = {"a": [(1, 1.0), (HOUR_MS, 3.0)], "b": [(HOUR_MS, 2.0)]}
    assert all_samples(store) == expected
    store.close()
    assert all_samples(open_store()) == expected


def test_of_two_samples_at_the_same_time_the_later_write_counts(open_store: OpenStore) -> None:
    store = open_store()
    store.write(rows_of([("a", 1, 1.0), ("a", 1, 2.0), ("a", 2, 5.0)]))
    store.flush()
    assert all_samples(store) == {"a": [(1, 2.0), (2, 5.0)]}
    store.write(rows_of([("a", 1, 3.0)]))
    store.write(rows_of([("a", 1, 4.0)]))
    store.flush()
    assert all_samples(store) == {"a": [(1, 4.0), (2, 5.0)]}


# proves G24
def test_a_reader_sees_flushed_samples_and_a_fresh_one_all_that_is_written(
    open_store: OpenStore,
) -> None:
    store = open_store()
    store.write(rows_of([("a", 1, 1.0)]))
    store.flush()
    before = store.reader()
    store.write(rows_of([("a", 2, 2.0), ("b", HOUR_MS, 1.0), ("a", 1, 9.0)]))
    assert all_samples(store.reader()) == {"a": [(1, 1.0)]}
    fresh = store.reader(fresh=True)
    written = {"a": [(1, 9.0), (2, 2.0)], "b": [(HOUR_MS, 1.0)]}
    assert all_samples(fresh) == written
    assert [dict(each)["__name__"] for each in fresh.series()] == ["a", "b"]
    assert fresh.label_values("__name__") == ["a", "b"]
    store.flush()
    assert all_samples(store) == written
    assert all_samples(fresh) == written
    assert all_samples(before) == {"a": [(1, 1.0)]}


def test_select_finds_series_by_all_matchers(open_store: OpenStore) -> None:
    store = open_store()
    store.write(
        rows_of(
            [("up", 1, 1.0), ("up", 1, 2.0), ("down", 1, 3.0)],
            job=["api", "db", "api"],
            zone=["x", None, ""],
        )
    )
    store.flush()

    def found(*matchers: tuple[str, str, str]) -> list[float]:
        made = [LabelMatcher(name, MatchKind(kind), value) for name, kind, value in matchers]
        return sorted(store.select(made, 0, 9, 9).values.tolist())

    assert found(("__name__", "=", "up")) == [1.0, 2.0]
    assert found(("__name__", "=", "up"), ("job", "=~", "d.")) == [2.0]
    assert found(("job", "!=", "api")) == [2.0]
    assert found(("zone", "=", "")) == [2.0, 3.0]
    assert found(("zone", "!=", "")) == [1.0]
    assert found(("zone", "!~", "y|")) == [1.0]
    assert found(("none", "=", ""), ("job", "!~", "ap.*")) == [2.0]
    assert found(("none", "=~", ".+")) == []
    assert store.label_names() == ["__name__", "job", "zone"]
    assert store.label_values("job") == ["api", "db"]
    assert store.label_values("job", [("__name__", "=", "down")]) == ["api"]


def test_values_that_come_and_go_are_seen_at_once(open_store: OpenStore) -> None:
    """What is remembered of a label belongs to one state of the index."""
    store = open_store()
    expression = [LabelMatcher("job", MatchKind.MATCHES, "a.*")]
    earlier = []
    for number in range(4):
        store.write(rows_of([("up", 1, 1.0)], job=[f"a{number}"]))
        store.flush()
        earlier.append(store.reader())
        for count, reader in enumerate(earlier, 1):
            assert len(reader.select(expression, 0, 9, 9).labels) == count
            assert reader.label_values("job") == [f"a{each}" for each in range(count)]
