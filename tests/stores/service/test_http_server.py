"""The HTTP server: who may call, how much they may send, what errors say, and what it leaves."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headrace.errors import (
    ExistsError,
    HeadraceError,
    NotFoundError,
    QueryError,
    QueueFullError,
    StorageError,
    UsageError,
)
from headrace.settings import ServiceSettings
from headrace.stores.service.http_server import HttpServer
from headrace.testing.crash import eventually
from tests.certificate import make_certificate

TOKEN = "a-secret-of-the-tests"
LIMIT = 1000
ERRORS: dict[str, Exception] = {
    "query": QueryError("no\nquery", do="write one"),
    "missing": NotFoundError("nothing is there"),
    "exists": ExistsError("it is there"),
    "full": QueueFullError("too much waits"),
    "disk": StorageError("the disk is full"),
    "other": HeadraceError("something else"),
    "bug": ZeroDivisionError("by zero"),
}


async def echo(request: Request) -> Response:
    return PlainTextResponse(await request.body())


def fail(request: Request) -> Response:
    raise ERRORS[request.path_params["name"]]


ROUTES = [
    Route("/", lambda request: PlainTextResponse("hello")),
    Route("/echo", echo, methods=["POST"]),
    Route("/fail/{name}", fail),
]


@contextlib.contextmanager
def served(**settings: Any) -> Iterator[HttpServer]:
    with HttpServer(ROUTES, ServiceSettings(**settings), body_bytes_max=LIMIT) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[HttpServer]:
    with served() as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[HttpServer]:
    with served(token=TOKEN) as server:
        yield server


def get(server: HttpServer, path: str = "/", **headers: str) -> httpx.Response:
    return httpx.get(server.address + path, headers=headers, trust_env=False)


def test_it_answers_on_loopback_at_the_port_that_it_names() -> None:
    with served() as server:
        assert server.address.startswith("http://127.0.0.1:")
        answer = get(server)
        assert (answer.status_code, answer.text) == (200, "hello")
        assert "server" not in answer.headers


def test_closing_leaves_no_thread_and_no_port() -> None:
    before = set(threading.enumerate())
    with served() as server:
        assert get(server).status_code == 200
        port = int(server.address.rpartition(":")[2])
    server.close()
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))
    # The threads of the pool end with the loop that had them.
    eventually(lambda: set(threading.enumerate()) <= before, 5, "the threads of the server end")
    with served(port=port) as server:
        assert get(server).status_code == 200


def test_closing_does_not_wait_for_a_caller_that_says_nothing() -> None:
    with served() as server, socket.socket() as caller:
        caller.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
        caller.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert get(server).status_code == 200
        server.close()
        assert not server._thread.is_alive()


def test_a_port_that_is_taken_is_named() -> None:
    with served() as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is in use"):
            served(port=port).__enter__()


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1:0"):
        served(host="192.0.2.1", token=TOKEN).__enter__()


# proves G28
def test_it_does_not_listen_to_other_machines_without_a_token() -> None:
    with pytest.raises(UsageError, match=r"listening on 0\.0\.0\.0 without a token"):
        served(host="0.0.0.0").__enter__()


# proves G28
@pytest.mark.parametrize("sent", [None, "", "Bearer", f"Bearer {TOKEN}x", TOKEN, "Bearer \xe9"])
@pytest.mark.parametrize("path", ["/", "/nowhere", "/fail/bug", "/echo"])
def test_without_the_token_nobody_learns_anything(
    guarded: HttpServer, sent: str | None, path: str
) -> None:
    headers = [] if sent is None else [(b"Authorization", sent.encode("latin-1"))]
    answer = httpx.get(guarded.address + path, headers=headers, trust_env=False)
    assert answer.status_code == 401
    assert answer.json() == {
        "status": "error",
        "errorType": "unauthorized",
        "error": "access refused; send the token",
    }
    assert TOKEN not in answer.text + str(answer.headers)
    assert get(guarded, authorization=f"Bearer {TOKEN}").text == "hello"


# proves G28
def test_two_tokens_are_as_good_as_none(guarded: HttpServer) -> None:
    given = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")]
    assert httpx.get(guarded.address, headers=given, trust_env=False).status_code == 401


# proves G28
def test_with_tls_nothing_else_is_spoken(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with served(tls_certificate=made.certificate, tls_key=made.key) as server:
        assert server.address.startswith("https://")
        trusting = ssl.create_default_context(cafile=made.certificate)
        assert httpx.get(server.address, verify=trusting, trust_env=False).text == "hello"
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.address, trust_env=False)
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.address.replace("https", "http"), trust_env=False)


def test_a_broken_certificate_is_named(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    Path(made.key).write_text("no key")
    with pytest.raises(UsageError, match="the TLS certificate or its key cannot be used"):
        served(tls_certificate=made.certificate, tls_key=made.key).__enter__()
    with pytest.raises(UsageError, match="belong together"):
        served(tls_certificate=made.certificate).__enter__()


# proves G28
@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Host": ""}]
)
def test_a_page_of_another_site_reaches_nothing(
    plain: HttpServer, guarded: HttpServer, headers: dict[str, str]
) -> None:
    answer = httpx.get(plain.address, headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["errorType"]) == (403, "forbidden")
    assert get(guarded, authorization=f"Bearer {TOKEN}", **headers).text == "hello"


# proves G28
def test_a_call_is_of_this_machine_if_its_browser_says_so(plain: HttpServer) -> None:
    assert get(plain, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert get(plain, **{"Sec-Fetch-Site": "same-origin"}).text == "hello"
    assert get(plain, host="localhost:99").text == "hello"


def test_a_body_up_to_the_limit_is_taken(plain: HttpServer) -> None:
    answer = httpx.post(plain.address + "/echo", content=b"x" * LIMIT, trust_env=False)
    assert answer.content == b"x" * LIMIT


@pytest.mark.parametrize("announced", [True, False])
def test_a_larger_body_is_refused(plain: HttpServer, announced: bool) -> None:
    pieces = iter([b"x" * LIMIT, b"x"])
    answer = httpx.post(
        plain.address + "/echo",
        content=b"".join(pieces) if announced else pieces,
        trust_env=False,
    )
    assert answer.status_code == 413
    assert answer.json()["error"] == "the body has more than 1000 bytes; send it in parts"
    assert get(plain).status_code == 200


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("query", 400, "no query; write one"),
        ("missing", 404, "nothing is there"),
        ("exists", 409, "it is there"),
        ("full", 429, "too much waits"),
        ("disk", 503, "the disk is full"),
        ("other", 500, "something else"),
        ("bug", 500, "/fail/bug: ZeroDivisionError: by zero; report it"),
    ],
)
def test_errors_are_one_line_of_json(plain: HttpServer, name: str, status: int, text: str) -> None:
    answer = get(plain, f"/fail/{name}")
    assert answer.status_code == status
    assert answer.text.endswith("}\n")
    assert answer.text.count("\n") == 1
    told = answer.json()
    assert told["status"] == "error"
    assert told["error"].startswith(text)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/no", 404), ("PUT", "/", 405)])
def test_what_is_not_there_is_an_error_like_any_other(
    plain: HttpServer, method: str, path: str, status: int
) -> None:
    answer = httpx.request(method, plain.address + path, trust_env=False)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(f"{method} {path}: ")


def test_what_is_no_http_harms_nobody(plain: HttpServer) -> None:
    with socket.socket() as caller:
        caller.connect(("127.0.0.1", int(plain.address.rpartition(":")[2])))
        caller.sendall(b"\x00\x01rubbish\r\n\r\n")
        assert caller.recv(12) == b"HTTP/1.1 400"
    with contextlib.closing(http.client.HTTPConnection(plain.address[7:])) as caller_:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x"}
        caller_.request("GET", "/", headers=upgrade)
        assert caller_.getresponse().status == 200
    assert get(plain).status_code == 200
