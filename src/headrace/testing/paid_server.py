"""A real HTTP server whose calls cost money: it counts them in a file that outlives it.

    python -m headrace.testing.paid_server --bill calls.ndjson --port 0 --honour-keys

It pays first and answers afterwards, as a provider does. Every paid call is one line of the bill,
written before the answer, so the count is right after `kill -9` of the server too. With
`--honour-keys` a call whose Idempotency-Key is on the bill is answered again and not paid again,
also after a restart.

Routes: `POST /v1/chat/completions` and `POST /v1/embeddings` answer as OpenAI does; a POST to any
other path answers `{"id": …, "answer": …}`. What a call is about is the `id` of its JSON body, or
the whole body if there is none. `POST /faults` with `{"faults": ["429", "hang_after"]}` makes the
next calls fail in that way, one fault a call; `--fault KIND=SHARE` makes a share of all calls fail.
`GET /bill` tells how many calls came since the server started, how many are paid, and how many of
each were about a thing that had one before.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self

FAULTS = (
    "429",  # refuse before paying, with Retry-After
    "429_date",  # the same, with Retry-After as a date
    "503",  # refuse before paying
    "400",  # refuse before paying, for good
    "401",  # refuse before paying, as for a wrong key
    "500_before",  # answer 500 and do not pay
    "500_after",  # pay, and answer 500
    "hang_before",  # answer nothing for `hang_s`, and do not pay
    "hang_after",  # pay, and answer nothing for `hang_s`
    "cut_after",  # pay, and close the connection without an answer
    "die_before",  # the server kills itself before paying
    "die_after",  # the server pays, and kills itself before it answers
    "garbage",  # pay, and answer something that is not JSON
)
EMBEDDING_SIZE = 8
_DATE_FORMAT = "%a, %d %b %Y %H:%M:%S GMT"
_START_TIMEOUT_S = 30.0
_PARENT_LOOK_S = 1.0


class PaidCall(NamedTuple):
    """One line of the bill."""

    key: str
    """The Idempotency-Key; empty if the call had none."""
    about: str
    """The `id` of the body, or a hash of the body."""
    path: str


class Bill:
    """The paid calls, in a file to which one line is appended at a time."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        paid = read_bill(path)
        self._keys = {call.key for call in paid}
        self._paid = Counter(call.about for call in paid)
        self._came: Counter[str] = Counter()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def came(self, about: str) -> None:
        """Count a call that came, whether or not it is paid."""
        with self._lock:
            self._came[about] += 1

    def pay(self, call: PaidCall, honour_key: bool) -> None:
        """Append the call, unless its key is honoured and was paid for before."""
        with self._lock:
            if honour_key and call.key and call.key in self._keys:
                return
            # One write of a short line: a kill leaves all of it or none of it.
            os.write(self._file, json.dumps(call._asdict()).encode() + b"\n")
            self._keys.add(call.key)
            self._paid[call.about] += 1

    def totals(self) -> dict[str, int]:
        """Return what `GET /bill` answers."""
        with self._lock:
            return {
                "calls": self._came.total(),
                "calls_twice": self._came.total() - len(self._came),
                "paid": self._paid.total(),
                "paid_twice": self._paid.total() - len(self._paid),
            }

    def close(self) -> None:
        os.close(self._file)


def read_bill(path: Path) -> list[PaidCall]:
    """Return the paid calls so far, oldest first."""
    if not path.exists():
        return []
    return [PaidCall(**json.loads(line)) for line in path.read_text().splitlines()]


class _Faults:
    """Decides what goes wrong with a call: first what was asked for, then by chance."""

    def __init__(self, shares: Mapping[str, float], seed: int) -> None:
        self._lock = threading.Lock()
        self._asked: deque[str] = deque()
        self._shares = shares
        self._chance = random.Random(seed)

    def ask(self, faults: Sequence[str]) -> None:
        if unknown := set(faults) - set(FAULTS) - {""}:
            raise ValueError(f"unknown faults {sorted(unknown)}; choose from {', '.join(FAULTS)}")
        with self._lock:
            self._asked.extend(faults)

    def next(self) -> str:
        with self._lock:
            if self._asked:
                return self._asked.popleft()
            drawn = self._chance.random()
            for fault, share in self._shares.items():
                drawn -= share
                if drawn < 0:
                    return fault
            return ""


class _PaidHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bill = Bill(options.bill)
        self.faults = _Faults(dict(options.fault), options.seed)
        super().__init__(("127.0.0.1", options.port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed, or gave up waiting, is no error of the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _PaidHttpServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: a test reads the bill."""

    def do_GET(self) -> None:
        self._answer(200, self.server.bill.totals() if self.path == "/bill" else {"ready": True})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            # The client died in the middle of its request: nobody asked for anything.
            self.close_connection = True
        elif self.path == "/faults":
            self.server.faults.ask(json.loads(body)["faults"])
            self._answer(200, {})
        else:
            self._serve_call(body)

    def _serve_call(self, body: bytes) -> None:
        options = self.server.options
        request = json.loads(body) if body else {}
        about = str(request.get("id", hashlib.sha256(body).hexdigest()[:16]))
        self.server.bill.came(about)
        fault = self.server.faults.next()
        if fault and not fault.endswith("_after") and fault != "garbage":
            self._fail(fault)
            return
        time.sleep(options.delay_ms / 1000)
        call = PaidCall(self.headers.get("Idempotency-Key", ""), about, self.path)
        self.server.bill.pay(call, options.honour_keys)
        if fault:
            self._fail(fault)
        else:
            self._answer(200, _answer_to(self.path, about, request))

    def _fail(self, fault: str) -> None:
        options = self.server.options
        kind = fault.partition("_")[0]
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind in {"hang", "cut"}:
            time.sleep(options.hang_s if kind == "hang" else 0)
            self.close_connection = True
        elif kind == "garbage":
            self._send(200, b"<html>not JSON</html>", {})
        else:
            headers = {"Retry-After": self._retry_after(fault)} if kind == "429" else {}
            self._answer(
                int(kind), {"error": {"message": f"the server was told: {fault}"}}, headers
            )

    def _retry_after(self, fault: str) -> str:
        seconds = self.server.options.retry_after_s
        if fault == "429_date":
            return time.strftime(_DATE_FORMAT, time.gmtime(math.ceil(time.time() + seconds)))
        return f"{seconds:g}"

    def _answer(
        self, status: int, answer: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        self._send(status, json.dumps(answer).encode(), headers or {})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _answer_to(path: str, about: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer that depends on the request alone, so it is the same each time."""
    if path.endswith("/chat/completions"):
        text = f"answer to {request['messages'][-1]['content']}"
        return {
            "id": f"chatcmpl-{about}",
            "object": "chat.completion",
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": _usage(len(json.dumps(request["messages"])) // 4, len(text) // 4),
        }
    if path.endswith("/embeddings"):
        given = request["input"] if isinstance(request["input"], list) else [request["input"]]
        data = [
            {"object": "embedding", "index": n, "embedding": embedding(text)}
            for n, text in enumerate(given)
        ]
        return {"object": "list", "data": data, "usage": _usage(sum(map(len, given)) // 4, 0)}
    return {"id": about, "answer": f"answer to {about}"}


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def embedding(text: str) -> list[float]:
    """Return the vector that the server answers for a text."""
    return [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:EMBEDDING_SIZE]]


class PaidServer:
    """Starts the server in a process of its own, kills it, and starts it again on the same port."""

    def __init__(self, bill: Path, *options: str) -> None:
        """`options` are those of the command line, such as `--honour-keys`."""
        self.bill = bill
        self._options = options
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it, and return when it answers."""
        announced, theirs = os.pipe()
        command = [sys.executable, "-m", "headrace.testing.paid_server"]
        command += ["--bill", str(self.bill), "--port", str(self._port), *self._options]
        self._process = subprocess.Popen(
            [*command, "--announce", str(theirs)],
            pass_fds=[theirs],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        os.close(theirs)
        with os.fdopen(announced) as pipe:
            line = pipe.readline()
        if not line:
            raise RuntimeError(f"the paid server ended with code {self._process.wait()}")
        self._port = int(line)
        return self

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait(self, timeout_s: float = _START_TIMEOUT_S) -> int:
        """Wait until the server has ended by itself; return its exit code."""
        assert self._process is not None, "it was not started"
        return self._process.wait(timeout_s)

    def ask_faults(self, *faults: str) -> None:
        """Make the next calls fail, one fault a call; "" lets a call pass."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("POST", "/faults", json.dumps({"faults": faults}))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, f"the server refused the faults {faults}"
        finally:
            connection.close()

    def paid(self) -> Counter[str]:
        """Return how often each thing was paid for, by the `id` of the request."""
        return Counter(call.about for call in read_bill(self.bill))

    def paid_by_key(self) -> Counter[str]:
        return Counter(call.key for call in read_bill(self.bill))

    @property
    def repeated(self) -> int:
        """Paid calls beyond the first for the same thing."""
        return sum(count - 1 for count in self.paid().values())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()


def _fault_share(text: str) -> tuple[str, float]:
    kind, _, share = text.partition("=")
    if kind not in FAULTS:
        raise argparse.ArgumentTypeError(f"{kind} is no fault; choose from {', '.join(FAULTS)}")
    return kind, float(share)


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.paid_server")
    parser.add_argument("--bill", type=Path, required=True, help="the file that counts paid calls")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it")
    parser.add_argument("--honour-keys", action="store_true", help="pay once per Idempotency-Key")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="how long a call takes")
    parser.add_argument("--hang-s", type=float, default=3600.0, help="how long a fault hangs")
    parser.add_argument("--retry-after-s", type=float, default=1.0, help="what a 429 asks for")
    parser.add_argument(
        "--fault", type=_fault_share, action="append", default=[], metavar="K=SHARE"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the faults by chance")
    parser.add_argument("--announce", type=int, help="a file descriptor that gets the port")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> None:
    options = _arguments(given)
    server = _PaidHttpServer(options)
    port = server.server_address[1]
    if options.announce is None:
        print(f"http://127.0.0.1:{port}", flush=True)
    else:
        with os.fdopen(options.announce, "w") as pipe:
            pipe.write(f"{port}\n")
        _end_with_parent()
    try:
        server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        server.bill.close()


def _end_with_parent() -> None:
    """A test that is killed takes its server along."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_LOOK_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
