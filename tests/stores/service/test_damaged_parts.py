"""Staged parts that lost something, and those whose processes die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import DataError, PeerLostError, UsageError
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.service import staged_parts
from headrace.stores.service.arrow_bodies import encode_rows
from headrace.testing.crash import Child, eventually
from tests.stores.service.row_store import contents, open_rows, some_rows
from tests.stores.service.row_store import staged_files as files

FIRST = StoreCheckpoint("a/task", "g1", 1)


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_part_that_lost_its_end_is_not_applied(place: Path, kept: int) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        part = store.stage([some_rows("a"), some_rows("b")], FIRST)
        [path] = (place / "staged").rglob("*.arrow")
        data = path.read_bytes()
        path.write_bytes(data[:kept])
        with pytest.raises(DataError, match="is damaged"):
            store.apply_parts([part], FIRST)
        assert contents(store) == {}


def test_a_part_whose_blocks_were_never_written_is_not_applied(place: Path) -> None:
    """A power failure may leave a file with its length, and zeros where the rows were."""
    keys = [f"{number:06}" for number in range(5000)]
    with open_rows(place) as store:
        store.take("a/task", "g1")
        part = store.stage([some_rows(*keys)], FIRST)
        [path] = (place / "staged").rglob("*.arrow")
        data = bytearray(path.read_bytes())
        middle = len(data) // 2 // 4096 * 4096
        data[middle : middle + 4096] = bytes(4096)
        path.write_bytes(data)
        with pytest.raises(DataError, match="is damaged: it has another checksum"):
            store.apply_parts([part], FIRST)
        assert contents(store) == {}


@pytest.mark.parametrize("damage", ["lost batch", "no text"])
def test_a_part_with_other_rows_is_not_applied(place: Path, damage: str) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        part = store.stage([some_rows("needle"), some_rows("b")], FIRST)
        [path] = (place / "staged").rglob("*.arrow")
        if damage == "lost batch":
            path.write_bytes(encode_rows(some_rows("needle")))
        else:
            path.write_bytes(path.read_bytes().replace(b"needle", b"\xff" * 6))
        with pytest.raises(DataError, match=r"is damaged|has 1 rows"):
            store.apply_parts([part], FIRST)
        assert contents(store) == {}


def test_a_checkpoint_that_memory_does_not_hold_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_parts, "APPLY_BYTES_MAX", 100)
    with open_rows(place) as store:
        store.take("a/task", "g1")
        part = store.stage([some_rows("a")], FIRST)
        with pytest.raises(UsageError, match=r"have \d+ bytes, more than 100; let a checkpoint"):
            store.apply_parts([part], FIRST)
        [path] = (place / "staged").rglob("*.arrow")
        monkeypatch.setattr(staged_parts, "APPLY_BYTES_MAX", path.stat().st_size)
        assert store.apply_parts([part], FIRST)


@pytest.mark.crash
def test_parts_outlive_the_owner(place: Path, owner: Child) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        parts = [store.stage([some_rows("a")], FIRST), store.stage([some_rows("b")], FIRST)]
        owner.kill()
        assert store.apply_parts(parts, FIRST)
        assert store.owner is not None
        assert contents(store) == {"a": 1, "b": 1}


@pytest.mark.crash
def test_a_part_that_dies_with_the_owner_is_staged_again(place: Path, owner: Child) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield some_rows("a")
        owner.kill()
        yield some_rows("b")

    with open_rows(place) as store:
        store.take("a/task", "g1")
        with pytest.raises(PeerLostError):
            store.stage(rows(), FIRST)
        assert files(place) != []
        part = store.stage([some_rows("a")], FIRST)
        assert files(place) == [f"{part}.arrow"]


@pytest.mark.crash
def test_a_client_that_dies_leaves_no_part(place: Path, child: Child) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        child.run("from headrace.stores.service import messages")
        child.run("store = open_rows(place)", place=str(place))
        child.run(
            "store._attachment.remote._call(messages.BeginPart(StoreCheckpoint('t', 'g', 1)))"
        )
        assert len(files(place)) == 1
        child.kill()
        eventually(lambda: not files(place), 20, "the part of the killed client goes")
