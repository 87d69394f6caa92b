"""A snapshot and the rest of the log restore what the whole log restores."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import DataError, VersionError
from headrace.journal.local import snapshot
from headrace.journal.local.index import Index
from headrace.journal.local.snapshot import SnapshotFiles, capture, restore
from headrace.journal.local.state import OwnerState
from tests.journal.local.history import Replay, history


@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_at_every_position_and_the_rest_give_what_everything_gives(seed: int) -> None:
    log = history(seed)
    expected = Replay().take(log).image()
    before = Replay()
    for cut, placed in enumerate(log):
        data = capture(placed.position, before.state, before.index)
        position, state, index = restore(data)
        assert position == placed.position
        assert Replay(state, index).take(log[cut:]).image() == expected
        before.take([placed])


def test_the_greatest_ids_survive_the_deletion_of_what_had_them() -> None:
    done = Replay().take(history(1))
    catalog = done.state.catalog
    for name in list(catalog.collections):
        done.state.change_catalog(catalog.delete_collection(name))
    _, state, _ = restore(capture(9, done.state, done.index))
    assert state.catalog.last_journal == catalog.last_journal > 0
    assert state.catalog.last_collection == catalog.last_collection > 0


def test_every_damaged_byte_is_noticed() -> None:
    data = capture(7, *_some())
    for at in range(0, len(data), 13):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(DataError, match="damaged"):
            restore(bytes(damaged))
    for length in (0, 7, 8, len(data) - 1):
        with pytest.raises(DataError, match="damaged"):
            restore(data[:length])


def test_a_newer_format_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SnapshotFiles(tmp_path)
    files.save(1, capture(1, *_some()))
    with monkeypatch.context() as later:
        later.setattr(snapshot, "_FORMAT", 2)
        files.save(2, capture(2, *_some()))
    with pytest.raises(VersionError, match="format 2"):
        files.load(log_is_whole=True)
    assert files.positions() == [1, 2]


def test_the_newest_two_are_kept_and_both_must_cover_what_is_dropped(tmp_path: Path) -> None:
    files = SnapshotFiles(tmp_path)
    covered = [files.covered()]
    for position in (10, 25, 40):
        files.save(position, capture(position, *_some()))
        covered.append(files.covered())
    assert files.positions() == [25, 40]
    assert covered == [0, 0, 10, 25]
    assert files.load(log_is_whole=False)[0] == 40


def test_a_damaged_newest_one_gives_way_to_the_one_before_and_counts_no_more(
    tmp_path: Path,
) -> None:
    # proves G4
    files = SnapshotFiles(tmp_path)
    for position in (10, 25):
        files.save(position, capture(position, *_some()))
    _damage(tmp_path, 25)
    assert files.load(log_is_whole=False)[0] == 10
    assert files.positions() == [10]
    files.save(40, capture(40, *_some()))
    assert files.positions() == [10, 40]


def test_without_any_readable_snapshot_the_whole_log_is_needed(tmp_path: Path) -> None:
    files = SnapshotFiles(tmp_path)
    for position in (10, 25):
        files.save(position, capture(position, *_some()))
        _damage(tmp_path, position)
    with pytest.raises(DataError, match=r"0010\.snapshot.*restore one") as raised:
        files.load(log_is_whole=False)
    assert "0025.snapshot" in str(raised.value)
    assert files.positions() == [10, 25]
    position, state, index = files.load(log_is_whole=True)
    assert (position, state.producers, index.journals) == (0, {}, {})


def test_what_a_crash_left_half_written_is_removed_and_foreign_files_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "00000000000000000010.writing").write_bytes(b"half")
    (tmp_path / "notes.snapshot").write_bytes(b"mine")
    files = SnapshotFiles(tmp_path)
    assert files.positions() == []
    assert [path.name for path in tmp_path.iterdir()] == ["notes.snapshot"]


def _some() -> tuple[OwnerState, Index]:
    done = Replay().take(history(2, steps=30))
    return done.state, done.index


def _damage(root: Path, position: int) -> None:
    path = root / f"{position:020d}.snapshot"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
