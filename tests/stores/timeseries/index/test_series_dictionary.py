"""Ids of series: given once, written with their first samples, and never given again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest

from headrace.errors import StorageError
from headrace.settings import TimeSeriesSettings
from headrace.stores.kv.contract import WriteBatch, WriteSequence
from headrace.stores.kv.memory_store import MemoryKeyValueStore, MemorySnapshot
from headrace.stores.timeseries.index.series_dictionary import SeriesDictionary
from headrace.stores.timeseries.key_layout import SERIES_MOST, dictionary_key
from headrace.stores.timeseries.labels import encode_labels, fingerprint, make_labels
from headrace.stores.timeseries.sample_batch import SampleBatch, SampleDelta
from headrace.stores.timeseries.sample_flush import SampleFlush, load_state
from headrace.stores.timeseries.series import Labels
from headrace.stores.timeseries.timeseries_store import TimeSeriesStore
from tests.stores.timeseries.sample_rows import HOUR_MS, all_samples, rows_of
from tests.stores.timeseries.store_check import check_records

NOW_MS = 400_000 * HOUR_MS


class KeptStore(MemoryKeyValueStore):
    """Stays open for the next time-series store; the test says when its writes fail."""

    fails = False

    def write(self, batch: WriteBatch) -> WriteSequence:
        if self.fails:
            raise StorageError("the disk is full", do="free some space")
        return super().write(batch)

    def close(self) -> None:
        """Keep the entries."""


def ids_in(kv: MemoryKeyValueStore) -> dict[str, int]:
    with kv.snapshot() as snapshot:
        found = check_records(snapshot)
    return {dict(labels)["__name__"]: series for series, labels in found.items()}


# proves G26
def test_the_first_new_series_after_a_restart_gets_an_id_of_its_own() -> None:
    """The next id is the greatest and one, not the greatest."""
    kv = KeptStore()
    for count in range(1, 5):
        store = TimeSeriesStore(kv, now_ms=lambda: NOW_MS)
        store.write(rows_of([(f"m{number}", NOW_MS, 1.0) for number in range(count)]))
        store.close()
        assert ids_in(kv) == {f"m{number}": number + 1 for number in range(count)}


# proves G26
def test_ids_of_series_that_were_removed_are_not_given_again() -> None:
    kv = KeptStore()
    now_ms = NOW_MS
    settings = TimeSeriesSettings(retention_s=3600)
    store = TimeSeriesStore(kv, settings, now_ms=lambda: now_ms)
    store.write(rows_of([("a", NOW_MS, 1.0), ("b", NOW_MS, 1.0)]))
    store.flush()
    now_ms += 3 * HOUR_MS
    store.expire()
    assert ids_in(kv) == {}
    store.close()
    store = TimeSeriesStore(kv, settings, now_ms=lambda: now_ms)
    store.write(rows_of([("b", now_ms, 1.0), ("c", now_ms, 1.0)]))
    store.close()
    assert ids_in(kv) == {"b": 3, "c": 4}


# proves G26
def test_a_series_that_goes_and_comes_in_the_same_flush_stays() -> None:
    kv = KeptStore()
    now_ms = NOW_MS
    store = TimeSeriesStore(kv, TimeSeriesSettings(retention_s=3600), now_ms=lambda: now_ms)
    store.write(rows_of([("a", NOW_MS, 1.0), ("b", NOW_MS, 1.0)], job=["x", "x"]))
    store.flush()
    now_ms += 3 * HOUR_MS
    store.write(rows_of([("a", now_ms, 2.0), ("c", now_ms, 2.0)], job=["x", "x"]))
    store.flush()
    assert ids_in(kv) == {"a": 1, "c": 3}
    assert all_samples(store) == {"a": [(now_ms, 2.0)], "c": [(now_ms, 2.0)]}
    store.write(rows_of([("b", now_ms, 3.0)], job=["x"]))
    store.close()
    assert ids_in(kv) == {"a": 1, "c": 3, "b": 4}


# proves G25, G26
def test_a_flush_that_fails_leaves_no_id_behind() -> None:
    """An id that was given in memory alone would name samples without a series."""
    kv = KeptStore()
    store = TimeSeriesStore(kv, now_ms=lambda: NOW_MS)
    store.write(rows_of([("a", NOW_MS, 1.0)]))
    store.flush()
    kv.fails = True
    store.write(rows_of([("b", NOW_MS, 1.0)]))
    with pytest.raises(StorageError, match="the disk is full"):
        store.flush()
    with pytest.raises(StorageError, match="the disk is full"):
        store.write(rows_of([("c", NOW_MS, 1.0)]))
    assert all_samples(store) == {"a": [(NOW_MS, 1.0)]}
    with pytest.raises(StorageError, match="the disk is full"):
        store.close()
    kv.fails = False
    assert ids_in(kv) == {"a": 1}
    store = TimeSeriesStore(kv, now_ms=lambda: NOW_MS)
    store.write(rows_of([("c", NOW_MS, 1.0), ("b", NOW_MS, 1.0)]))
    store.close()
    assert ids_in(kv) == {"a": 1, "c": 2, "b": 3}


def test_a_batch_that_fails_is_not_remembered() -> None:
    kv = KeptStore()
    dictionary = SeriesDictionary(cached_max=9)
    flush = SampleFlush(kv, dictionary, lambda: None)
    state = load_state(kv)
    [series] = encoded("a")
    batch = SampleBatch([series], np.zeros(1, np.int64), np.array([NOW_MS]), np.ones(1))
    kv.fails = True
    with pytest.raises(StorageError, match="the disk is full"):
        flush.execute_flush(SampleDelta([batch]), state)
    assert dictionary.resolve([series], 1, state.snapshot).added == {series: 1}
    kv.fails = False
    flush.execute_flush(SampleDelta([batch]), state)
    assert dictionary.resolve([series], 2, state.snapshot).added == {}


def encoded(*names: str) -> list[bytes]:
    return [encode_labels(make_labels([("__name__", name)])) for name in names]


def test_a_dictionary_that_remembers_nothing_finds_all_ids_in_the_store() -> None:
    """What it forgets costs a look-up, and no id."""
    kv = MemoryKeyValueStore()
    next_series = 1
    dictionary = SeriesDictionary(cached_max=2)
    known: dict[bytes, int] = {}
    for number in range(20):
        series = encoded(f"m{number}", f"m{number // 2}", f"m{number}", "m0")
        batch = WriteBatch()
        with kv.snapshot() as snapshot:
            found = dictionary.resolve(series, next_series, snapshot)
            dictionary.put(batch, found.added, snapshot)
        kv.write(batch)
        dictionary.remember(found.added)
        next_series += len(found.added)
        for each, series_id in zip(series, found.ids.tolist(), strict=True):
            assert known.setdefault(each, series_id) == series_id
    assert sorted(known.values()) == list(range(1, 21))


class CountingSnapshot(MemorySnapshot):
    """Counts the keys that somebody looks up."""

    looked_up = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.looked_up += len(keys)
        return super().get_many(keys)


@pytest.mark.parametrize(("known", "looked_up"), [([2], 0), ([1, 1], 0), ([2, 1], 1), ([3], 3)])
def test_a_dictionary_remembers_so_many_series_and_no_more(
    known: list[int], looked_up: int
) -> None:
    series = encoded("a", "b", "c")[: sum(known)]
    ids = {each: number for number, each in enumerate(series, 1)}
    entries = {
        dictionary_key(fingerprint(each)): number.to_bytes(4, "big") for each, number in ids.items()
    }
    dictionary = SeriesDictionary(cached_max=2)
    left = iter(ids.items())
    for count in known:
        dictionary.remember(dict(islice(left, count)))
    snapshot = CountingSnapshot(WriteSequence(1), entries, sorted(entries))
    found = dictionary.resolve(series[-2:] if looked_up < 3 else series, 9, snapshot)
    assert not found.added
    assert snapshot.looked_up == looked_up


def test_the_last_id_is_given_and_none_after_it() -> None:
    kv = MemoryKeyValueStore()
    dictionary = SeriesDictionary(10)
    with kv.snapshot() as snapshot:
        found = dictionary.resolve(encoded("a"), SERIES_MOST, snapshot)
        assert found.ids.tolist() == [SERIES_MOST]
        with pytest.raises(StorageError, match="has used all 4294967295 ids"):
            dictionary.resolve(encoded("a", "b"), SERIES_MOST, snapshot)


# proves G26
def test_labels_that_join_to_the_same_text_are_two_series() -> None:
    kv = KeptStore()
    store = TimeSeriesStore(kv, now_ms=lambda: NOW_MS)
    store.write(rows_of([("m", NOW_MS, 1.0), ("m", NOW_MS, 2.0)], ab=["c", None], a=[None, "bc"]))
    store.flush()
    expected: list[Labels] = [(("__name__", "m"), ("a", "bc")), (("__name__", "m"), ("ab", "c"))]
    assert store.series() == expected
    store.close()
