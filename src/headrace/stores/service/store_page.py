"""What HTTP serves of a store: the routes of its kind, and a page that says what there is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.errors import UsageError
from headrace.settings import ServiceSettings
from headrace.stores.service.http_server import HttpServer
from headrace.stores.service.shared_store import SharedStore
from headrace.stores.service.store_service import StoreOwner

_STYLE = "body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto}td{padding-right:1em}"
_HINTS = {
    "timeseries": "Grafana reads it as a data source of type Prometheus, at this address.",
    "vectors": "Send and receive JSON; see docs/stores.md for examples.",
}


def serve_http(store: SharedStore, settings: ServiceSettings) -> HttpServer:
    """Serve an open store over HTTP. Only the process that has it open can: raises UsageError."""
    if store.owner is None:
        raise UsageError(
            f"{store.place} is open in another process, which alone can serve it over HTTP",
            do="serve it before other processes open it: they work through that process",
        )
    return HttpServer(store_routes(store.owner), settings)


def store_routes(owner: StoreOwner) -> Sequence[BaseRoute]:
    """Return the routes of an open store, and the page at `/`."""
    routes = owner.kind.routes(owner.store)

    async def page(request: Request) -> Response:
        figures = await run_in_threadpool(owner.store.stat)
        return HTMLResponse(_page(owner.kind.name, figures, routes))

    return [Route("/", page), *routes]


def _page(kind: str, figures: dict[str, int | float | str], routes: Sequence[BaseRoute]) -> str:
    stat = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in figures.items()
    )
    paths = "".join(
        f"<li><code>{escape(' '.join(sorted(each.methods or ())))} {escape(each.path)}</code></li>"
        for each in routes
        if isinstance(each, Route)
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>Headrace store</title><style>{_STYLE}</style>"
        f"<h1>A Headrace store of {escape(kind)}</h1><p>{escape(_HINTS.get(kind, ''))}</p>"
        f"<h2>What it holds</h2><table>{stat}</table><h2>What can be called</h2><ul>{paths}</ul>\n"
    )
