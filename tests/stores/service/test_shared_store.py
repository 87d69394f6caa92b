"""Two processes with one store: owner and client behave alike, and errors travel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import DocumentError, FencedError, InDoubtError, PeerLostError, UsageError
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.service.remote_store import RemoteStore
from headrace.stores.service.shared_store import OWNERS_LOST_MAX, SharedStore
from headrace.testing.crash import Child
from tests.stores.service.row_store import (
    SCHEMA,
    AskRow,
    DeleteRow,
    contents,
    open_rows,
    some_rows,
)


@pytest.fixture(params=["owner", "client"])
def is_client(request: pytest.FixtureRequest, place: Path) -> bool:
    """True if another process has the store open, in the tests of both."""
    if request.param == "client":
        request.getfixturevalue("owner")
    return bool(request.param == "client")


def test_what_is_flushed_is_read(place: Path, is_client: bool) -> None:
    with open_rows(place) as store:
        assert (store.owner is None) == is_client
        first = store.write(some_rows("a", "b"))
        store.flush(first)
        second = store.write(some_rows("c", value=7))
        assert second > first
        store.flush()
        assert contents(store) == {"a": 1, "b": 1, "c": 7}
        assert store.stat() == {"rows": 3}
        assert store.kind == "timeseries"
        assert store.schema.equals(SCHEMA)
        assert store.settings.backend == "lmdb"


def test_a_scan_takes_its_selection_and_streams(place: Path, is_client: bool) -> None:
    with open_rows(place) as store:
        store.flush(store.write(some_rows(*(f"{n:05}" for n in range(2500)), "x")))
        batches = list(store.scan(prefix="0"))
        assert [each.num_rows for each in batches] == [1000, 1000, 500]
        assert list(store.scan(prefix="nothing")) == []
        with pytest.raises(UsageError, match="a scan knows no colour"):
            list(store.scan(colour="red"))


def test_rows_that_do_not_fit_are_refused(place: Path, is_client: bool) -> None:
    with open_rows(place) as store:
        with pytest.raises(DocumentError, match=r"rows have the columns \['name'\]"):
            store.write(pa.RecordBatch.from_pylist([{"name": "a"}]))
        store.flush()
        assert contents(store) == {}


def test_an_epoch_that_was_never_given_out_is_refused(place: Path, is_client: bool) -> None:
    with open_rows(place) as store, pytest.raises(UsageError, match="epoch 99 was never given"):
        store.flush(99)


def test_requests_of_one_kind_of_store(place: Path, is_client: bool) -> None:
    with open_rows(place) as store:
        store.flush(store.write(some_rows("a", value=5)))
        assert store.ask(AskRow("a")) == 5
        store.change(DeleteRow("a"))
        assert store.ask(AskRow("a")) is None
        with pytest.raises(UsageError, match="StoreCheckpoint"):
            store.ask(StoreCheckpoint("task", "g", 1))


def test_a_checkpoint_is_applied_once(place: Path, is_client: bool) -> None:
    checkpoint = StoreCheckpoint("task", "g1", 1)
    with open_rows(place) as store:
        with pytest.raises(UsageError, match="nobody took for its generation"):
            store.apply(some_rows("a"), checkpoint)
        assert store.take("task", "g1") == 0
        assert store.apply(some_rows("a"), checkpoint)
        assert not store.apply(some_rows("b"), checkpoint)
        assert contents(store) == {"a": 1}
        assert store.take("task", "g1") == 1
        assert store.take("task", "g2") == 0
        with pytest.raises(FencedError, match="replaced by g2"):
            store.apply(some_rows("c"), StoreCheckpoint("task", "g1", 2))


def test_a_large_checkpoint_travels_in_pieces(
    place: Path, is_client: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.stores.service.remote_store.CHUNK_BYTES", 1000)
    with open_rows(place) as store:
        store.take("task", "g")
        rows = some_rows(*(f"key {n}" for n in range(500)))
        assert store.apply(rows, StoreCheckpoint("task", "g", 1))
        assert not store.apply(rows, StoreCheckpoint("task", "g", 1))
        assert store.stat() == {"rows": 500}


def test_a_closed_store_is_not_used(place: Path, is_client: bool) -> None:
    store = open_rows(place)
    store.close()
    store.close()
    with pytest.raises(UsageError, match="is closed; open it again"):
        store.stat()


def test_the_directory_is_free_after_closing(place: Path) -> None:
    for value in range(3):
        with open_rows(place) as store:
            assert store.owner is not None
            store.write(some_rows("a", value=value))
        assert not (place / "owner.json").exists()
    with open_rows(place) as store:
        assert contents(store) == {"a": 2}


def test_the_owner_is_found_by_its_address_too(place: Path, owner: Child) -> None:
    with open_rows(place) as store:
        reached = store.reach()
        assert reached.process == owner.pid
    service = store._service.__class__(token=reached.token, silence_s=5)
    with open_rows(reached.address, service) as store:
        store.flush(store.write(some_rows("a")))
        assert contents(store) == {"a": 1}
        assert store.settings.backend == "lmdb"
        assert store.directory is None


def test_a_process_that_may_not_own_works_through_the_owner(place: Path, owner: Child) -> None:
    with open_rows(place, may_own=False) as store:
        owner.run("store.flush(store.write(some_rows('a')))")
        assert contents(store) == {"a": 1}


# -- the owner is gone ---------------------------------------------------------------------------


@pytest.mark.crash
def test_a_client_takes_over_what_the_killed_owner_had_stored(place: Path, owner: Child) -> None:
    with open_rows(place) as store:
        store.flush(store.write(some_rows("a")))
        owner.kill()
        assert contents(store) == {"a": 1}
        assert store.owner is not None
        store.flush(store.write(some_rows("b")))
        assert contents(store) == {"a": 1, "b": 1}


@pytest.mark.crash
def test_writes_that_the_killed_owner_had_not_flushed_are_in_doubt(
    place: Path, owner: Child
) -> None:
    with open_rows(place) as store:
        flushed = store.write(some_rows("a"))
        store.flush(flushed)
        lost = store.write(some_rows("b"))
        owner.kill()
        for _ in range(2):
            with pytest.raises(InDoubtError, match=f"before it flushed writes up to epoch {lost}"):
                store.flush(lost)
        store.flush(flushed)
        again = store.write(some_rows("b"))
        assert again > lost
        store.flush(again)
        assert contents(store) == {"a": 1, "b": 1}


@pytest.mark.crash
def test_a_flush_of_everything_tells_once_that_writes_are_in_doubt(
    place: Path, owner: Child
) -> None:
    with open_rows(place) as store:
        store.write(some_rows("a"))
        owner.kill()
        with pytest.raises(InDoubtError):
            store.flush()
        store.flush()


# proves G23
@pytest.mark.crash
def test_a_write_is_in_doubt_if_its_owner_is_lost_before_its_epoch_is_known(
    place: Path, owner: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may find the next owner while the answer of the last one is on its way."""
    with open_rows(place) as store, ThreadPoolExecutor(1) as other:
        remote = store._attachment.remote
        assert remote is not None
        take = remote.write

        def write(rows: pa.RecordBatch) -> int:
            taken = take(rows)
            owner.kill()
            other.submit(store.stat).result()
            return taken

        monkeypatch.setattr(remote, "write", write)
        with pytest.raises(InDoubtError, match="ended after it took rows; write them again"):
            store.write(some_rows("a"))
        store.flush(store.write(some_rows("a")))
        assert contents(store) == {"a": 1}


@pytest.mark.crash
@pytest.mark.parametrize("call", ["stat", "write", "scan"])
def test_a_call_goes_on_with_the_next_owner_that_another_thread_found(
    place: Path, owner: Child, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The other thread closes the conversation with the last owner before this call begins."""
    with open_rows(place) as store, ThreadPoolExecutor(1) as other:
        remote = store._attachment.remote
        assert remote is not None
        begin = getattr(remote, call)

        def begin_late(*arguments: object) -> object:
            owner.kill()
            other.submit(store.generation, "task").result()
            assert store._attachment.remote is not remote
            return begin(*arguments)

        monkeypatch.setattr(remote, call, begin_late)
        calls: dict[str, Callable[[], object]] = {
            "stat": store.stat,
            "write": lambda: store.flush(store.write(some_rows("a"))),
            "scan": lambda: contents(store),
        }
        calls[call]()
        assert contents(store) == ({"a": 1} if call == "write" else {})


# proves G23
@pytest.mark.crash
def test_every_thread_learns_that_its_own_writes_are_in_doubt(place: Path, owner: Child) -> None:
    with open_rows(place) as store, ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as third:
        third.submit(store.flush, third.submit(store.write, some_rows("c")).result()).result()
        other.submit(store.write, some_rows("b")).result()
        store.write(some_rows("a"))
        owner.kill()
        with pytest.raises(InDoubtError):
            store.flush()
        with pytest.raises(InDoubtError):
            other.submit(store.flush).result()
        for each in (other, third):
            each.submit(store.flush).result()
        store.flush()


class LockWithHook:
    """The lock of a store, with a function that is called once it was let go of."""

    def __init__(self, store: SharedStore, after: Callable[[], object]) -> None:
        self._lock = store._lock
        self._after = after
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        is_free = self._depth == 0
        self._lock.release()
        if is_free:
            after, self._after = self._after, bool
            after()


# proves G23
@pytest.mark.crash
def test_a_flush_notices_the_loss_of_an_owner_that_another_thread_replaces(
    place: Path, owner: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread finds the next owner after this one found its writes not lost."""
    with open_rows(place) as store, ThreadPoolExecutor(1) as other:
        lost = store.write(some_rows("a"))

        def replace_owner() -> None:
            owner.kill()
            other.submit(store.stat).result()
            assert store.owner

        monkeypatch.setattr(store, "_lock", LockWithHook(store, replace_owner))
        with pytest.raises(InDoubtError, match=f"before it flushed writes up to epoch {lost}"):
            store.flush(lost)
        assert contents(store) == {}


# proves G23
@pytest.mark.crash
def test_writes_are_lost_up_to_the_last_whichever_thread_learns_its_epoch_first(
    place: Path, owner: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_rows(place) as store, ThreadPoolExecutor(1) as other:
        remote = store._attachment.remote
        assert remote is not None
        take = remote.write
        later: list[int] = []

        def write(rows: pa.RecordBatch) -> int:
            taken = take(rows)
            monkeypatch.undo()
            later.append(other.submit(store.write, some_rows("b")).result())
            return taken

        monkeypatch.setattr(remote, "write", write)
        first = store.write(some_rows("a"))
        assert later > [first]
        owner.kill()
        for epoch in (first, *later, first, *later):
            with pytest.raises(InDoubtError, match=f"writes up to epoch {later[0]}"):
                store.flush(epoch)


# proves G23
@pytest.mark.crash
def test_a_thread_that_flushes_what_others_wrote_learns_that_it_is_in_doubt(
    place: Path, owner: Child
) -> None:
    with open_rows(place) as store, ThreadPoolExecutor(1) as other:
        other.submit(store.write, some_rows("a")).result()
        owner.kill()
        store.stat()  # Finds the next owner: a write that the last one loses would be in doubt.
        later = store.write(some_rows("b"))
        with pytest.raises(InDoubtError):
            store.flush(later)
        with pytest.raises(InDoubtError):
            other.submit(store.flush, later).result()
        store.flush()
        other.submit(store.flush).result()


@pytest.mark.crash
def test_what_is_flushed_stays_flushed(place: Path, owner: Child) -> None:
    """Also if somebody asks afterwards for what was flushed before it."""
    with open_rows(place) as store:
        first, last = store.write(some_rows("a")), store.write(some_rows("b"))
        store.flush(last)
        store.flush(first)
        owner.kill()
        for epoch in (last, first, None):
            store.flush(epoch)
        assert contents(store) == {"a": 1, "b": 1}


def test_each_lost_owner_is_told_for_its_own_writes(place: Path) -> None:
    """The writes of the one before were told, and are not told again."""
    with (
        open_rows(place) as owner,
        open_rows(place, may_own=False) as store,
        ThreadPoolExecutor(1) as other,
    ):
        first = other.submit(store.write, some_rows("a")).result()
        owner.close()
        with (
            open_rows(place),
            pytest.raises(InDoubtError, match=f"up to epoch {first};"),
        ):
            other.submit(store.flush).result()
        with open_rows(place):
            store.flush()
            flushed = store.write(some_rows("b"))
            store.flush(flushed)
            lost = store.write(some_rows("c"))
        with open_rows(place):
            for epoch in (first, lost):
                with pytest.raises(InDoubtError, match=f"up to epoch {epoch};"):
                    store.flush(epoch)
            other.submit(store.flush).result()
            store.flush(flushed)
            last = store.write(some_rows("d"))
            assert first < flushed < lost < last
            store.flush(last)


def test_no_thread_is_told_twice_of_writes_that_one_owner_lost(place: Path) -> None:
    with (
        open_rows(place) as owner,
        open_rows(place, may_own=False) as store,
        ThreadPoolExecutor(1) as other,
    ):
        other.submit(store.write, some_rows("a")).result()
        owner.close()
        with open_rows(place):
            with pytest.raises(InDoubtError):
                other.submit(store.flush).result()
            store.write(some_rows("b"))
        with open_rows(place):
            with pytest.raises(InDoubtError):
                store.flush()
            other.submit(store.flush).result()


@pytest.mark.crash
def test_a_checkpoint_is_repeated_with_the_next_owner(place: Path, owner: Child) -> None:
    with open_rows(place) as store:
        store.take("task", "g")
        assert store.apply(some_rows("a"), StoreCheckpoint("task", "g", 1))
        owner.kill()
        assert not store.apply(some_rows("a"), StoreCheckpoint("task", "g", 1))
        assert store.apply(some_rows("b"), StoreCheckpoint("task", "g", 2))
        assert contents(store) == {"a": 1, "b": 1}


def test_a_call_that_loses_every_owner_gives_up(
    place: Path, owner: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def lose(store: RemoteStore) -> dict[str, int | float | str]:
        nonlocal calls
        calls += 1
        assert calls <= 1 + OWNERS_LOST_MAX
        raise PeerLostError("the owner is gone", do="call it again")

    with open_rows(place) as store:
        monkeypatch.setattr(RemoteStore, "stat", lose)
        with pytest.raises(PeerLostError):
            store.stat()
        assert calls == 1 + OWNERS_LOST_MAX
        monkeypatch.undo()
        assert store.stat() == {"rows": 0}
