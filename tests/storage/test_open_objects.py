from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.storage import open_objects


def test_a_path_and_a_file_url_are_the_same_directory(tmp_path: Path) -> None:
    directory = tmp_path / "a b#c"
    open_objects(str(directory)).put("x", b"1")
    assert open_objects(f"file://{tmp_path}/a%20b%23c").get("x") == b"1"
    assert (directory / "x").read_bytes() == b"1"


def test_a_relative_path_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    objects = open_objects("objects")
    monkeypatch.chdir("/")
    objects.put("x", b"1")
    assert (tmp_path / "objects" / "x").read_bytes() == b"1"


def test_memory_is_new_every_time() -> None:
    open_objects("memory://").put("x", b"1")
    assert open_objects("memory://").list() == []


@pytest.mark.parametrize(
    "url", ["gs://bucket", "memory://name", "file://host/path", "file://", "://", ""]
)
def test_an_unknown_place_is_refused_with_the_choices(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # proves G27
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"file:///path, memory:// or s3://bucket/prefix"):
        open_objects(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("memory://", {"region": "x"}, "memory:// has no option region"),
        ("./here", {"endpoint": "x"}, "./here has no option endpoint"),
        (
            "s3://bucket",
            {"enpoint": "x"},
            "s3://bucket has no option enpoint; choose from endpoint",
        ),
        ("s3://", {}, "s3:// names no bucket"),
        ("s3://bucket/../x", {}, "'../x' is not a key"),
        ("s3://bucket", {"endpoint": "example.org"}, "'example.org' is not an endpoint"),
        ("s3://bucket", {"endpoint": "http://example.org"}, "is not encrypted"),
    ],
)
def test_a_wrong_option_is_named(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refusal:  # proves G27
        open_objects(url, **options)
    assert message in str(refusal.value)
