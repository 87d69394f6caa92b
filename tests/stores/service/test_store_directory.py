"""What can become a store, what a store says of itself, and directories that are none."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from headrace.errors import (
    DataError,
    ExistsError,
    HeadraceError,
    NotFoundError,
    UsageError,
    VersionError,
)
from headrace.stores.service.store_directory import StoreDirectory, StoreSettings, create_store

TEXTS = StoreSettings(dimension=3, metric="l2", metadata={"name": "string"})


def test_a_store_remembers_what_it_was_created_with(tmp_path: Path) -> None:
    create_store(tmp_path / "a" / "b", "vectors", TEXTS)
    found = StoreDirectory(tmp_path / "a" / "b").identity
    assert (found.kind, found.settings) == ("vectors", TEXTS)
    assert re.fullmatch("[0-9a-f]{32}", found.id)


def test_every_store_has_an_identity_of_its_own(tmp_path: Path) -> None:
    for name in "ab":
        create_store(tmp_path / name, "timeseries")
    assert len({StoreDirectory(tmp_path / name).identity.id for name in "ab"}) == 2


def test_creating_the_same_store_again_changes_nothing(tmp_path: Path) -> None:
    create_store(tmp_path, "vectors", TEXTS)
    before = (tmp_path / "store.json").read_bytes()
    create_store(tmp_path, "vectors", TEXTS)
    assert (tmp_path / "store.json").read_bytes() == before


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("timeseries", StoreSettings()),
        ("vectors", StoreSettings(dimension=4, metric="l2", metadata={"name": "string"})),
    ],
)
def test_a_different_store_does_not_replace_one(
    tmp_path: Path, kind: str, settings: StoreSettings
) -> None:
    create_store(tmp_path, "vectors", TEXTS)
    with pytest.raises(ExistsError, match="vectors dimension=3 metric=l2") as raised:
        create_store(tmp_path, kind, settings)
    assert "backend" not in str(raised.value)
    assert StoreDirectory(tmp_path).identity.settings == TEXTS


def test_a_directory_with_other_files_does_not_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="holds files that are not a store's"):
        create_store(tmp_path, "timeseries")
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]


def test_what_a_killed_creation_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "store.json.abc.writing").write_text("{")
    create_store(tmp_path, "timeseries")
    assert StoreDirectory(tmp_path).identity.kind == "timeseries"


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("graph", StoreSettings(), "'graph' is no kind of store; choose timeseries or vectors"),
        ("timeseries", StoreSettings(backend="csv"), "'csv' is no backend; choose one of lmdb"),
        ("timeseries", StoreSettings(objects="s3://b"), "lmdb keeps no data at s3://b"),
        (
            "timeseries",
            StoreSettings(backend="slatedb", objects="/tmp/x"),
            "'/tmp/x' is no place for objects; write it like s3://",
        ),
        ("timeseries", StoreSettings(dimension=3), "are settings of vectors, not of time series"),
        ("timeseries", StoreSettings(metric="l2"), "are settings of vectors"),
        ("timeseries", StoreSettings(metadata={"a": "string"}), "are settings of vectors"),
        ("timeseries", StoreSettings(retention_s=0), "retention must be more than 0 s, got 0"),
        ("timeseries", StoreSettings(retention_s=float("nan")), "retention must be more than 0 s"),
        ("vectors", StoreSettings(dimension=3, retention_s=1), "vectors have no retention"),
        ("vectors", StoreSettings(), "needs its dimension"),
        ("vectors", StoreSettings(dimension=0), "vectors of dimension 0 cannot be stored"),
        ("vectors", StoreSettings(dimension=65_537), "vectors of dimension 65537 cannot be stored"),
        ("vectors", StoreSettings(dimension=3, metric="l3"), "there is no metric 'l3'"),
        (
            "vectors",
            StoreSettings(dimension=3, metadata={"a": "array<int>"}),
            "the metadata column 'a' has the type list",
        ),
        ("vectors", StoreSettings(dimension=3, metadata={"a": "colour"}), "colour"),
        (
            "vectors",
            StoreSettings(dimension=3, metadata={"a": "int, b int"}),
            "'int, b int' is not the type",
        ),
    ],
)
def test_settings_that_make_no_store_are_refused(
    tmp_path: Path, kind: str, settings: StoreSettings, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        create_store(tmp_path / "store", kind, settings)
    assert not (tmp_path / "store").exists()


def test_the_limits_themselves_are_allowed(tmp_path: Path) -> None:
    create_store(tmp_path / "a", "vectors", StoreSettings(dimension=65_536, metric="dot"))
    create_store(tmp_path / "b", "vectors", StoreSettings(dimension=1))
    create_store(tmp_path / "c", "timeseries", StoreSettings(retention_s=0.1))
    place = StoreSettings(backend="slatedb", objects="s3://bucket/prefix")
    create_store(tmp_path / "d", "timeseries", place)


@pytest.mark.parametrize(
    ("stored", "error", "message"),
    [
        (None, NotFoundError, "there is no store at"),
        (b'{"format": 2, "new": []}', VersionError, "has format 2, and this Headrace knows up to"),
        (b"{", DataError, "cannot be read"),
        (b'{"format": 1, "kind": "timeseries"}', DataError, "cannot be read"),
    ],
)
def test_what_is_no_readable_store_is_refused(
    tmp_path: Path, stored: bytes | None, error: type[HeadraceError], message: str
) -> None:
    if stored is not None:
        (tmp_path / "store.json").write_bytes(stored)
    with pytest.raises(error, match=message):
        _ = StoreDirectory(tmp_path).identity


def test_a_missing_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no store at .*; create one with `headrace store"):
        _ = StoreDirectory(tmp_path / "missing").identity
    assert not (tmp_path / "missing").exists()


def test_store_json_is_text_that_other_programs_can_read(tmp_path: Path) -> None:
    create_store(tmp_path, "timeseries", StoreSettings(retention_s=60))
    stored = msgspec.json.decode((tmp_path / "store.json").read_bytes())["store"]
    assert stored["kind"] == "timeseries"
    assert stored["settings"]["retention_s"] == 60


def test_no_bit_of_store_json_changes_unnoticed(tmp_path: Path) -> None:
    """A shorter retention would remove samples for good."""
    create_store(tmp_path, "timeseries", StoreSettings(retention_s=2_592_000))
    file = tmp_path / "store.json"
    stored = file.read_bytes()
    for place in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            with pytest.raises((DataError, VersionError)):
                _ = StoreDirectory(tmp_path).identity
    file.write_bytes(stored)
    assert StoreDirectory(tmp_path).identity.settings.retention_s == 2_592_000
