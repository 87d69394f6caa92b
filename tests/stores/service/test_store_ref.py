"""References: how processes that must never own a store find its owner."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.errors import NotFoundError, PeerLostError, WorkspaceError
from headrace.stores.service.store_directory import create_store
from headrace.stores.service.store_ref import StoreRef, refer
from headrace.testing.crash import Child
from tests.stores.service.row_store import KINDS, QUICK, contents, open_rows, some_rows

IMPATIENT = msgspec.structs.replace(QUICK, heartbeat_s=0.1, silence_s=0.5)


def travelled(reference: StoreRef) -> StoreRef:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(reference), type=StoreRef)


def test_a_reference_finds_the_owner(place: Path) -> None:
    with open_rows(place) as store, travelled(refer(store)).open(QUICK, KINDS) as through:
        through.flush(through.write(some_rows("a")))
        assert through.owner is None
        assert contents(store) == {"a": 1}


def test_a_process_that_does_not_see_the_directory_goes_by_the_address(place: Path) -> None:
    with open_rows(place) as store:
        far = msgspec.structs.replace(refer(store), directory=None)
        with far.open(QUICK, KINDS) as through:
            assert through.directory is None
            assert refer(through) == far
            store.flush(store.write(some_rows("a")))
            assert contents(through) == {"a": 1}


def test_a_reference_never_makes_an_owner(place: Path) -> None:
    with open_rows(place) as store:
        reference = refer(store)
    with pytest.raises(WorkspaceError, match=r"no process owns .*; open the store in a process"):
        reference.open(IMPATIENT, KINDS)
    with open_rows(place) as store:
        assert store.owner is not None


def test_no_other_store_answers_for_a_reference(place: Path, tmp_path: Path) -> None:
    create_store(tmp_path / "other", "timeseries")
    with open_rows(place) as store, open_rows(tmp_path / "other") as other:
        wrong = msgspec.structs.replace(refer(store), directory=None, identity=other.identity)
        with pytest.raises(NotFoundError, match="has no service"):
            wrong.open(QUICK, KINDS)


@pytest.mark.crash
def test_a_reference_by_directory_outlives_the_owner(place: Path, owner: Child) -> None:
    with open_rows(place) as store, refer(store).open(QUICK, KINDS) as through:
        owner.kill()
        assert store.stat() == {"rows": 0}
        through.flush(through.write(some_rows("a")))
        assert contents(store) == {"a": 1}
        assert through.owner is None


@pytest.mark.crash
def test_a_reference_by_address_ends_with_the_owner(place: Path, owner: Child) -> None:
    with open_rows(place) as store:
        far = msgspec.structs.replace(refer(store), directory=None)
        with far.open(IMPATIENT, KINDS) as through:
            owner.kill()
            with pytest.raises(PeerLostError):
                through.stat()
