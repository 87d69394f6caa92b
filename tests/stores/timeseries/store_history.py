"""Random histories of a time-series store, beside dicts that say what it must hold."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pyarrow as pa

from headrace.errors import FencedError
from headrace.settings import TimeSeriesSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.timeseries.matchers import matching_series
from headrace.stores.timeseries.sample_reader import SampleReader
from headrace.stores.timeseries.series import STALE_BITS, LabelMatcher, Labels, MatchKind
from headrace.stores.timeseries.timeseries_store import TimeSeriesStore
from tests.stores.timeseries.sample_rows import ALL_MS, HOUR_MS
from tests.stores.timeseries.store_check import check_records

NOW_MS = 480_000 * HOUR_MS
RETENTION_MS = 3 * HOUR_MS

Books = dict[Labels, dict[int, int]]
"""The bits of the value of each series and time."""

JOBS = ("", "api", "db", "a|b")
MATCHERS = [
    [LabelMatcher("__name__", MatchKind.EQUAL, "m1")],
    [LabelMatcher("job", MatchKind.UNEQUAL, "api")],
    [LabelMatcher("job", MatchKind.MATCHES, "a.*|")],
    [LabelMatcher("job", MatchKind.UNLIKE, "api|db"), LabelMatcher("x", MatchKind.EQUAL, "")],
]
VALUES = [1.0, 2.5, -0.0, 1e300, float("inf"), float("nan")]


class HistoryStep(StrEnum):
    WRITE = "rows are written"
    FLUSH = "a flush"
    APPLY = "rows with a checkpoint"
    REPEAT = "a checkpoint that is there already"
    TAKE = "another generation takes the task, and the one before is refused"
    REOPEN = "the store is opened again"
    LATER = "time passes, and old samples are removed"
    HOLD = "a reader keeps what it sees while others write"
    QUERY = "a query by matchers and times"


@dataclass
class StoreHistory:
    """One store and its books. `open_kv` opens what the store before left."""

    chance: random.Random
    open_kv: Callable[[], KeyValueStore]
    retention: bool
    cached: int = 1_000_000
    """How many series, and bytes of chunks, the store may keep in memory."""
    written: Books = field(default_factory=dict)
    flushed: Books = field(default_factory=dict)
    now_ms: int = NOW_MS
    generation: int = 0
    number: int = 0
    counts: Counter[StrEnum] = field(default_factory=Counter)
    ids: dict[int, Labels] = field(default_factory=dict)
    """Every id that was ever seen. None may come to name another series."""

    def __post_init__(self) -> None:
        self.store = self._open()
        self.store.take("task", "0")
        self.held: tuple[SampleReader, dict[Labels, list[tuple[int, int]]]] | None = None

    def _open(self) -> TimeSeriesStore:
        retention_s = RETENTION_MS / 1000 if self.retention else None
        settings = TimeSeriesSettings(
            retention_s=retention_s, series_cached_max=self.cached, chunk_cache_bytes=self.cached
        )
        return TimeSeriesStore(self.open_kv(), settings, now_ms=lambda: self.now_ms)

    def run(self, steps: int) -> Counter[StrEnum]:
        kinds = list(HistoryStep)
        weights = [6, 6, 2, 1, 0.3, 0.5, 0.5 if self.retention else 0, 1, 2]
        for _ in range(steps):
            kind = self.chance.choices(kinds, weights)[0]
            getattr(self, f"_{kind.name.lower()}")()
            self.counts[kind] += 1
            self._check()
        self.store.close()
        return self.counts

    # Steps

    def _write(self) -> None:
        self.store.write(self._rows())

    def _flush(self) -> None:
        self.store.flush()
        self._all_is_flushed()

    def _apply(self) -> None:
        rows = self._rows()
        self.number += 1
        assert self.store.apply(rows, self._checkpoint(self.number))
        self._all_is_flushed()

    def _repeat(self) -> None:
        if self.number:
            written = {labels: dict(samples) for labels, samples in self.written.items()}
            again = self._checkpoint(self.chance.randint(1, self.number))
            assert not self.store.apply(self._rows(), again)
            self.written = written

    def _take(self) -> None:
        past = self._checkpoint(self.number + 1)
        self.generation += 1
        assert self.store.take("task", str(self.generation)) == 0
        self.number = 0
        self._all_is_flushed()
        before = {labels: dict(samples) for labels, samples in self.written.items()}
        try:
            self.store.apply(self._rows(), past)
        except FencedError:
            self.written = before
        else:
            raise AssertionError("a generation that was replaced is refused")

    def _reopen(self) -> None:
        self.held = None
        self.store.close()
        self._all_is_flushed()
        self.store = self._open()
        assert self.store.take("task", str(self.generation)) == self.number

    def _later(self) -> None:
        self.now_ms += self.chance.choice([1, 10, HOUR_MS // 2, HOUR_MS, 5 * HOUR_MS])
        self.store.expire()
        self._all_is_flushed()
        snapshot = self.store._kv.snapshot()
        found = check_records(snapshot)
        snapshot.close()
        assert set(found.values()) == self._shown_series(self.flushed)

    def _hold(self) -> None:
        reader = self.store.reader(fresh=self.chance.random() < 0.5)
        self.held = reader, contents(reader)

    def _query(self) -> None:
        fresh = self.chance.random() < 0.5
        matchers = self.chance.choice(MATCHERS)
        begin = self._time()
        end = begin + self.chance.choice([0, 60_000, HOUR_MS])
        found = contents(self.store.reader(fresh=fresh), matchers, begin, end)
        books = self.written if fresh else self.flushed
        names = list(books)
        kept = [names[place] for place in matching_series(names, matchers).nonzero()[0]]
        expected = {
            labels: sorted((time, bits) for time, bits in books[labels].items()) for labels in kept
        }
        assert found == self._shown(expected, begin, end)

    # What must hold

    def _check(self) -> None:
        for fresh, books in ((False, self.flushed), (True, self.written)):
            expected = {labels: sorted(samples.items()) for labels, samples in books.items()}
            reader = self.store.reader(fresh=fresh)
            assert contents(reader) == self._shown(expected, *ALL_MS)
            if not fresh or not self.retention:
                # With retention, what is written too late counts until it is flushed.
                assert set(reader.series()) == self._shown_series(books)
        if self.held and not self.retention:
            reader, shown = self.held
            assert contents(reader) == shown, "what a reader sees does not change"
        snapshot = self.store._kv.snapshot()
        for series, labels in check_records(snapshot).items():
            assert self.ids.setdefault(series, labels) == labels, "ids are not used again"
        snapshot.close()

    def _all_is_flushed(self) -> None:
        self.flushed = {labels: dict(samples) for labels, samples in self.written.items()}

    def _oldest_ms(self) -> int:
        return self.now_ms - RETENTION_MS if self.retention else ALL_MS[0]

    def _shown(
        self, books: dict[Labels, list[tuple[int, int]]], start_ms: int, end_ms: int
    ) -> dict[Labels, list[tuple[int, int]]]:
        first = max(start_ms, self._oldest_ms())
        found = {
            labels: [each for each in samples if first <= each[0] <= end_ms]
            for labels, samples in books.items()
        }
        return {labels: samples for labels, samples in found.items() if samples}

    def _shown_series(self, books: Books) -> set[Labels]:
        oldest = self._oldest_ms() // HOUR_MS
        return {
            labels
            for labels, samples in books.items()
            if any(time // HOUR_MS >= oldest for time in samples)
        }

    # What is written

    def _checkpoint(self, number: int) -> StoreCheckpoint:
        return StoreCheckpoint("task", str(self.generation), number)

    def _time(self) -> int:
        chance = self.chance
        if chance.random() < 0.7:  # Mostly one hour, so that its runs are merged.
            return self.now_ms - chance.randrange(600_000) * 10 // 10_000 * 1000
        return self.now_ms - chance.randrange(6 * HOUR_MS)

    def _rows(self) -> pa.RecordBatch:
        """Make rows and enter them in the books."""
        chance = self.chance
        rows = []
        for _ in range(chance.randrange(12)):
            labels = {"__name__": f"m{chance.randrange(3)}", "job": chance.choice(JOBS)}
            if chance.random() < 0.05:
                labels["x"] = str(chance.randrange(1000))
            value = chance.choice(VALUES) if chance.random() < 0.5 else float(chance.randrange(99))
            bits = struct.unpack("<q", struct.pack("<d", value))[0]
            bits = STALE_BITS if chance.random() < 0.05 else bits
            time = self._time()
            rows.append((time, bits, list(labels.items())))
            if time // HOUR_MS >= self._oldest_ms() // HOUR_MS:
                key = tuple(sorted((name, text) for name, text in labels.items() if text))
                self.written.setdefault(key, {})[time] = bits
        return pa.RecordBatch.from_pydict(
            {
                "timestamp": pa.array([time for time, _, _ in rows], pa.int64()),
                "value": np.array([bits for _, bits, _ in rows], np.int64).view(np.float64),
                "labels": pa.array(
                    [labels for _, _, labels in rows], pa.map_(pa.string(), pa.string())
                ),
            }
        )


def contents(
    reader: SampleReader,
    matchers: list[LabelMatcher] | None = None,
    start_ms: int = ALL_MS[0],
    end_ms: int = ALL_MS[1],
) -> dict[Labels, list[tuple[int, int]]]:
    """Return time and bits of the value of each sample."""
    found = reader.select(matchers or [], start_ms, end_ms, 1 << 40)
    times, bits = found.timestamps.tolist(), found.values.view(np.int64).tolist()
    ends = found.offsets.tolist()
    return {
        labels: list(zip(times[a:b], bits[a:b], strict=True))
        for labels, a, b in zip(found.labels, ends[:-1], ends[1:], strict=True)
    }
