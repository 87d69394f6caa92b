"""The HTTP interface of a vector store: JSON in, JSON out.

    POST /vectors/upsert   {"rows": [{"id": "a", "vector": [...], "color": "red"}, ...]}
    POST /vectors/delete   {"ids": ["a", ...]}
    POST /vectors/get      {"ids": ["a", ...]}
    POST /vectors/search   {"vector": [...], "k": 10, "filter": {"field": "color", "eq": "red"}}
    GET  /stat

An answer is {"status": "success", "data": ...}. An error is {"status": "error", "error": ...} on
one line, with a status of 400 for a bad call, 413 for too large a body, 429 if too much waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.decoders import decode_json
from headrace.errors import DocumentError, HeadraceError, QueryError
from headrace.stores.service.http_access import error_response, status_of
from headrace.stores.vectors.vector_documents import as_documents, document_rows
from headrace.stores.vectors.vector_store import VectorStore

T = TypeVar("T", bound=msgspec.Struct)

QUERIES_MAX = 1000
FOUND_MAX = 100_000
"""Rows that all searches of one call may ask for together."""
IDS_MAX = 100_000

Answer = Callable[[VectorStore, bytes], Any]


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True): ...


class UpsertCall(_Call, frozen=True):
    """Rows to add or replace; with `durable` the answer comes when they survive a power failure."""

    rows: list[dict[str, Any]]
    durable: bool = True


class DeleteCall(_Call, frozen=True):
    """Ids to delete."""

    ids: list[str]
    durable: bool = True


class GetVectorsCall(_Call, frozen=True):
    """Ids to look up."""

    ids: list[str]
    columns: list[str] | None = None
    fresh: bool = False


class SearchCall(_Call, frozen=True):
    """One vector, or several, and how to search: see `VectorStore.search_many`."""

    vector: list[float] | None = None
    vectors: list[list[float]] | None = None
    k: int = 10
    filter: dict[str, Any] | None = None
    exact: bool = False
    fresh: bool = False
    columns: list[str] | None = None
    probe_rows: int | None = None


def vector_routes(store: VectorStore) -> Sequence[Route]:
    """Return the routes of a store. Whoever serves them says who may call, and how much."""

    def route(path: str, answer: Answer, method: str = "POST") -> Route:
        async def endpoint(request: Request) -> Response:
            body = await request.body()
            try:
                data = await run_in_threadpool(answer, store, body)
            except HeadraceError as error:
                return error_response(status_of(error), type(error).__name__, str(error))
            return Response(
                msgspec.json.encode({"status": "success", "data": data}) + b"\n",
                media_type="application/json",
            )

        return Route(path, endpoint, methods=[method])

    return [
        route("/vectors/upsert", _upsert),
        route("/vectors/delete", _delete),
        route("/vectors/get", _get),
        route("/vectors/search", _search),
        route("/stat", lambda store, _: store.stat(), "GET"),
    ]


def _call(body: bytes, kind: type[T], error: type[HeadraceError]) -> T:
    try:
        return decode_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        fields = ", ".join(kind.__struct_fields__)
        raise error(
            f"cannot read the call: {str(cause)[:200]}",
            do=f"send a JSON object with the fields {fields}",
        ) from cause


def _upsert(store: VectorStore, body: bytes) -> dict[str, Any]:
    call = _call(body, UpsertCall, DocumentError)
    epoch = store.write(document_rows(store.vector_schema, call.rows))
    if call.durable:
        store.flush(epoch)
    return {"rows": len(call.rows), "epoch": epoch}


def _delete(store: VectorStore, body: bytes) -> dict[str, Any]:
    call = _call(body, DeleteCall, DocumentError)
    epoch = store.delete(call.ids)
    if call.durable:
        store.flush(epoch)
    return {"ids": len(call.ids), "epoch": epoch}


def _get(store: VectorStore, body: bytes) -> list[dict[str, Any]]:
    call = _call(body, GetVectorsCall, QueryError)
    _limit("ids", len(call.ids), IDS_MAX)
    return as_documents(store.get(call.ids, call.columns, fresh=call.fresh))


def _search(store: VectorStore, body: bytes) -> list[Any]:
    call = _call(body, SearchCall, QueryError)
    if (call.vector is None) == (call.vectors is None):
        raise QueryError("a search needs vector or vectors, and not both", do="give one of them")
    queries = [call.vector] if call.vector is not None else call.vectors or []
    _limit("vectors", len(queries), QUERIES_MAX)
    _limit("rows to find", len(queries) * call.k, max(FOUND_MAX, store.settings.k_max))
    found = store.search_many(
        queries,
        call.k,
        call.filter,
        exact=call.exact,
        fresh=call.fresh,
        columns=call.columns,
        probe_rows=call.probe_rows,
    )
    answers = [as_documents(each) for each in found]
    return answers if call.vector is None else answers[0]


def _limit(what: str, count: int, most: int) -> None:
    if count > most:
        raise QueryError(f"a call names {count} {what}", do=f"name at most {most} in one call")
