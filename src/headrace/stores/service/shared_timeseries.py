"""A time-series store that any number of processes use at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from starlette.routing import BaseRoute

from headrace.settings import TimeSeriesSettings
from headrace.stores.kv.kv_location import open_kv
from headrace.stores.service.row_input import Documents, RowsLike, one_batch
from headrace.stores.service.shared_store import SharedStore
from headrace.stores.service.store_directory import TIMESERIES, StoreSettings
from headrace.stores.service.store_kinds import StoreKind
from headrace.stores.timeseries.input.arrow_samples import SCHEMA, batch_rows
from headrace.stores.timeseries.input.sample_documents import read_documents
from headrace.stores.timeseries.promql.query_engine import evaluate, evaluate_at
from headrace.stores.timeseries.promql.results import (
    MatrixResult,
    QueryResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from headrace.stores.timeseries.series import Labels, SelectedSeries
from headrace.stores.timeseries.timeseries_store import (
    Matchers,
    Moment,
    TimeSeriesStore,
    read_matchers,
    to_ms,
)

_Matchers = list[tuple[str, str, str]]
_ROOM_S = 5.0
"""A remote write waits this long for room. Prometheus gives up after 30 s."""


class QueryAt(msgspec.Struct, frozen=True):
    """Asks for the answer of a PromQL query at one moment."""

    query: str
    at_ms: int


class QueryRange(msgspec.Struct, frozen=True):
    """Asks for the answers of a PromQL query at every step."""

    query: str
    start_ms: int
    end_ms: int
    step_ms: int


class ListSeries(msgspec.Struct, frozen=True):
    matchers: _Matchers
    start_ms: int | None
    end_ms: int | None


class ListLabelNames(msgspec.Struct, frozen=True):
    matchers: _Matchers
    start_ms: int | None
    end_ms: int | None


class ListLabelValues(msgspec.Struct, frozen=True):
    name: str
    matchers: _Matchers
    start_ms: int | None
    end_ms: int | None


class SharedTimeSeries(SharedStore):
    """A time-series store that is open here or through the process that has it open."""

    def write(self, rows: RowsLike) -> int:
        """Take samples, all or none, and return their epoch for `flush`.

        Columns are `timestamp`, `value`, and `labels` or one for each label. A dict has `labels`,
        and `timestamp` and `value`, or `timestamps` and `values`.
        """
        return super().write(one_batch(rows, SCHEMA, _document_rows))

    def query(self, query: str, at: Moment = None) -> QueryResult:
        """Answer a PromQL query at one moment, by default now.

        A moment is milliseconds since 1970, or a datetime.
        """
        return _decode_result(self.ask(QueryAt(query, _moment(at))))

    def query_range(
        self, query: str, start: int | datetime, end: Moment = None, step_s: float = 15.0
    ) -> MatrixResult:
        """Answer a PromQL query at `start` and every `step_s` after it up to `end`, or now."""
        request = QueryRange(query, _moment(start), _moment(end), round(step_s * 1000))
        found = _decode_result(self.ask(request))
        assert isinstance(found, MatrixResult)
        return found

    def series(
        self, matchers: Matchers = (), start: Moment = None, end: Moment = None
    ) -> list[Labels]:
        """Return the series that match and have samples in that time, sorted."""
        found = self.ask(ListSeries(_triples(matchers), to_ms(start), to_ms(end)))
        return [_labels(each) for each in found]

    def label_names(
        self, matchers: Matchers = (), start: Moment = None, end: Moment = None
    ) -> list[str]:
        """Return the names of the labels of those series, sorted."""
        return list(self.ask(ListLabelNames(_triples(matchers), to_ms(start), to_ms(end))))

    def label_values(
        self, name: str, matchers: Matchers = (), start: Moment = None, end: Moment = None
    ) -> list[str]:
        """Return the values of a label of those series, sorted."""
        request = ListLabelValues(name, _triples(matchers), to_ms(start), to_ms(end))
        return list(self.ask(request))

    def scan(self, **selection: Any) -> Iterator[pa.RecordBatch]:
        """Yield samples: see `TimeSeriesStore.scan`."""
        # As they travel, whoever has the store open.
        if "matchers" in selection:
            selection["matchers"] = _triples(selection["matchers"])
        for name in {"start", "end"} & selection.keys():
            selection[name] = to_ms(selection[name])
        return super().scan(**selection)


def _document_rows(documents: Documents) -> pa.RecordBatch:
    return batch_rows(read_documents(documents))


def _moment(given: Moment) -> int:
    at_ms = to_ms(given)
    return time.time_ns() // 1_000_000 if at_ms is None else at_ms


def _triples(matchers: Matchers) -> _Matchers:
    return [(each.name, str(each.kind), each.value) for each in read_matchers(matchers)]


def _labels(given: Sequence[Sequence[str]]) -> Labels:
    return tuple((name, value) for name, value in given)


# -- what the owner answers ----------------------------------------------------------------------


def _open(data: Path, settings: StoreSettings) -> TimeSeriesStore:
    location = settings.objects or data
    return TimeSeriesStore(
        open_kv(location, settings.backend), TimeSeriesSettings(retention_s=settings.retention_s)
    )


def _query(store: TimeSeriesStore, request: QueryAt) -> dict[str, Any]:
    return _encode_result(evaluate_at(request.query, store.reader(), request.at_ms))


def _query_range(store: TimeSeriesStore, request: QueryRange) -> dict[str, Any]:
    times = request.start_ms, request.end_ms, request.step_ms
    return _encode_result(evaluate(request.query, store.reader(), *times))


def _series(store: TimeSeriesStore, request: ListSeries) -> list[Labels]:
    return store.series(request.matchers, request.start_ms, request.end_ms)


def _label_names(store: TimeSeriesStore, request: ListLabelNames) -> list[str]:
    return store.label_names(request.matchers, request.start_ms, request.end_ms)


def _label_values(store: TimeSeriesStore, request: ListLabelValues) -> list[str]:
    times = request.start_ms, request.end_ms
    return store.label_values(request.name, request.matchers, *times)


def _routes(store: TimeSeriesStore) -> Sequence[BaseRoute]:
    from headrace.stores.timeseries.input.remote_write import RemoteWriteDecoder
    from headrace.stores.timeseries.prometheus_api import PrometheusApi

    decoder, decoding = RemoteWriteDecoder(), threading.Lock()

    def receive(body: bytes) -> None:
        with decoding:
            samples = decoder.decode(body)
        # A sender that is asked to come back waits for longer than most flushes take.
        store.flush(store.write_samples(samples, _ROOM_S))

    return PrometheusApi(store.reader, receive).routes()


TIMESERIES_KIND = StoreKind(
    TIMESERIES,
    _open,
    {
        QueryAt: _query,
        QueryRange: _query_range,
        ListSeries: _series,
        ListLabelNames: _label_names,
        ListLabelValues: _label_values,
    },
    _routes,
)


# -- how results travel --------------------------------------------------------------------------


def _encode_result(result: QueryResult) -> dict[str, Any]:
    match result:
        case VectorResult(at_ms, labels, values):
            kept = np.ascontiguousarray(values, "<f8").tobytes()
            return {"is": "vector", "at_ms": at_ms, "labels": list(labels), "values": kept}
        case MatrixResult(series):
            return {
                "is": "matrix",
                "labels": list(series.labels),
                "offsets": np.ascontiguousarray(series.offsets, "<i8").tobytes(),
                "timestamps": np.ascontiguousarray(series.timestamps, "<i8").tobytes(),
                "values": np.ascontiguousarray(series.values, "<f8").tobytes(),
            }
        case ScalarResult(at_ms, value):
            return {"is": "scalar", "at_ms": at_ms, "value": value}
        case StringResult(at_ms, text):
            return {"is": "string", "at_ms": at_ms, "value": text}


def _decode_result(given: dict[str, Any]) -> QueryResult:
    if given["is"] == "scalar":
        return ScalarResult(given["at_ms"], given["value"])
    if given["is"] == "string":
        return StringResult(given["at_ms"], given["value"])
    labels = [_labels(each) for each in given["labels"]]
    values = np.frombuffer(given["values"], "<f8")
    if given["is"] == "vector":
        return VectorResult(given["at_ms"], labels, values)
    offsets = np.frombuffer(given["offsets"], "<i8")
    times = np.frombuffer(given["timestamps"], "<i8")
    return MatrixResult(SelectedSeries(labels, offsets, times, values))
