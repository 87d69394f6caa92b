"""Objects in an S3 bucket, and the options that reach it."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TypedDict
from urllib.parse import urlsplit

from obstore.store import S3Store

from headrace.errors import UsageError
from headrace.storage.contract import check_prefix
from headrace.storage.obstore_objects import ObstoreObjects

# With these, a call fails within about twelve seconds if the endpoint refuses or drops connections,
# and after half a minute if it accepts them and stays silent.
_CONNECT_TIMEOUT = timedelta(seconds=3)
_REQUEST_TIMEOUT = timedelta(seconds=30)
_RETRIES = 3
_RETRY_TIMEOUT = timedelta(seconds=10)

_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class S3Options(TypedDict, total=False):
    """How to reach a bucket. The `AWS_*` environment variables replace missing or empty options."""

    endpoint: str
    """The URL of a server that is not Amazon's, such as `https://objects.example.org`."""
    region: str
    access_key_id: str
    secret_access_key: str
    session_token: str
    allow_http: bool
    """True to allow an `http://` endpoint, where anybody on the network can read along."""


class S3Objects(ObstoreObjects):
    """The objects below `s3://bucket/prefix`. Opening them asks nothing of the server.

    When pickled to another process, they read the environment variables of that process.
    """

    def __init__(self, url: str, options: S3Options) -> None:
        self._options = options
        super().__init__(url, _open_store(url, options))

    def __reduce__(self) -> tuple[object, ...]:
        return S3Objects, (self._url, self._options)


def _open_store(url: str, options: S3Options) -> S3Store:
    unknown = sorted(options.keys() - S3Options.__annotations__.keys())
    if unknown:
        raise UsageError(
            f"{url} has no option {unknown[0]}",
            do=f"choose from {', '.join(S3Options.__annotations__)}",
        )
    parts = urlsplit(url)
    if not parts.netloc:
        raise UsageError(f"{url} names no bucket", do="write s3://bucket or s3://bucket/prefix")
    allow_http = bool(options.get("allow_http")) or _is_http_allowed_by_environment()
    config = {
        name: str(value)
        for name in ("region", "access_key_id", "secret_access_key", "session_token")
        if (value := options.get(name))
    }
    if endpoint := _endpoint(options):
        _check_endpoint(endpoint, allow_http)
        # No environment variable overrules this name.
        config["aws_endpoint_url_s3"] = endpoint
    return S3Store(
        parts.netloc,
        prefix=check_prefix(parts.path.lstrip("/")) or None,
        config=config,  # type: ignore[arg-type]  # a TypedDict, which takes literals only
        client_options={
            "allow_http": allow_http,
            "connect_timeout": _CONNECT_TIMEOUT,
            "timeout": _REQUEST_TIMEOUT,
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
    )


def _is_http_allowed_by_environment() -> bool:
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")


def _endpoint(options: S3Options) -> str:
    candidates = (options.get("endpoint"), *map(os.environ.get, _ENDPOINT_VARIABLES))
    return next(filter(None, candidates), "")


def _check_endpoint(endpoint: str, allow_http: bool) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{endpoint!r} is not an endpoint", do="write https://host or https://host:port"
        )
    if parts.scheme == "http" and not allow_http:
        raise UsageError(
            f"the endpoint {endpoint} is not encrypted", do="use https, or set allow_http=True"
        )
