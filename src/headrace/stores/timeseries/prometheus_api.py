"""The HTTP API of Prometheus, for its clients and for Grafana: routes for any HTTP server.

Calls may be GET, or POST with a form. Blocking work runs in threads. Who may call is decided by the
server that has the routes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.errors import (
    DocumentError,
    HeadraceError,
    QueryError,
    QueueFullError,
    StorageError,
    UsageError,
)
from headrace.stores.timeseries.prometheus_json import failure, query_answer, success
from headrace.stores.timeseries.prometheus_parameters import CallParameters, invalid
from headrace.stores.timeseries.promql.expression import Expression
from headrace.stores.timeseries.promql.query_engine import check_has_steps, evaluate, evaluate_at
from headrace.stores.timeseries.promql.query_limits import QueryBudget, QueryLimits
from headrace.stores.timeseries.promql.query_parser import format_query, parse_query
from headrace.stores.timeseries.promql.results import (
    MatrixResult,
    QueryResult,
    VectorResult,
)
from headrace.stores.timeseries.series import LabelMatcher, Labels, SampleSource, SelectedSeries

SPOKEN_VERSION = "2.42.0"
"""Clients choose what they ask for by the version of Prometheus."""
POINTS_MAX = 11_000
_TRUNCATED = "results truncated due to limit"


class MetricDescription(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def unit(self) -> str: ...


class SeriesReader(SampleSource, Protocol):
    """One state of a store."""

    def series(
        self, matchers: Sequence[LabelMatcher], start_ms: int | None, end_ms: int | None
    ) -> list[Labels]: ...

    def label_names(
        self, matchers: Sequence[LabelMatcher], start_ms: int | None, end_ms: int | None
    ) -> list[str]: ...

    def label_values(
        self,
        name: str,
        matchers: Sequence[LabelMatcher],
        start_ms: int | None,
        end_ms: int | None,
    ) -> list[str]: ...

    def metadata(self, metric: str | None) -> Mapping[str, MetricDescription]: ...


Endpoint = Callable[[CallParameters], bytes]
_CONSTANTS: dict[str, object] = {
    "rules": {"groups": []},
    "alerts": {"alerts": []},
    "query_exemplars": [],
    "targets": {"activeTargets": [], "droppedTargets": []},
    "status/buildinfo": {
        "version": SPOKEN_VERSION,
        "revision": "",
        "branch": "",
        "buildUser": "",
        "buildDate": "",
        "goVersion": "",
    },
}
"""What the query editor of Grafana asks for, and a store does not have."""


class PrometheusApi:
    """Answers calls by reading a store."""

    def __init__(
        self,
        open_reader: Callable[[], SeriesReader],
        receive: Callable[[bytes], None],
        limits: QueryLimits | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`open_reader` returns the store as it is now.

        `receive` stores the body of a remote write, and returns when it is durable.
        """
        self._open_reader = open_reader
        self._receive = receive
        self._limits = limits or QueryLimits()
        self._now_ms = now_ms

    def routes(self) -> list[BaseRoute]:
        endpoints: dict[str, Endpoint] = {
            "query": self.query,
            "query_range": self.query_range,
            "series": self.series,
            "labels": self.labels,
            "metadata": self.metadata,
            "format_query": self.format_query,
        }
        for name, data in _CONSTANTS.items():
            endpoints[name] = _constant(data)
        found: list[BaseRoute] = [
            Route(f"/api/v1/{name}", _endpoint(function), methods=["GET", "POST"])
            for name, function in endpoints.items()
        ]
        found.append(Route("/api/v1/label/{name}/values", self._label_values, methods=["GET"]))
        found.append(Route("/api/v1/write", self._write, methods=["POST"]))
        for path, text in (("healthy", "Headrace is healthy."), ("ready", "Headrace is ready.")):
            found.append(Route(f"/-/{path}", _page(text), methods=["GET", "HEAD"]))
        return found

    def query(self, parameters: CallParameters) -> bytes:
        at_ms = parameters.time_ms("time", self._now_ms())
        budget = self._budget(parameters)
        limit = parameters.limit()
        node = _parsed(parameters)
        return _run(budget, limit, lambda: evaluate_at(node, self._open_reader(), at_ms, budget))

    def query_range(self, parameters: CallParameters) -> bytes:
        start, end = parameters.time_ms("start"), parameters.time_ms("end")
        if end < start:
            raise invalid("end", "end timestamp must not be before start time")
        step = parameters.duration_ms("step")
        if step <= 0:
            raise invalid(
                "step",
                "zero or negative query resolution step widths are not accepted. "
                "Try a positive integer",
            )
        if (end - start) // step > POINTS_MAX:
            raise QueryError(
                "exceeded maximum resolution of 11,000 points per timeseries. "
                "Try decreasing the query resolution (?step=XX)"
            )
        budget = self._budget(parameters)
        limit = parameters.limit()
        node = _parsed(parameters)
        check_has_steps(node)
        return _run(
            budget, limit, lambda: evaluate(node, self._open_reader(), start, end, step, budget)
        )

    def series(self, parameters: CallParameters) -> bytes:
        if not parameters.texts("match[]"):
            raise QueryError("no match[] parameter provided")
        start, end = _times(parameters)
        reader = self._open_reader()
        found: dict[Labels, None] = {}
        for matchers in _chosen(parameters, start, end):
            found |= dict.fromkeys(reader.series(matchers, start, end))
        return _limited([dict(labels) for labels in sorted(found)], parameters.limit())

    def labels(self, parameters: CallParameters) -> bytes:
        start, end = _times(parameters)
        reader = self._open_reader()
        found: set[str] = set()
        for matchers in _chosen(parameters, start, end):
            found.update(reader.label_names(matchers, start, end))
        return _limited(sorted(found), parameters.limit())

    def label_values(self, name: str, parameters: CallParameters) -> bytes:
        if not name.isidentifier() or not name.isascii():
            raise QueryError(f'invalid label name: "{name}"')
        start, end = _times(parameters)
        reader = self._open_reader()
        found: set[str] = set()
        for matchers in _chosen(parameters, start, end):
            found.update(reader.label_values(name, matchers, start, end))
        return _limited(sorted(found), parameters.limit())

    def metadata(self, parameters: CallParameters) -> bytes:
        described = self._open_reader().metadata(parameters.text("metric") or None)
        found = {
            name: [{"type": each.type, "help": each.help, "unit": each.unit}]
            for name, each in described.items()
        }
        limit = parameters.limit() if parameters.text("limit") != "-1" else 0
        return success(dict(list(found.items())[: limit or None]))

    def format_query(self, parameters: CallParameters) -> bytes:
        _parsed(parameters)
        return success(format_query(parameters.text("query")))

    def _budget(self, parameters: CallParameters) -> QueryBudget:
        limits = self._limits
        if parameters.text("timeout"):
            limits = limits.within(parameters.duration_ms("timeout") / 1000)
        return QueryBudget(limits)

    async def _label_values(self, request: Request) -> Response:
        name = request.path_params["name"]
        return await _answer(request, lambda parameters: self.label_values(name, parameters))

    async def _write(self, request: Request) -> Response:
        try:
            await run_in_threadpool(self._receive, await request.body())
        except HeadraceError as error:
            # Senders repeat what failed with 5xx, and drop the samples else: also at 429, unless
            # they are told not to. So only what can never be stored is 400.
            if isinstance(error, DocumentError):
                status = 400
            else:
                status = 503 if isinstance(error, QueueFullError | UsageError) else 500
            return PlainTextResponse(f"{error}\n", status)
        return Response(status_code=204)


def _parsed(parameters: CallParameters) -> Expression:
    try:
        return parse_query(parameters.text("query"))
    except QueryError as error:
        raise invalid("query", error.what) from error


def _run(budget: QueryBudget, limit: int, answer: Callable[[], QueryResult]) -> bytes:
    """Raises _FailedQueryError, which says how Prometheus names the failure."""
    try:
        result = answer()
    except QueryError as error:
        raise _FailedQueryError(str(error), timed_out=budget.expired) from error
    shortened = _shorten(result, limit)
    return query_answer(shortened, () if shortened is result else [_TRUNCATED])


def _shorten(result: QueryResult, limit: int) -> QueryResult:
    match result:
        case VectorResult(at_ms, labels, values) if 0 < limit < len(labels):
            return VectorResult(at_ms, labels[:limit], values[:limit])
        case MatrixResult(series) if 0 < limit < len(series.labels):
            end = int(series.offsets[limit])
            kept = SelectedSeries(
                series.labels[:limit],
                series.offsets[: limit + 1],
                series.timestamps[:end],
                series.values[:end],
            )
            return MatrixResult(kept)
    return result


class _FailedQueryError(Exception):
    """A query that could be read and not be answered."""

    def __init__(self, text: str, *, timed_out: bool) -> None:
        super().__init__(text)
        self.timed_out = timed_out


def _times(parameters: CallParameters) -> tuple[int | None, int | None]:
    start = parameters.time_ms("start") if parameters.text("start") else None
    end = parameters.time_ms("end") if parameters.text("end") else None
    return start, end


def _chosen(
    parameters: CallParameters, start: int | None, end: int | None
) -> list[Sequence[LabelMatcher]]:
    """Return the matchers of all selectors; of all series if there are none."""
    found = parameters.selectors() or [()]
    return [] if start is not None and end is not None and end < start else found


def _limited(found: Sequence[object], limit: int) -> bytes:
    if limit and len(found) > limit:
        return success(found[:limit], [_TRUNCATED])
    return success(found)


def _constant(data: object) -> Endpoint:
    return lambda parameters: success(data)


def _endpoint(function: Endpoint) -> Callable[[Request], object]:
    async def endpoint(request: Request) -> Response:
        return await _answer(request, function)

    return endpoint


def _page(text: str) -> Callable[[Request], object]:
    async def page(request: Request) -> Response:
        return PlainTextResponse(f"{text}\n")

    return page


async def _answer(request: Request, function: Endpoint) -> Response:
    form = await request.body() if request.method == "POST" else b""
    parameters = CallParameters(request.url.query.encode(), form)
    status, body = await run_in_threadpool(_answered, function, parameters)
    return Response(body, status, media_type="application/json")


def _answered(function: Endpoint, parameters: CallParameters) -> tuple[int, bytes]:
    """Return status and JSON of an answer. What is a bug goes on to the server."""
    try:
        return 200, function(parameters)
    except _FailedQueryError as error:
        if error.timed_out:
            return 503, failure("timeout", str(error))
        return 422, failure("execution", str(error))
    except UsageError as error:
        return 400, failure("bad_data", str(error))
    except StorageError as error:
        return 503, failure("unavailable", str(error))
    except HeadraceError as error:
        return 500, failure("internal", str(error))
