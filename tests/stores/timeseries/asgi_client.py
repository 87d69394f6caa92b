"""Calls an application without a server between."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from starlette.applications import Starlette


class AsgiClient:
    def __init__(self, app: Starlette) -> None:
        self._app = app

    def get(self, path: str, **call: Any) -> httpx.Response:
        return self.request("GET", path, **call)

    def head(self, path: str) -> httpx.Response:
        return self.request("HEAD", path)

    def post(self, path: str, **call: Any) -> httpx.Response:
        return self.request("POST", path, **call)

    def request(self, method: str, path: str, **call: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://store") as client:
                return await client.request(method, path, **call)

        return asyncio.run(ask())
