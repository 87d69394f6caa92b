"""LocalMembers reports member processes that end while they start, and keeps the others small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import PeerLostError
from headrace.shuffle.member import local_members
from headrace.shuffle.member.local_members import LocalMembers


def test_processes_that_end_at_once_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_members, "_CHILD", (sys.executable, "-c", "import os; os.close(0)"))
    with pytest.raises(PeerLostError, match="a member process ended while it started"):
        LocalMembers(2, processes=True)


def test_a_member_process_has_not_imported_pandas_after_it_served_a_task(tmp_path: Path) -> None:
    """It takes a third of a second of processor time, in each member of a Session."""
    documents = [{"n": n, "name": f"a{n}" if n % 3 else None} for n in range(100)]
    with (
        hr.open(tmp_path / "data") as workspace,
        LocalMembers(2, tmp_path, processes=True) as members,
    ):
        collection = workspace.collection("a", "n long, name string", journals=2)
        with workspace.publisher() as transaction:
            transaction.append(collection, documents)
        bindings = [hr.Binding(collection="a", name=f"{key}", key=key) for key in ((), ("name",))]
        found = []
        with hr.Shuffle(
            workspace,
            bindings,
            members.addresses,
            cut=workspace.journals(),
            service=members.service,
        ) as shuffle:
            for checkpoint in shuffle.drain():
                for member in range(2):
                    for _, batch in shuffle.read(member, checkpoint):
                        found += batch["n"].to_pylist()
                shuffle.release(checkpoint)
            maps = [Path(f"/proc/{each}/maps").read_text() for each in members.processes]
        assert sorted(found) == sorted([*range(100)] * 2)
        assert ["pyarrow" in each for each in maps] == [True, True]
        assert ["pandas" in each for each in maps] == [False, False]
