from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from headrace.errors import StorageError
from headrace.storage import S3Options, open_objects
from tests.s3 import BUCKET

NOBODY = "http://127.0.0.1:1"


@contextmanager
def losing_the_first_answer_to_a_put(endpoint: str) -> Iterator[str]:
    """Yield a proxy of `endpoint` that passes on the first put and loses its answer."""
    lost = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if self.command == "PUT" and answer.status == 200 and not lost.is_set():
                lost.set()
                self.send_error(500)
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = forward

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()
    assert lost.is_set()


def test_who_won_learns_it_although_the_answer_was_lost(s3: S3Options) -> None:
    with losing_the_first_answer_to_a_put(s3["endpoint"]) as endpoint:
        url = f"s3://{BUCKET}/lost-answer"
        objects = open_objects(url, **(s3 | {"endpoint": endpoint}))
        assert objects.put_if_absent("a", b"1")
        assert not objects.put_if_absent("a", b"2")
        assert objects.get("a") == b"1"


def test_a_prefix_hides_what_is_beside_it(s3: S3Options) -> None:
    open_objects(f"s3://{BUCKET}/beside/a/b", **s3).put("x", b"1")
    assert open_objects(f"s3://{BUCKET}/beside/a/", **s3).get("b/x") == b"1"
    assert open_objects(f"s3://{BUCKET}/beside/a/bc", **s3).list() == []


def test_wrong_credentials_are_an_error_that_says_so(s3: S3Options) -> None:
    objects = open_objects(f"s3://{BUCKET}", **(s3 | {"secret_access_key": "wrong"}))
    for call in (
        lambda: objects.put("a", b""),
        lambda: objects.put_if_absent("a", b""),
        lambda: objects.get("a"),
        lambda: objects.get_range("a", 0, 1),
        lambda: objects.head("a"),
        lambda: objects.list(),
        lambda: objects.delete("a"),
    ):
        with pytest.raises(StorageError, match="access denied; check the credentials"):
            call()


def test_a_missing_bucket_is_not_a_missing_object(s3: S3Options) -> None:
    objects = open_objects("s3://no-such-bucket/x", **s3)
    for call in (
        lambda: objects.get("a"),
        lambda: objects.get_range("a", 0, 1),
        lambda: objects.list(),
        lambda: objects.delete("a"),
    ):
        with pytest.raises(StorageError, match="no such bucket; create it"):
            call()


def test_an_unreachable_endpoint_is_reported_within_seconds(s3: S3Options) -> None:
    objects = open_objects(f"s3://{BUCKET}", **(s3 | {"endpoint": NOBODY}))
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot get a in s3://.*; check that the endpoint"):
        objects.get("a")
    with pytest.raises(StorageError) as refusal:
        objects.put_if_absent("a", b"")
    assert time.monotonic() - started < 60
    assert "\n" not in str(refusal.value)


def test_missing_credentials_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", NOBODY)
    with pytest.raises(StorageError, match="no credentials were found; give access_key_id"):
        open_objects(f"s3://{BUCKET}", endpoint=NOBODY, allow_http=True).get("a")


def test_the_environment_says_what_the_options_do_not(
    s3: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_objects(f"s3://{BUCKET}/environment", **s3).put("a", b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint"])
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", s3["region"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret_access_key"])
    assert open_objects(f"s3://{BUCKET}/environment", endpoint="").get("a") == b"1"


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_option_beats_the_environment(
    variable: str, s3: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, NOBODY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert open_objects(f"s3://{BUCKET}/option", **s3).list() == []
