"""A time-series store: samples by their labels, in a key-value store, behind a coordinator.

- Of two samples of a series at the same time, the one that was written later counts.
- Samples may come in any order, and as late as retention allows. Those that come later still would
  be removed at once: they are left out, and counted in `stat`. A time more than `ahead_s` in the
  future is refused, for it is mostly a wrong unit.
- Every value is kept with all its bits: NaNs, infinities, staleness markers.
- Readers see whole flushes. With `fresh=True` they also see what is written and not yet flushed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import QueryError, UsageError
from headrace.ingest.contract import Epoch
from headrace.ingest.ingest_handle import Coordinator
from headrace.settings import IngestSettings, TimeSeriesSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.contract import Store
from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.kv.kv_location import open_kv
from headrace.stores.task_checkpoints import TaskCheckpoints
from headrace.stores.timeseries.chunks.chunk_cache import ChunkCache
from headrace.stores.timeseries.index.series_dictionary import SeriesDictionary
from headrace.stores.timeseries.index.series_index import IndexCache
from headrace.stores.timeseries.input.arrow_samples import (
    SCHEMA,
    KnownLabels,
    read_rows,
    write_rows,
)
from headrace.stores.timeseries.sample_batch import (
    MetricMetadata,
    SampleBatch,
    SampleDelta,
    check_metadata,
    check_times,
)
from headrace.stores.timeseries.sample_flush import SampleFlush, load_state
from headrace.stores.timeseries.sample_reader import SampleReader
from headrace.stores.timeseries.series import LabelMatcher, Labels, MatchKind, SelectedSeries

Moment = int | datetime | None
"""Milliseconds since 1970, or a time with a time zone; None is as far as there are samples."""
Matchers = Sequence[LabelMatcher | Sequence[str]]
"""Matchers, also as (name, "=", "!=", "=~" or "!~", value)."""


class TimeSeriesStore(Store):
    """A store that is open in this process. It is a `SampleSource`."""

    def __init__(
        self,
        kv: KeyValueStore,
        settings: TimeSeriesSettings | None = None,
        *,
        ingest: IngestSettings | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Open the store in `kv`, which belongs to it from now on."""
        self.settings = settings or TimeSeriesSettings()
        self._ingest = ingest or IngestSettings()
        self._kv = kv
        self._now_ms = now_ms
        self._closing = threading.Lock()
        self._is_closed = False
        self._known_labels = KnownLabels(self.settings.series_cached_max)
        self._index_cache = IndexCache(self.settings.series_cached_max)
        self._chunk_cache = ChunkCache(self.settings.chunk_cache_bytes)
        dictionary = SeriesDictionary(self.settings.series_cached_max)
        try:
            state = load_state(kv)
            self._flusher = SampleFlush(kv, dictionary, self._oldest_ms)
            self._handle = Coordinator(
                self._flusher, SampleDelta, state, self._ingest, "the time-series store"
            ).start()
        except BaseException:
            kv.close()
            raise
        self._checkpoints = TaskCheckpoints(self._read_record)
        if self.settings.retention_s is not None:
            self._handle.write(SampleDelta(expire=True))

    @property
    def kind(self) -> str:
        return "timeseries"

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    # Writing

    def write(self, rows: pa.RecordBatch) -> int:
        """Take rows: see `Store.write`, and `arrow_samples` for the columns."""
        return self.write_samples(read_rows(rows, self._known_labels))

    def write_samples(self, samples: SampleBatch, timeout_s: float | None = 0.0) -> int:
        """Take samples and return their epoch. Waits up to `timeout_s` if too much waits."""
        self._check_open()
        return self._handle.write(self._delta(samples), timeout_s)

    def flush(self, epoch: int | None = None) -> None:
        self._handle.flush(None if epoch is None else Epoch(epoch))

    def generation(self, task: str) -> str:
        self._check_open()
        return self._checkpoints.generation(task)

    def take(self, task: str, generation: str, instead_of: str | None = None) -> int:
        self._check_open()

        def write(records: dict[bytes, bytes]) -> None:
            self._write_durable(SampleDelta(records=records))

        return self._checkpoints.take(task, generation, write, instead_of)

    def apply(self, rows: pa.RecordBatch, checkpoint: StoreCheckpoint) -> bool:
        self._check_open()
        delta = self._delta(read_rows(rows, self._known_labels))

        def write(records: dict[bytes, bytes]) -> None:
            delta.records = records
            self._write_durable(delta)

        return self._checkpoints.apply(checkpoint, write)

    def _read_record(self, key: bytes) -> bytes | None:
        self._handle.flush()
        # Of the newest snapshot: one that is kept would keep LMDB from using space again.
        return self._handle.snapshot().snapshot.get(key)

    def expire(self) -> None:
        """Remove what is beyond retention. Every flush does so, too."""
        self._check_open()
        self._write_durable(SampleDelta(expire=True))

    def _delta(self, samples: SampleBatch) -> SampleDelta:
        check_times(samples.timestamps, self._now_ms() + int(self.settings.ahead_s * 1000))
        check_metadata(samples.metadata)
        is_empty = not len(samples.codes) and not samples.metadata
        return SampleDelta([] if is_empty else [samples])

    def _write_durable(self, delta: SampleDelta) -> None:
        self._handle.write_durable(delta)

    # Reading

    def reader(self, *, fresh: bool = False) -> SampleReader:
        """Return a source that shows the store as it is now, however often it is asked.

        With `fresh` it also shows all that was written before, flushed or not.
        """
        self._check_open()
        if not fresh:
            state, deltas = self._handle.snapshot(), []
        else:
            view = self._handle.view()
            state, deltas = view.snapshot, list(reversed(view.deltas))
        return SampleReader(state, deltas, self._oldest_ms(), self._index_cache, self._chunk_cache)

    def select(
        self,
        matchers: Sequence[LabelMatcher],
        start_ms: int,
        end_ms: int,
        samples_max: int,
        *,
        fresh: bool = False,
    ) -> SelectedSeries:
        """Return series and their samples: see `SampleSource`."""
        return self.reader(fresh=fresh).select(matchers, start_ms, end_ms, samples_max)

    def series(
        self, matchers: Matchers = (), start: Moment = None, end: Moment = None
    ) -> list[Labels]:
        """Return the series that match and have samples in the hours of that time, sorted."""
        return self.reader().series(read_matchers(matchers), to_ms(start), to_ms(end))

    def label_names(
        self, matchers: Matchers = (), start: Moment = None, end: Moment = None
    ) -> list[str]:
        """Return the names of the labels of those series, sorted."""
        return self.reader().label_names(read_matchers(matchers), to_ms(start), to_ms(end))

    def label_values(
        self, name: str, matchers: Matchers = (), start: Moment = None, end: Moment = None
    ) -> list[str]:
        """Return the values of a label of those series, sorted."""
        chosen = read_matchers(matchers)
        return self.reader().label_values(name, chosen, to_ms(start), to_ms(end))

    def metadata(self, metric: str | None = None) -> dict[str, MetricMetadata]:
        """Return what senders said about metrics, about one or about all."""
        return self.reader().metadata(metric)

    def scan(self, **selection: Any) -> Iterator[pa.RecordBatch]:
        """Yield the samples hour by hour, as rows of `schema`.

        The words are `matchers`, `start` and `end` (both included), and `fresh`.
        """
        unknown = selection.keys() - {"matchers", "start", "end", "fresh"}
        if unknown:
            raise QueryError(
                f"a scan of time series has no {', '.join(sorted(unknown))}",
                do="choose from matchers, start, end and fresh",
            )
        matchers = read_matchers(selection.get("matchers", ()))
        times = to_ms(selection.get("start")), to_ms(selection.get("end"))
        reader = self.reader(fresh=bool(selection.get("fresh")))
        return map(write_rows, reader.scan(matchers, *times))

    def stat(self) -> dict[str, int | float | str]:
        figures = self.reader().figures()
        metrics = self._handle.metrics()
        return figures | {
            "pending_bytes": metrics.pending_bytes,
            "expired_samples": self._flusher.expired_samples,
        }

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._handle.shutdown()
            finally:
                self._kv.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the time-series store is closed", do="open it again")

    def _oldest_ms(self) -> int | None:
        kept_s = self.settings.retention_s
        return None if kept_s is None else self._now_ms() - int(kept_s * 1000)


def open_timeseries(
    location: str | Path,
    settings: TimeSeriesSettings | None = None,
    *,
    backend: str | None = None,
    ingest: IngestSettings | None = None,
) -> TimeSeriesStore:
    """Open the store whose data lie at a location, or create it: see `kv_location`."""
    return TimeSeriesStore(open_kv(location, backend), settings, ingest=ingest)


def read_matchers(matchers: Matchers) -> list[LabelMatcher]:
    """Return matchers that may be given as three strings."""
    found = []
    for each in matchers:
        if isinstance(each, LabelMatcher):
            found.append(each)
            continue
        try:
            name, kind, value = each
            found.append(LabelMatcher(name, MatchKind(kind), value))
        except ValueError as error:
            raise QueryError(
                f"{each!r} is no matcher", do='write it as ("job", "=", "api")'
            ) from error
    return found


def to_ms(moment: Moment) -> int | None:
    """Return milliseconds since 1970."""
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise QueryError(f"{moment.isoformat()} has no time zone", do="add one, such as +00:00")
    return round(moment.timestamp() * 1000)
