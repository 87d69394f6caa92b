"""The server that counts paid calls is right about them, or the tests that use it prove nothing."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.paid_server import PaidServer, embedding

pytestmark = pytest.mark.long


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaidServer]:
    with PaidServer(tmp_path / "bill", "--hang-s", "30", "--retry-after-s", "2") as server:
        yield server


def post(
    server: PaidServer,
    body: dict[str, Any],
    key: str = "",
    path: str = "/pay",
    timeout_s: float = 30,
) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=timeout_s)
    try:
        headers = {"Idempotency-Key": key} if key else {}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        connection.close()


def test_a_call_is_paid_before_it_is_answered(server: PaidServer) -> None:
    status, answer, _ = post(server, {"id": "a"}, "key-a")
    assert (status, answer) == (200, {"id": "a", "answer": "answer to a"})
    assert server.paid() == {"a": 1}
    assert server.paid_by_key() == {"key-a": 1}


def test_a_request_that_is_cut_off_is_not_paid(server: PaidServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    head = "POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 11\r\n\r\n"
    for body in ("", '{"id":'):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall((head + body).encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"", "nobody answers it"
    assert server.paid() == {}


def test_it_tells_how_many_calls_came_and_how_many_are_paid(tmp_path: Path) -> None:
    with PaidServer(tmp_path / "bill", "--honour-keys") as server:
        server.ask_faults("429")
        for key in ("key-a", "key-a", "key-a", "another"):
            post(server, {"id": "a"}, key)
        post(server, {"id": "b"}, "key-b")
        with urllib.request.urlopen(f"{server.url}/bill") as answer:
            bill = json.load(answer)
    assert bill == {"calls": 5, "calls_twice": 3, "paid": 3, "paid_twice": 1}


@pytest.mark.crash
def test_the_bill_survives_the_server(server: PaidServer) -> None:
    url = server.url
    for n in range(20):
        post(server, {"id": str(n)}, f"key-{n}")
    server.kill()
    assert not server.is_alive
    server.start()
    assert server.url == url
    post(server, {"id": "0"}, "key-0")
    assert server.paid() == {"0": 2} | {str(n): 1 for n in range(1, 20)}
    assert server.repeated == 1


def test_a_call_is_about_its_id_whatever_that_is(server: PaidServer) -> None:
    assert post(server, {"id": 0})[1] == {"id": "0", "answer": "answer to 0"}
    assert server.paid() == {"0": 1}


@pytest.mark.crash
def test_a_key_that_is_honoured_is_paid_once_even_after_a_restart(tmp_path: Path) -> None:
    with PaidServer(tmp_path / "bill", "--honour-keys") as server:
        first = post(server, {"id": "a"}, "key-a")[:2]
        assert post(server, {"id": "a"}, "key-a")[:2] == first
        server.kill()
        server.start()
        assert post(server, {"id": "a"}, "key-a")[:2] == first
        assert server.paid() == {"a": 1}
        post(server, {"id": "a"})
        post(server, {"id": "a"})
        assert server.paid() == {"a": 3}, "calls without a key are all paid"


@pytest.mark.parametrize(
    ("fault", "status", "paid"),
    [
        *[("429", 429, 0), ("429_date", 429, 0), ("503", 503, 0), ("400", 400, 0)],
        *[("401", 401, 0), ("500_before", 500, 0), ("500_after", 500, 1)],
    ],
)
def test_a_fault_with_a_status(server: PaidServer, fault: str, status: int, paid: int) -> None:
    server.ask_faults("", fault)
    assert post(server, {"id": "before"})[0] == 200
    assert post(server, {"id": "a"})[0] == status
    assert server.paid()["a"] == paid
    assert post(server, {"id": "after"})[0] == 200


def test_too_many_requests_say_when_to_come_back(server: PaidServer) -> None:
    server.ask_faults("429", "429_date")
    assert post(server, {})[2]["Retry-After"] == "2"
    assert post(server, {})[2]["Retry-After"].endswith(" GMT")


@pytest.mark.parametrize(("fault", "paid"), [("hang_before", 0), ("hang_after", 1)])
def test_a_call_that_hangs(server: PaidServer, fault: str, paid: int) -> None:
    server.ask_faults(fault)
    with pytest.raises(TimeoutError):
        post(server, {"id": "a"}, timeout_s=0.2)
    assert server.paid()["a"] == paid
    assert post(server, {"id": "b"})[0] == 200, "other calls are answered meanwhile"


@pytest.mark.crash
@pytest.mark.parametrize(("fault", "paid"), [("die_before", 0), ("die_after", 1)])
def test_the_server_dies_and_starts_again(server: PaidServer, fault: str, paid: int) -> None:
    server.ask_faults(fault)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        post(server, {"id": "a"})
    assert server.wait() == -signal.SIGKILL
    assert server.paid()["a"] == paid
    server.start()
    assert post(server, {"id": "a"})[0] == 200


def test_a_connection_that_is_cut_is_paid(server: PaidServer) -> None:
    server.ask_faults("cut_after")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        post(server, {"id": "a"})
    assert server.paid() == {"a": 1}


def test_it_answers_as_openai_does(server: PaidServer) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    chat = post(server, asked, path="/v1/chat/completions")[1]
    assert chat["choices"][0]["message"]["content"] == "answer to hello"
    assert chat["usage"]["total_tokens"] > 0
    vectors = post(server, {"model": "m", "input": ["a", "b"]}, path="/v1/embeddings")[1]
    assert [each["embedding"] for each in vectors["data"]] == [embedding("a"), embedding("b")]


def test_faults_by_chance_are_the_same_for_a_seed(tmp_path: Path) -> None:
    def statuses(name: str) -> list[int]:
        options = ("--fault", "429=0.3", "--fault", "500_after=0.3", "--seed", "7")
        with PaidServer(tmp_path / name, *options) as server:
            return [post(server, {"id": str(n)})[0] for n in range(30)]

    first = statuses("one")
    assert set(first) == {200, 429, 500}
    assert statuses("two") == first


def test_an_unknown_fault_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.testing.paid_server", "--bill", str(tmp_path / "b")]
    ended = subprocess.run([*command, "--fault", "flood=1"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "flood is no fault; choose from" in ended.stderr.splitlines()[-1]
