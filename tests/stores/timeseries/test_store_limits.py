"""What a store refuses, what it leaves out, and what it removes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import (
    DataError,
    DocumentError,
    FencedError,
    QueryError,
    QueueFullError,
    UsageError,
    VersionError,
)
from headrace.settings import IngestSettings, TimeSeriesSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.kv.contract import WriteBatch, WriteSequence
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.timeseries import sample_reader
from headrace.stores.timeseries.input.arrow_samples import SCHEMA
from headrace.stores.timeseries.key_layout import CHUNKS, COUNTERS_KEY, StoreCounters
from headrace.stores.timeseries.labels import encode_labels
from headrace.stores.timeseries.sample_batch import (
    TIME_LEAST_MS,
    TIME_MOST_MS,
    MetricMetadata,
    SampleBatch,
    SampleDelta,
)
from headrace.stores.timeseries.series import LabelMatcher, MatchKind
from headrace.stores.timeseries.timeseries_store import TimeSeriesStore, open_timeseries
from tests.stores.timeseries.sample_rows import ALL_MS, HOUR_MS, all_samples, rows_of
from tests.stores.timeseries.store_check import check_records

NOW_MS = 480_000 * HOUR_MS

MakeStore = Callable[..., TimeSeriesStore]


@pytest.fixture
def make_store() -> Iterator[MakeStore]:
    made: list[TimeSeriesStore] = []

    def make(
        settings: TimeSeriesSettings | None = None,
        now_ms: Callable[[], int] = lambda: NOW_MS,
        ingest: IngestSettings | None = None,
    ) -> TimeSeriesStore:
        made.append(TimeSeriesStore(MemoryKeyValueStore(), settings, ingest=ingest, now_ms=now_ms))
        return made[-1]

    yield make
    for store in made:
        store.close()


def test_samples_far_in_the_future_are_refused_and_the_unit_is_suspected(
    make_store: MakeStore,
) -> None:
    store = make_store(TimeSeriesSettings(ahead_s=60))
    store.write(rows_of([("a", NOW_MS + 60_000, 1.0)]))
    with pytest.raises(DocumentError, match=r"sample 1 is at .* too far in the future; give times"):
        store.write(rows_of([("a", NOW_MS, 1.0), ("a", NOW_MS + 60_001, 1.0)]))
    with pytest.raises(DocumentError, match="too far in the future"):
        store.write(rows_of([("a", NOW_MS * 1000, 1.0)]))
    with pytest.raises(DocumentError, match="too far in the past"):
        store.write(rows_of([("a", TIME_LEAST_MS - 1, 1.0)]))
    store.write(rows_of([("a", TIME_LEAST_MS, 1.0), ("a", -1, 2.0)]))
    store.flush()
    found = store.select([], TIME_LEAST_MS, NOW_MS * 2, 9)
    assert found.timestamps.tolist() == [TIME_LEAST_MS, -1, NOW_MS + 60_000]


def test_a_write_that_is_refused_takes_nothing(make_store: MakeStore) -> None:
    store = make_store()
    for bad in (
        rows_of([("a", NOW_MS, 1.0), ("not a name", NOW_MS, 1.0)]),
        rows_of([("a", NOW_MS, 1.0), ("a", NOW_MS * 2, 1.0)]),
        rows_of([("a", NOW_MS, 1.0), ("a", NOW_MS, 1.0)], job=["x", "y" * (10 << 20)]),
    ):
        with pytest.raises(DocumentError):
            store.write(bad)
        store.take("task", "g")
        with pytest.raises(DocumentError):
            store.apply(bad, StoreCheckpoint("task", "g", 1))
    store.write(rows_of([("b", NOW_MS, 1.0)]))
    store.flush()
    assert all_samples(store) == {"b": [(NOW_MS, 1.0)]}
    assert store.take("task", "g") == 0


# The defects that the write coordinator was made for


# proves G24
def test_no_eviction_loses_a_delta_and_no_two_caches_diverge(make_store: MakeStore) -> None:
    """What is not flushed is in the coordinator alone, and all buckets have one snapshot."""
    none = TimeSeriesSettings(series_cached_max=0, chunk_cache_bytes=0)
    store = make_store(none)
    hours = range(0, -50, -1)
    for hour in hours:  # Many buckets, so that a cache of buckets would have to give some up.
        store.write(rows_of([("a", NOW_MS + hour * HOUR_MS, float(hour))]))
        fresh = all_samples(store.reader(fresh=True))
        assert len(fresh["a"]) == 1 - hour
    before = store.reader()
    assert all_samples(before) == {}
    store.flush()
    expected = {"a": [(NOW_MS + hour * HOUR_MS, float(hour)) for hour in reversed(hours)]}
    assert all_samples(store) == all_samples(store.reader(fresh=True)) == expected
    assert all_samples(before) == {}, "of all buckets, not of those that were in a cache"
    assert len(store.series()) == len(store.series(start=NOW_MS, end=NOW_MS)) == 1


# proves G26
def test_no_series_is_stored_without_a_sample(make_store: MakeStore) -> None:
    store = make_store()
    none, one = np.empty(0, np.int64), np.zeros(1, np.int64)
    names = [encode_labels((("__name__", name),)) for name in ("a", "b")]
    store.write_samples(SampleBatch(names, one + 1, one + NOW_MS, np.ones(1)))
    store.write_samples(SampleBatch(names[:1], none, none, np.empty(0)))
    store.flush()
    assert list(check_records(store.reader()._state.snapshot).values()) == [(("__name__", "b"),)]
    assert store.label_values("__name__") == ["b"]


# proves G26
def test_no_sample_is_stored_without_its_series() -> None:
    """Whatever batches reach storage, after each of them every sample has its series."""
    checked = 0

    class CheckedStore(MemoryKeyValueStore):
        def write(self, batch: WriteBatch) -> WriteSequence:
            nonlocal checked
            sequence = super().write(batch)
            with self.snapshot() as snapshot:
                check_records(snapshot)
            checked += 1
            return sequence

    flush_each = IngestSettings(flush_bytes=1)
    with closing(
        TimeSeriesStore(CheckedStore(), ingest=flush_each, now_ms=lambda: NOW_MS)
    ) as store:
        threads = [
            threading.Thread(
                target=lambda writer: [
                    store.write(rows_of([(f"m{number % 7}", NOW_MS - number, 1.0)], w=[writer]))
                    for number in range(30)
                ],
                args=[str(writer)],
            )
            for writer in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.flush()
        assert len(store.series()) == 21
    assert checked > 1


# Retention


def test_what_is_older_than_retention_is_not_shown_and_then_removed(
    make_store: MakeStore,
) -> None:
    now_ms = NOW_MS
    store = make_store(TimeSeriesSettings(retention_s=7200), now_ms=lambda: now_ms)
    store.write(
        rows_of([("old", now_ms, 1.0), ("both", now_ms, 2.0), ("both", now_ms + HOUR_MS, 3.0)])
    )
    store.flush()
    now_ms += 2 * HOUR_MS
    assert all_samples(store)["old"] == [(NOW_MS, 1.0)]
    now_ms += 1
    assert all_samples(store) == {"both": [(NOW_MS + HOUR_MS, 3.0)]}
    assert store.stat()["buckets"] == 2
    now_ms += HOUR_MS
    store.expire()
    assert store.stat() == {
        "series": 1,
        "samples": 1,
        "bytes": store.stat()["bytes"],
        "chunks": 1,
        "buckets": 1,
        "oldest": "2024-10-04T01:00:00.000Z",
        "newest": "2024-10-04T01:00:00.000Z",
        "pending_bytes": 0,
        "expired_samples": 0,
    }
    assert [dict(each)["__name__"] for each in store.series()] == ["both"]
    assert store.label_values("__name__") == ["both"]


# proves G26
def test_a_series_stays_if_the_flush_that_removes_its_last_hour_has_more_of_it(
    make_store: MakeStore,
) -> None:
    now_ms = NOW_MS
    store = make_store(TimeSeriesSettings(retention_s=3600), now_ms=lambda: now_ms)
    store.flush(store.write(rows_of([("stays", now_ms, 1.0), ("goes", now_ms, 1.0)])))
    now_ms += 2 * HOUR_MS + 1
    store.flush(store.write(rows_of([("stays", now_ms, 2.0)])))
    assert store.stat()["buckets"] == 1
    assert all_samples(store) == {"stays": [(now_ms, 2.0)]}
    kept = check_records(store.reader()._state.snapshot)
    assert list(kept.values()) == [(("__name__", "stays"),)]


def test_samples_that_come_too_late_are_counted_and_leave_no_series(
    make_store: MakeStore,
) -> None:
    store = make_store(TimeSeriesSettings(retention_s=3600))
    late = NOW_MS - HOUR_MS
    store.write(rows_of([("late", late - 1, 1.0), ("new", late, 1.0), ("new", late - 1, 1.0)]))
    store.flush()
    assert all_samples(store) == {"new": [(late, 1.0)]}
    assert store.label_values("__name__") == ["new"]
    assert store.stat()["expired_samples"] == 2


def test_opening_a_store_removes_what_is_beyond_retention(tmp_path: Path) -> None:
    with closing(open_timeseries(tmp_path / "store")) as store:
        store.write(rows_of([("old", 1, 1.0)]))
    settings = TimeSeriesSettings(retention_s=3600)
    with closing(open_timeseries(tmp_path / "store", settings)) as store:
        assert store.series() == []
        store.flush()
        assert store.stat()["chunks"] == 0
    with closing(open_timeseries(tmp_path / "store")) as store:
        assert all_samples(store) == {}


# Reading


def test_a_scan_shows_no_sample_beyond_retention_and_none_twice(make_store: MakeStore) -> None:
    half_ms = HOUR_MS // 2
    store = make_store(TimeSeriesSettings(retention_s=3600), now_ms=lambda: NOW_MS + half_ms)
    times = [NOW_MS - half_ms - 1, NOW_MS - half_ms, NOW_MS - 1, NOW_MS, NOW_MS + 1]
    store.write(rows_of([("a", time, 1.0) for time in times]))

    def scanned(*, fresh: bool) -> list[int]:
        batches = store.scan(fresh=fresh)
        return [
            round(row["timestamp"].timestamp() * 1000) for b in batches for row in b.to_pylist()
        ]

    assert scanned(fresh=True) == times[1:]
    store.flush()
    assert scanned(fresh=False) == scanned(fresh=True) == times[1:]


def test_chunks_are_read_in_groups_without_a_gap(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_reader, "_READ_AT_ONCE", 2)
    store = make_store()
    for number in range(5):
        store.write(rows_of([("a", NOW_MS + number, float(number))]))
        store.flush()
    assert all_samples(store) == {"a": [(NOW_MS + number, float(number)) for number in range(5)]}


def test_a_query_for_too_many_samples_is_refused(make_store: MakeStore) -> None:
    store = make_store()
    store.write(rows_of([(f"m{n}", NOW_MS - n * HOUR_MS, 1.0) for n in range(5)]))
    store.flush()
    assert len(store.select([], *ALL_MS, 5).values) == 5
    with pytest.raises(QueryError, match="at most 4 are allowed"):
        store.select([], *ALL_MS, 4)
    store.write(rows_of([("more", NOW_MS, 1.0)]))
    with pytest.raises(QueryError, match="at most 5 are allowed"):
        store.select([], *ALL_MS, 5, fresh=True)
    bad = LabelMatcher("a", MatchKind.MATCHES, "(")
    with pytest.raises(QueryError, match="the matcher a=~"):
        store.select([bad], *ALL_MS, 5)
    assert store.select([], NOW_MS, NOW_MS - 1, 5).labels == []


def test_scan_yields_the_rows_of_a_selection(make_store: MakeStore) -> None:
    store = make_store()
    times = [NOW_MS - n * HOUR_MS // 2 for n in range(6)]
    store.write(rows_of([("a", time, float(n)) for n, time in enumerate(times)]))
    store.write(rows_of([("b", times[0], 9.0)], job=["x"]))
    store.flush()
    store.write(rows_of([("a", times[0], 7.0)]))

    def values(**selection: object) -> list[float]:
        batches = list(store.scan(**selection))
        assert all(batch.schema == SCHEMA for batch in batches)
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    assert values() == [5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 9.0]
    assert values(start=times[2], end=times[1]) == [2.0, 1.0]
    assert values(start=datetime.fromtimestamp(times[0] / 1000, UTC)) == [0.0, 9.0]
    assert values(matchers=[("job", "=", "x")]) == [9.0]
    assert values(matchers=[("job", "=", ""), ["__name__", "=~", "a|b"]], start=times[0]) == [0.0]
    assert values(start=times[0], fresh=True) == [7.0, 9.0]
    assert values(matchers=[("none", "!=", "")]) == []
    (rows,) = store.scan(matchers=[("job", "=", "x")])
    assert rows.to_pylist() == [
        {
            "timestamp": datetime.fromtimestamp(times[0] / 1000, UTC),
            "value": 9.0,
            "labels": [("__name__", "b"), ("job", "x")],
        }
    ]


def test_scan_yields_large_hours_in_groups_of_series(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    store.write(rows_of([(f"m{n:02}", NOW_MS + t, 1.0) for n in range(10) for t in range(5)]))
    store.flush()
    monkeypatch.setattr("headrace.stores.timeseries.sample_reader._SCANNED_SAMPLES", 12)
    batches = list(store.scan())
    assert [batch.num_rows for batch in batches] == [10] * 5
    table = pa.Table.from_batches(batches)
    assert len(table.group_by("timestamp").aggregate([("value", "count")])) == 5


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"begin": 1}, "a scan of time series has no begin"),
        ({"matchers": [("a", "=")]}, "is no matcher"),
        ({"matchers": [("a", "==", "b")]}, "is no matcher"),
        ({"matchers": [("a", "=~", "(")]}, "is not RE2"),
        ({"start": datetime(2024, 1, 1)}, "2024-01-01T00:00:00 has no time zone"),
    ],
)
def test_a_selection_that_cannot_be_read_is_refused(
    make_store: MakeStore, selection: dict[str, object], message: str
) -> None:
    store = make_store()
    store.write(rows_of([("a", NOW_MS, 1.0)]))
    store.flush()
    with pytest.raises(QueryError, match=message):
        list(store.scan(**selection))


def test_metadata_of_metrics_is_kept(make_store: MakeStore) -> None:
    store = make_store()
    nothing = np.empty(0, np.int64)
    counter = MetricMetadata("counter", "Requests.", "")

    def told(**metadata: MetricMetadata) -> SampleBatch:
        return SampleBatch([], nothing, nothing, np.empty(0), metadata)

    store.write_samples(told(b=counter, a=MetricMetadata("gauge")))
    assert store.metadata() == {}
    assert list(store.reader(fresh=True).metadata()) == ["a", "b"]
    store.flush()
    store.write_samples(told(a=counter))
    store.flush()
    assert store.metadata() == {"a": counter, "b": counter}
    assert store.metadata("b") == {"b": counter}
    assert store.metadata("c") == {}


@pytest.mark.parametrize("far_ms", [TIME_MOST_MS + 1, 1 << 53, 1 << 63, 10**30])
@pytest.mark.parametrize("fresh", [False, True])
def test_times_that_no_store_has_select_nothing(
    make_store: MakeStore, far_ms: int, fresh: bool
) -> None:
    store = make_store()
    store.flush(store.write(rows_of([("a", NOW_MS, 1.0)])))
    store.write(rows_of([("a", NOW_MS + 1, 1.0)]))
    for start, end, found in [
        (far_ms, far_ms, []),
        (-far_ms, -far_ms, []),
        (-far_ms, far_ms, [NOW_MS, NOW_MS + 1] if fresh else [NOW_MS]),
    ]:
        assert store.select([], start, end, 9, fresh=fresh).timestamps.tolist() == found
        scanned = store.scan(start=start, end=end, fresh=fresh)
        assert sum(each.num_rows for each in scanned) == len(found)
        reader = store.reader(fresh=fresh)
        assert len(reader.series([], start, end)) == bool(found)
        assert len(reader.label_values("__name__", [], start, end)) == bool(found)


@pytest.mark.parametrize(
    ("metric", "told", "named"),
    [
        ("m" * 480, MetricMetadata("gauge"), "at most 479 bytes"),
        ("not a name", MetricMetadata("gauge"), "the metric name"),
        ("\ud800", MetricMetadata("gauge"), "not Unicode"),
        (
            "a",
            MetricMetadata("gauge", help="x" * 20_000),
            "a value of 20000 bytes in the label 'help'",
        ),
        ("a", MetricMetadata("gauge", unit="\ud800"), "'unit' that is not Unicode"),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused_and_the_store_goes_on(
    make_store: MakeStore, metric: str, told: MetricMetadata, named: str
) -> None:
    store = make_store()
    nothing = np.empty(0, np.int64)
    with pytest.raises(DocumentError, match=named):
        store.write_samples(SampleBatch([], nothing, nothing, np.empty(0), {metric: told}))
    longest = SampleBatch([], nothing, nothing, np.empty(0), {"m" * 479: MetricMetadata("gauge")})
    store.flush(store.write_samples(longest))
    assert list(store.metadata()) == ["m" * 479]


def test_what_is_told_about_metrics_counts_towards_the_size() -> None:
    nothing = np.empty(0, np.int64)
    batch = SampleBatch([], nothing, nothing, np.empty(0), {"a": MetricMetadata(help="x" * 9_000)})
    assert batch.size_bytes > 9_000


# Checkpoints


def test_a_task_that_no_key_can_name_is_refused_and_the_store_goes_on(
    make_store: MakeStore,
) -> None:
    store = make_store()
    for task in ("t" * 479, "\ud800"):
        with pytest.raises(UsageError, match="a store cannot name the task"):
            store.take(task, "g")
        with pytest.raises(UsageError, match="a store cannot name the task"):
            store.apply(rows_of([]), StoreCheckpoint(task, "g", 1))
    assert store.take("t" * 478, "g") == 0


def test_a_checkpoint_is_applied_once_and_in_order(make_store: MakeStore) -> None:
    store = make_store()
    rows = rows_of([("a", NOW_MS, 1.0)])
    with pytest.raises(UsageError, match="nobody took"):
        store.apply(rows, StoreCheckpoint("task", "g", 1))
    assert store.take("task", "g") == 0
    assert store.apply(rows, StoreCheckpoint("task", "g", 1))
    assert all_samples(store) == {"a": [(NOW_MS, 1.0)]}
    assert not store.apply(rows_of([("a", NOW_MS, 2.0)]), StoreCheckpoint("task", "g", 1))
    assert all_samples(store) == {"a": [(NOW_MS, 1.0)]}
    with pytest.raises(UsageError, match="does not follow"):
        store.apply(rows, StoreCheckpoint("task", "g", 3))
    assert store.apply(rows_of([]), StoreCheckpoint("task", "g", 2))
    assert store.take("task", "g") == 2
    assert store.take("other", "g") == 0
    assert store.take("task", "h") == 0
    with pytest.raises(FencedError):
        store.apply(rows, StoreCheckpoint("task", "g", 3))
    with pytest.raises(FencedError):
        store.take("task", "g")


# proves G14
def test_a_checkpoint_is_applied_once_although_its_wait_was_interrupted(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    store.take("task", "g")

    def interrupted(delta: SampleDelta) -> None:
        store._handle.write(delta)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "_write_durable", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.apply(rows_of([("a", NOW_MS, 1.0)]), StoreCheckpoint("task", "g", 1))
    assert not store.apply(rows_of([("a", NOW_MS, 2.0)]), StoreCheckpoint("task", "g", 1))
    assert all_samples(store) == {"a": [(NOW_MS, 1.0)]}


def test_rows_may_be_more_than_what_may_wait(make_store: MakeStore) -> None:
    store = make_store(ingest=IngestSettings(pending_bytes_max=10_000))
    store.take("task", "g")
    for number in range(1, 3):
        rows = rows_of([("a", NOW_MS - n, float(number)) for n in range(2000)])
        assert store.apply(rows, StoreCheckpoint("task", "g", number))
        assert [value for _, value in all_samples(store)["a"]] == [float(number)] * 2000


def test_writes_that_find_no_room_are_handed_back(make_store: MakeStore) -> None:
    store = make_store(ingest=IngestSettings(pending_bytes_max=100_000, flush_interval_s=3600))
    rows = rows_of([("a", NOW_MS - n, 1.0) for n in range(1000)])
    refused = 0
    for _ in range(200):
        try:
            store.write(rows)
        except QueueFullError:
            refused += 1
            store.flush()
    assert refused
    store.flush()
    assert len(all_samples(store)["a"]) == 1000


# Opening and closing


def test_a_closed_store_says_so(make_store: MakeStore) -> None:
    store = make_store()
    store.write(rows_of([("a", NOW_MS, 1.0)]))
    store.close()
    store.close()
    for call in (
        lambda: store.write(rows_of([])),
        lambda: store.take("task", "g"),
        lambda: store.apply(rows_of([]), StoreCheckpoint("task", "g", 1)),
        lambda: store.select([], 0, 1, 1),
        lambda: store.expire(),
    ):
        with pytest.raises(UsageError, match="the time-series store is closed"):
            call()


def test_a_store_of_a_newer_format_is_not_opened() -> None:
    kv = MemoryKeyValueStore()
    batch = WriteBatch()
    batch.put(COUNTERS_KEY, msgspec.msgpack.encode(StoreCounters(format=2)))
    kv.write(batch)
    with pytest.raises(VersionError, match="has format 2, not 1"):
        TimeSeriesStore(kv)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_damaged_chunk_is_named_and_the_rest_can_be_read(is_missing: bool) -> None:
    kv = MemoryKeyValueStore()
    store = TimeSeriesStore(
        kv, TimeSeriesSettings(chunk_cache_bytes=0), now_ms=lambda: NOW_MS + HOUR_MS
    )
    store.write(rows_of([("a", NOW_MS, 1.0), ("a", NOW_MS + HOUR_MS, 1.0)]))
    store.flush()
    with kv.snapshot() as snapshot:
        key, stored = next(snapshot.scan(CHUNKS, None))
    batch = WriteBatch()
    if is_missing:
        batch.delete(key)
    else:
        batch.put(key, stored[:-1] + bytes([stored[-1] ^ 1]))
    kv.write(batch)
    store.write(rows_of([("b", NOW_MS + HOUR_MS, 1.0)]))
    store.flush()
    with pytest.raises(DataError, match="chunk 1 of bucket 480000 is damaged"):
        store.select([], *ALL_MS, 9)
    assert len(store.select([], NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, 9).values) == 2
    store.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention_s": 0},
        {"retention_s": -1},
        {"retention_s": float("nan")},
        {"retention_s": float("inf")},
        {"ahead_s": -1},
        {"ahead_s": float("inf")},
        {"series_cached_max": -1},
        {"chunk_cache_bytes": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        TimeSeriesSettings(**wrong)  # type: ignore[arg-type]


# proves G24
def test_readers_see_whole_flushes_while_others_write(tmp_path: Path) -> None:
    """Every flush changes all series at once, so a reader that saw half of one would see it."""
    names = [f"m{n}" for n in range(20)]
    rounds = 60
    done = threading.Event()
    with closing(open_timeseries(tmp_path / "store")) as store:

        def write() -> None:
            try:
                for number in range(rounds):
                    base = 1_700_000_000_000 + number * 60_000
                    rows = [(name, base + place, float(number)) for place, name in enumerate(names)]
                    store.write(rows_of([*rows, *((name, 0, float(number)) for name in names)]))
                    store.flush()
            finally:
                done.set()

        writer = threading.Thread(target=write)
        writer.start()
        seen = -1.0
        reads = 0
        while not done.is_set() or reads == 0:
            found = store.select([], *ALL_MS, 1 << 40)
            if found.labels:
                parts = np.split(found.values, found.offsets[1:-1])
                newest = {float(values[-1]) for values in parts}
                first = {float(values[0]) for values in parts}
                assert len(found.labels) == len(names)
                assert newest == first
                assert len(newest) == 1
                assert seen <= min(newest), "snapshots never go back"
                seen = min(newest)
            reads += 1
        writer.join()
        assert all(len(samples) == rounds + 1 for samples in all_samples(store).values())
