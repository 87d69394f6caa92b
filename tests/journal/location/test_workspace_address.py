"""The addresses of workspaces: which are valid, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.journal.location.workspace_ref import check_location, is_address


@pytest.mark.parametrize(
    "location",
    ["grpc://localhost:7070", "grpc+tls://a.b:1", "grpc://[::1]:65535", "grpc://10.0.0.1:80"],
)
def test_addresses(location: str) -> None:
    assert is_address(check_location(location))


@pytest.mark.parametrize(
    "location", ["data", "./data", "/data", "a:b", "grpc:/x", "c:\\data", "~/data"]
)
def test_directories(location: str) -> None:
    assert not is_address(check_location(location))


# proves G27
@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("s3://bucket/x", "'s3://bucket/x' cannot be a workspace; name a directory"),
        ("http://h:1/x", "cannot be a workspace"),
        ("file:///data", "cannot be a workspace"),
        ("grpc://localhost", "has no valid host and port; write it like grpc://localhost:7070"),
        ("grpc://:7070", "has no valid host and port"),
        ("grpc://h:0", "has no valid host and port"),
        ("grpc://h:65536", "has no valid host and port"),
        ("grpc://h:1/path", "has no valid host and port"),
        ("grpc+tls://u@h:1", "has no valid host and port"),
    ],
)
def test_what_is_neither_is_refused_and_nothing_is_made(
    location: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=named):
        hr.open(location)
    assert list(tmp_path.iterdir()) == []
