"""An operator that calls an HTTP service: a request from each row, columns from each answer.

    hr.http("https://api.example.com/score", json=lambda row: {"text": row["text"]},
            parse=lambda answer: {"score": answer["score"]}, cost=0.002)

Every request carries an Idempotency-Key that stays the same when it is sent again. What becomes of
an answer:

    2xx                                   parsed into columns
    401, 403, 407                         AccessError: the stage fails, no row is to blame
    408, 425, 429, 503 with Retry-After   tried again: the server refused, so nothing was paid
    409, 5xx, no answer, a time-out       tried again, in doubt: it may have been paid
    no connection                         tried again: nothing was sent
    anything else                         an error of the row
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Literal

import httpx
import pyarrow as pa

from headrace.errors import AccessError, RetryableError, UnitError, UsageError
from headrace.pipeline.calls.answer import Answer, current_call
from headrace.pipeline.calls.call_results import one_line
from headrace.pipeline.operators.operator import Operator
from headrace.pipeline.operators.retries import Retries
from headrace.pipeline.rate_limit.state import RateLimitSpec

Row = dict[str, Any]

_REFUSED_ACCESS = {401, 403, 407}
_REFUSED_FOR_NOW = {408, 425, 429}
_IN_CONFLICT = 409
_UNAVAILABLE = 503
_SERVER_ERRORS = 500
_EXCERPT_LENGTH = 200
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_CONCURRENCY = 8


class HttpOperator(Operator):
    """Calls a service for each row, or for each few rows.

    `json` returns the body for a row, and `parse` returns columns from the answer, which are added
    to the row. With `rows_per_request` above 1, `json` takes a list of rows, and `parse` returns a
    list of columns, one for each row. They must not block: they run in the event loop.
    """

    def __init__(
        self,
        url: str | Callable[[Row], str],
        *,
        json: Callable[[Any], Any] | None = None,
        parse: Callable[[Any], Any] | None = None,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        bearer_env: str = "",
        is_bearer_required: bool = True,
        read: Literal["json", "text", "bytes"] = "json",
        rows_per_request: int = 1,
        timeout_s: float = 60.0,
        cost: float | Callable[[Any], float] | None = None,
        tokens: Callable[[Row], int] | None = None,
        used_tokens: Callable[[Any], int] | None = None,
        rate_limit: RateLimitSpec | None = None,
        idempotency_header: str = "Idempotency-Key",
        version: str = "",
    ) -> None:
        """`bearer_env` names the environment variable, on the workers, that holds the token.

        `cost` and `used_tokens` are functions of the answer; `tokens` is what a row is expected to
        use. Without `parse`, an answer that is a JSON object gives the columns.
        """
        if callable(url) and rows_per_request > 1:
            raise UsageError("a URL for each row needs a request for each row", do="use one URL")
        self.version = version
        self.rate_limit = rate_limit
        self.rows_per_request = rows_per_request
        self.timeout_s = timeout_s
        self.cost = cost
        self._url = url
        self._json = json
        self._parse = parse
        self._method = method
        self._headers = dict(headers or {})
        self._bearer_env = bearer_env
        self._is_bearer_required = is_bearer_required
        self._read = read
        self._tokens = tokens
        self._used_tokens = used_tokens
        self._idempotency_header = idempotency_header
        self._client: httpx.AsyncClient | None = None

    def spec_defaults(self) -> dict[str, Any]:
        """What a stage with this operator declares unless it is told otherwise."""
        return {
            "batch_size": self.rows_per_request,
            "concurrency": _CONCURRENCY,
            "expensive": True,
            "retries": Retries(attempts_max=8),
            "rate_limit": self.rate_limit,
            "cost": None if callable(self.cost) else self.cost,
        }

    def __headrace_identity__(self) -> tuple[Any, ...]:
        """What results depend on: not the headers, which hold secrets, nor the prices."""
        return (self._url, self._method, self._json, self._parse, self._read)

    async def setup(self) -> None:
        headers = dict(self._headers)
        if self._bearer_env:
            token = os.environ.get(self._bearer_env)
            if token:
                headers["Authorization"] = f"Bearer {token}"
            elif self._is_bearer_required:
                raise UsageError(
                    f"the environment variable {self._bearer_env} is not set",
                    do="set it to the token, for the driver and for all workers",
                )
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(headers=headers, limits=limits, timeout=self.timeout_s)

    async def close(self) -> None:
        if self._client:
            await self._client.aclose()

    def expected_tokens(self, batch: pa.RecordBatch) -> int:
        return sum(map(self._tokens, batch.to_pylist())) if self._tokens else 0

    async def process(self, batch: pa.RecordBatch) -> Answer:
        rows = batch.to_pylist()
        request = self._build(rows)
        response = await self._send(request)
        _check_status(response)
        try:
            answer = self._decode(response)
            columns = self._columns(answer, rows)
            tokens = self._used_tokens(answer) if self._used_tokens else 0
        except Exception as error:
            raise UnitError(
                f"{_name(request)} answered {_excerpt(response)}, which cannot be parsed:"
                f" {one_line(error)}",
                do="mend what parses the answer",
            ) from error
        table = _append(batch, columns)
        if callable(self.cost):
            return Answer(table, partial(self.cost, answer), tokens)
        return Answer(table, self.cost, tokens)

    def _build(self, rows: list[Row]) -> httpx.Request:
        assert self._client is not None, "it was not set up"
        given: Any = rows if self.rows_per_request > 1 else rows[0]
        try:
            url = self._url(rows[0]) if callable(self._url) else self._url
            body = self._json(given) if self._json else None
            headers = {self._idempotency_header: current_call().idempotency_key}
            return self._client.build_request(
                self._method, url, json=body, headers=headers if self._idempotency_header else None
            )
        except Exception as error:
            raise UnitError(
                f"the request cannot be built: {one_line(error)}",
                do="mend what builds it, or the row",
                in_doubt=False,
            ) from error

    async def _send(self, request: httpx.Request) -> httpx.Response:
        assert self._client is not None, "it was not set up"
        try:
            # The time-outs of httpx are for each phase: a server that trickles meets none of them.
            async with asyncio.timeout(self.timeout_s):
                return await self._client.send(request)
        except _NOT_SENT as error:
            raise RetryableError(f"{_name(request)}: no connection: {one_line(error)}") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise RetryableError(
                f"{_name(request)} did not answer within {self.timeout_s:g} s", in_doubt=True
            ) from error
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise UnitError(
                f"{_name(request)}: {one_line(error)}", do="correct the URL", in_doubt=False
            ) from error
        except httpx.TransportError as error:
            raise RetryableError(
                f"{_name(request)} was cut off: {one_line(error)}", in_doubt=True
            ) from error

    def _decode(self, response: httpx.Response) -> Any:
        if self._read == "json":
            return response.json()
        return response.text if self._read == "text" else response.content

    def _columns(self, answer: Any, rows: list[Row]) -> list[Mapping[str, Any]]:
        """Return the columns that the answer gives to each row."""
        parsed = self._parse(answer) if self._parse else answer
        columns: Sequence[Any] = parsed if self.rows_per_request > 1 else [parsed]
        if len(columns) != len(rows):
            raise ValueError(f"it has {len(columns)} parts for {len(rows)} rows")
        if wrong := [each for each in columns if not isinstance(each, Mapping)]:
            raise TypeError(f"parse must return a dict, not {type(wrong[0]).__name__}")
        return list(columns)


http = HttpOperator


def _check_status(response: httpx.Response) -> None:
    """Raise what the status means, unless it means success."""
    status = response.status_code
    if response.is_success:
        return
    what = f"{_name(response.request)} answered {status}: {_excerpt(response)}"
    if status in _REFUSED_ACCESS:
        raise AccessError(what, do="check the token and what it may do")
    retry_after_s = parse_retry_after(response.headers, time.time())
    is_refused = status in _REFUSED_FOR_NOW
    if status == _UNAVAILABLE and retry_after_s is not None:
        is_refused = True
    if is_refused:
        raise RetryableError(what, retry_after_s=retry_after_s)
    if status >= _SERVER_ERRORS or status == _IN_CONFLICT:
        raise RetryableError(what, retry_after_s=retry_after_s, in_doubt=True)
    raise UnitError(what, do="correct the request or the row", in_doubt=False)


def parse_retry_after(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the pause that a server asks for, in seconds; None if it asks for none."""
    milliseconds = headers.get("retry-after-ms", "")
    text = headers.get("retry-after", "")
    try:
        if milliseconds:
            return max(0.0, float(milliseconds) / 1000)
        return max(0.0, float(text))
    except ValueError:
        pass  # It may be a date.
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except ValueError:
        return None


def _name(request: httpx.Request) -> str:
    """Return method and address, without a query, which may hold a secret."""
    return f"{request.method} {request.url.copy_with(query=None)}"


def _excerpt(response: httpx.Response) -> str:
    text = " ".join(response.text.split())
    return text if len(text) <= _EXCERPT_LENGTH else f"{text[:_EXCERPT_LENGTH]}..."


def _append(batch: pa.RecordBatch, columns: list[Mapping[str, Any]]) -> pa.Table:
    """Add columns to a batch; one that is there already is replaced."""
    table = pa.Table.from_batches([batch])
    for name in dict.fromkeys(name for each in columns for name in each):
        values = pa.array([each.get(name) for each in columns])
        index = table.column_names.index(name) if name in table.column_names else -1
        if index >= 0:
            table = table.set_column(index, name, values)
        else:
            table = table.append_column(name, values)
    return table
