"""A member deletes its folder when it ends, and those of killed members when it starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import StorageError
from headrace.shuffle import Member
from headrace.shuffle.member.queue_directory import own_folder
from headrace.testing.crash import Child


def test_a_folder_goes_with_its_member(tmp_path: Path) -> None:
    with Member(tmp_path) as first, Member(tmp_path) as second:
        assert first.address != second.address
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.crash
def test_what_a_killed_member_left_is_removed_and_what_a_living_one_has_is_not(
    tmp_path: Path,
) -> None:
    member = "from headrace.shuffle import Member\nmember = Member(root)"
    with Child(member, root=tmp_path) as killed, Child(member, root=tmp_path) as living:
        killed.answer()
        [left] = set(tmp_path.iterdir()) - _locked(tmp_path, living)
        (left / "queue").mkdir()
        (left / "queue" / "segment").write_bytes(b"documents")
        kept = set(tmp_path.iterdir()) - {left}
        killed.kill()
        with own_folder(tmp_path) as mine:
            assert set(tmp_path.iterdir()) == kept | {mine}
        assert set(tmp_path.iterdir()) == kept


def test_a_place_that_is_no_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"queue files cannot be kept in .*: Not a dir"):
        Member(tmp_path / "file" / "members")


def test_foreign_files_stay(tmp_path: Path) -> None:
    (tmp_path / "headrace-member-notes.txt").write_text("mine")
    (tmp_path / "member-other").mkdir()
    with own_folder(tmp_path):
        pass
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "headrace-member-notes.txt",
        "member-other",
    ]


def test_a_folder_of_another_user_stays_and_hinders_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "headrace-member-theirs"
    theirs.mkdir(mode=0)
    if os.geteuid() == 0:  # no mode keeps root out
        open_one = os.open

        def refuse_theirs(path: Path, flags: int, **how: Any) -> int:
            if path == theirs:
                raise PermissionError(13, "Permission denied", str(path))
            return open_one(path, flags, **how)

        monkeypatch.setattr(os, "open", refuse_theirs)
    with own_folder(tmp_path) as mine:
        assert set(tmp_path.iterdir()) == {mine, theirs}
    assert set(tmp_path.iterdir()) == {theirs}


def _locked(root: Path, by: Child) -> set[Path]:
    """Return the folders that a process holds open."""
    by.answer()
    descriptors = Path(f"/proc/{by.pid}/fd")
    held = {os.readlink(each) for each in descriptors.iterdir()}
    return {folder for folder in root.iterdir() if str(folder) in held}
