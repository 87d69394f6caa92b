"""At every limit a Session goes on, or ends in the error that names the limit; it never waits."""

from __future__ import annotations

import errno
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import QueueFullError, StorageError
from headrace.log import Directory
from headrace.settings import KIB, MIB
from headrace.shuffle import session_client
from headrace.shuffle.queue import store
from headrace.shuffle.session.state import SessionState
from headrace.shuffle.slice.actor import SliceActor
from headrace.shuffle.slice.effects import Fetch
from headrace.testing.crash import Child, eventually
from tests.log.faulty_disk import Faults, FaultyDisk

pytestmark = pytest.mark.long

MEMBERS = 2
JOURNALS = 3
WAIT_S = 60.0
SMALL = hr.ShuffleSettings(
    queue_soft_bytes=MIB,
    queue_hard_bytes=4 * MIB,
    credit_bytes=64 * KIB,
    fetch_bytes=32 * KIB,
    ahead_bytes=128 * KIB,
)
OVERSHOOT_BYTES = MEMBERS * 4 * SMALL.credit_bytes
"""What Slices had sent already when a Queue reached its limit."""
BINDINGS = [hr.Binding(collection="a"), hr.Binding(collection="b")]


def batch(first: int, count: int, size: int = KIB) -> pa.RecordBatch:
    """Documents numbered from `first` on, of about `size` bytes each."""
    numbers = pa.array(range(first, first + count), pa.int64())
    return pa.RecordBatch.from_arrays(
        [numbers, pa.array(["x" * size] * count)], names=["number", "padding"]
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "workspace") as opened:
        for name in "ab":
            opened.collection(name, "number long, padding string", key="number", journals=JOURNALS)
        yield opened


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[str]]:
    with hr.Member(tmp_path / "0") as first, hr.Member(tmp_path / "1") as second:
        yield [first.address, second.address]


def publish(workspace: hr.Workspace, count: int, each: int = 100) -> None:
    """Documents 0 to `count`, in transactions of `each` over both collections."""
    publisher = workspace.publisher()
    for first in range(0, count, each):
        with publisher as transaction:
            transaction.append("a", batch(first, each // 2))
            transaction.append("b", batch(first + each // 2, each - each // 2))


def next_documents(shuffle: hr.Shuffle, timeout_s: float, lag: int = 0) -> list[int]:
    """The numbers of the documents of the next checkpoint; none if there is none in time.

    With a lag, it may be read again while those that follow are read.
    """
    seen: list[int] = []
    if found := shuffle.next_checkpoint(timeout_s):
        seen = numbers(shuffle, found)
        if found.number > lag:
            shuffle.release(found._replace(number=found.number - lag))
    return seen


def numbers(shuffle: hr.Shuffle, checkpoint: hr.NextCheckpoint) -> list[int]:
    return [
        number
        for member in range(shuffle.members)
        for _, some in shuffle.read(member, checkpoint)
        for number in some["number"].to_pylist()
    ]


def consume(shuffle: hr.Shuffle, count: int, lag: int = 0) -> list[int]:
    """The numbers of so many documents at least, as they become visible."""
    seen: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while len(seen) < count:
        seen += next_documents(shuffle, deadline - time.monotonic(), lag)
        assert time.monotonic() < deadline, f"{len(seen)} of {count}: {shuffle.status()}"
    return seen


def await_full(shuffle: hr.Shuffle) -> None:
    """Until a Queue says that it takes no more; Slices then send nothing to the others either."""
    eventually(
        lambda: any("over its soft limit" in member.waits for member in shuffle.status().members),
        WAIT_S,
        "a full Queue",
    )


def held_bytes(shuffle: hr.Shuffle) -> list[int]:
    return [member.queue_bytes for member in shuffle.status().members]


# proves G12
def test_every_queue_at_its_limit_waits_for_the_consumer_and_goes_on(
    workspace: hr.Workspace, members: list[str]
) -> None:
    count = 6_000
    with hr.Shuffle(workspace, BINDINGS, members, settings=SMALL) as shuffle:
        publish(workspace, count)
        await_full(shuffle)
        held = [held_bytes(shuffle) for _ in range(50)]
        assert min(held[-1]) > SMALL.queue_soft_bytes // 2
        assert max(map(max, held)) <= SMALL.queue_soft_bytes + OVERSHOOT_BYTES
        assert sorted(consume(shuffle, count)) == list(range(count))


# proves G12
@pytest.mark.parametrize("priority", [0, 1])
def test_what_may_be_sent_to_a_full_queue_fits_below_its_hard_limit(
    workspace: hr.Workspace, members: list[str], priority: int
) -> None:
    """However much credit a Slice might have: ordinary documents wait for a slow consumer."""
    count = 12_000
    near = hr.ShuffleSettings(queue_soft_bytes=MIB, queue_hard_bytes=2 * MIB)
    bindings = [hr.Binding(collection="a"), hr.Binding(collection="b", priority=priority)]
    assert near.credit_bytes > near.queue_hard_bytes
    assert count * KIB > 2 * MEMBERS * near.queue_hard_bytes
    publish(workspace, count)
    with hr.Shuffle(workspace, bindings, members, settings=near) as shuffle:
        await_full(shuffle)
        assert max(held_bytes(shuffle)) <= near.queue_hard_bytes
        assert sorted(consume(shuffle, count)) == list(range(count))


# proves G12
def test_a_consumer_that_found_nothing_and_left_is_waited_for(
    workspace: hr.Workspace, members: list[str]
) -> None:
    count = 10_000
    with hr.Shuffle(workspace, BINDINGS, members, settings=SMALL) as shuffle:
        assert shuffle.next_checkpoint(0.1) is None
        publish(workspace, count)
        await_full(shuffle)
        assert sorted(consume(shuffle, count)) == list(range(count))


# proves G12
@pytest.mark.parametrize("reads", [True, False])
def test_a_consumer_that_asks_on_and_releases_nothing_is_waited_for(
    workspace: hr.Workspace, members: list[str], reads: bool
) -> None:
    """It has enough; whether it reads what it gets or not."""
    count = 12_000
    publish(workspace, count)
    taken: list[hr.NextCheckpoint] = []
    seen: list[int] = []

    def is_full() -> bool:
        if found := shuffle.next_checkpoint(0.2, documents_max=100):
            taken.append(found)
            if reads:
                seen.extend(numbers(shuffle, found))
            return False
        assert max(held_bytes(shuffle)) <= SMALL.queue_soft_bytes + OVERSHOOT_BYTES
        return any("over its soft limit" in member.waits for member in shuffle.status().members)

    with hr.Shuffle(workspace, BINDINGS, members, settings=SMALL) as shuffle:
        eventually(is_full, WAIT_S, "a full Queue, and nothing visible")
        waits = [member.waits for member in shuffle.status().members if member.waits]
        said = "in checkpoints that are not released" if reads else f"to {len(taken)} are not read"
        assert said in waits[0]
        for each in taken:
            seen += [] if reads else numbers(shuffle, each)
            shuffle.release(each)
        seen += consume(shuffle, count - len(seen))
        assert sorted(seen) == list(range(count))


# proves G12
def test_with_a_limit_no_checkpoint_of_a_backlog_has_more(
    workspace: hr.Workspace, members: list[str]
) -> None:
    """However much is read before somebody asks; but for transactions that wait for their rest."""
    count, most = 20_000, 500
    publish(workspace, count)
    settings = hr.ShuffleSettings(report_documents=most // MEMBERS)
    seen: list[list[int]] = []
    with hr.Shuffle(workspace, BINDINGS, members, settings=settings) as shuffle:
        eventually(lambda: shuffle.status().settled, WAIT_S, "all is read")
        while found := shuffle.next_checkpoint(0, documents_max=most):
            seen.append(numbers(shuffle, found))
            shuffle.release(found)
    assert sorted(chain.from_iterable(seen)) == list(range(count))
    sizes = sorted(map(len, seen))
    assert sizes[-1] <= 2 * most
    assert sizes[len(sizes) // 2] <= most


# proves G12
def test_with_a_limit_members_wait_while_many_reports_do(
    workspace: hr.Workspace, members: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count, most = 4_000, 100
    monkeypatch.setattr(session_client, "SessionState", partial(SessionState, kept_rows_max=300))
    publish(workspace, count)
    seen: list[list[int]] = []
    # A fetch at a time, so that there is something left to be held back.
    settings = hr.ShuffleSettings(report_documents=most // MEMBERS, fetch_bytes=32 * KIB)
    with hr.Shuffle(workspace, BINDINGS, members, settings=settings) as shuffle:
        eventually(lambda: _is_held(shuffle), WAIT_S, "reports that wait")
        for _ in range(300):
            assert not shuffle.status().settled
        while sum(map(len, seen)) < count:
            found = shuffle.next_checkpoint(WAIT_S, documents_max=most)
            assert found
            seen.append(numbers(shuffle, found))
            shuffle.release(found)
    assert sorted(chain.from_iterable(seen)) == list(range(count))
    assert max(map(len, seen)) <= 3 * most


# proves G11
@pytest.mark.parametrize("kept_rows_max", [1 << 18, 600], ids=["reported", "held back"])
def test_with_a_limit_what_has_priority_does_not_wait_for_a_backlog(
    workspace: hr.Workspace,
    members: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kept_rows_max: int,
) -> None:
    """Of the other priority so many reports wait that members take no more, or all of them do."""
    count, most = 4_000, 100
    monkeypatch.setattr(
        session_client, "SessionState", partial(SessionState, kept_rows_max=kept_rows_max)
    )
    for first in range(0, count, 20):
        workspace.append("a", batch(first, 20))
    bindings = [hr.Binding(collection="a"), hr.Binding(collection="b", priority=1)]
    settings = hr.ShuffleSettings(report_documents=most // MEMBERS, fetch_bytes=32 * KIB)
    with hr.Shuffle(workspace, bindings, members, settings=settings) as shuffle:
        eventually(
            lambda: shuffle.status().settled or _is_held(shuffle), WAIT_S, "many reports that wait"
        )
        workspace.append("b", batch(count, 1))
        eventually(lambda: _is_reported(shuffle, "b/"), WAIT_S, "its report")
        found = shuffle.next_checkpoint(WAIT_S, documents_max=most)
        assert found
        seen = numbers(shuffle, found)
        assert count in seen
        assert len(seen) <= 2 * most


def _is_reported(shuffle: hr.Shuffle, prefix: str) -> bool:
    """Something of the collection waits at the Session."""
    state = shuffle._actor._state
    return any(
        state.assignment.journal_name(at).startswith(prefix)
        for at, row in list(state.frontier.places.items())
        if row.reported_through > 0
    )


def _is_held(shuffle: hr.Shuffle) -> bool:
    return bool(shuffle._actor._state.held_lanes)


# proves G12
@pytest.mark.parametrize("priority", [0, 1])
def test_slices_whose_documents_precede_each_other_do_not_wait_in_a_circle(
    workspace: hr.Workspace, members: list[str], priority: int
) -> None:
    """With credit for one block at a time, in Queues that are always full."""
    count = 300
    tight = hr.ShuffleSettings(
        queue_soft_bytes=1, credit_bytes=1, fetch_bytes=1, ahead_bytes=1, patience_s=0.05
    )
    bindings = [hr.Binding(collection="a"), hr.Binding(collection="b", priority=priority)]
    publish(workspace, count, each=10)
    with hr.Shuffle(workspace, bindings, members, settings=tight) as shuffle:
        assert sorted(consume(shuffle, count)) == list(range(count))


# proves G6, G12
@pytest.mark.parametrize("polling", [False, True])
def test_a_rollback_behind_a_full_queue_is_reached(
    workspace: hr.Workspace, members: list[str], polling: bool
) -> None:
    with hr.Shuffle(workspace, BINDINGS, members, settings=SMALL) as shuffle:
        doomed = workspace.publisher().begin()
        # More than the soft limits, less than the hard ones; it is sent before it ends.
        for first in range(0, 5_000, 100):
            doomed.append("a", batch(1_000_000 + first, 100))
        doomed._buffer.send(doomed._buffer.seal()).result()
        if polling:
            # Nothing is visible: reads go on beyond the soft limit.
            reached = 2 * SMALL.queue_soft_bytes
            eventually(lambda: _starved(shuffle, reached), WAIT_S, "reading beyond the soft limit")
        else:
            await_full(shuffle)
        doomed.rollback()
        publish(workspace, 4_000)
        assert sorted(consume(shuffle, 4_000)) == list(range(4_000))
        eventually(lambda: _is_empty(shuffle), WAIT_S, "the release of what was rolled back")


def _starved(shuffle: hr.Shuffle, reached: int) -> bool:
    assert not next_documents(shuffle, 0.05)
    return min(held_bytes(shuffle)) > reached


def _is_empty(shuffle: hr.Shuffle) -> bool:
    """Whatever was kept for a checkpoint is given up with the next one."""
    assert not next_documents(shuffle, 0.05)
    return max(held_bytes(shuffle)) == 0


# proves G12
def test_a_transaction_above_the_soft_limit_is_shown_if_it_fits_the_hard_one(
    workspace: hr.Workspace, members: list[str]
) -> None:
    with hr.Shuffle(workspace, BINDINGS, members, settings=SMALL) as shuffle:
        publish(workspace, 5_000, each=5_000)
        assert sorted(consume(shuffle, 5_000)) == list(range(5_000))


# proves G12, G13
def test_a_transaction_above_the_hard_limit_ends_the_session_and_is_named(
    workspace: hr.Workspace, members: list[str]
) -> None:
    named = r"over its hard limit of 4.0 MiB, .* pinned by producer [0-9a-f]+ in journal a/\d+"
    count = 20_000
    with workspace.publisher() as transaction:
        for first in range(0, count, 100):
            transaction.append("a", batch(first, 100))
    with hr.Shuffle(workspace, BINDINGS, members, settings=SMALL) as shuffle:
        for _ in range(2):
            with pytest.raises(StorageError, match=f"{named}.*a retry will not help"):
                consume(shuffle, count)
    # The members are as good as before: with more room it is shown.
    larger = hr.ShuffleSettings(queue_soft_bytes=MIB)
    with hr.Shuffle(workspace, BINDINGS, members, settings=larger) as shuffle:
        assert sorted(consume(shuffle, count)) == list(range(count))


# proves G12, G13
def test_what_waits_for_a_journal_that_lags_is_named_at_the_hard_limit_and_a_retry_helps(
    workspace: hr.Workspace, members: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is committed, and each transaction has documents in `b`, which nobody can read."""
    count = 20_000
    publish(workspace, count, each=200)
    lagging = {each.id for each in workspace.journals() if each.name.startswith("b/")}
    fetch = SliceActor._fetch

    def stall(actor: SliceActor, asked: Fetch) -> None:
        if asked.journal not in lagging:
            fetch(actor, asked)

    hasty, patient = (msgspec.structs.replace(SMALL, patience_s=s) for s in (0.05, WAIT_S))
    with monkeypatch.context() as patch:
        patch.setattr(SliceActor, "_fetch", stall)
        shuffle = hr.Shuffle(workspace, BINDINGS, members, settings=hasty)
        with shuffle, pytest.raises(QueueFullError) as raised:
            consume(shuffle, count)
    named = r"over its hard limit of 4.0 MiB, [34]\.\d MiB of transactions that have ended"
    assert re.search(named, raised.value.what)
    assert raised.value.do.startswith("try again once")
    with hr.Shuffle(workspace, BINDINGS, members, settings=patient) as shuffle:
        assert sorted(consume(shuffle, count)) == list(range(count))


# proves G11, G12
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("count", [pytest.param(1_000, marks=pytest.mark.deep), 3_800])
def test_an_open_transaction_of_half_the_hard_limit_keeps_no_room_but_its_own(
    workspace: hr.Workspace, members: list[str], count: int, lag: int
) -> None:
    """Others publish many times the hard limit behind it."""
    assert MEMBERS * SMALL.queue_hard_bytes / 2 > 3_800 * KIB
    with hr.Shuffle(workspace, BINDINGS, members, settings=SMALL) as shuffle:
        open_long = workspace.publisher().begin()
        for first in range(0, count, 100):
            open_long.append("a", batch(1_000_000 + first, 100))
        open_long._buffer.send(open_long._buffer.seal()).result()
        for _ in range(12):
            publish(workspace, 2_000)
            assert sorted(consume(shuffle, 2_000, lag)) == list(range(2_000))
            assert max(held_bytes(shuffle)) <= SMALL.queue_hard_bytes + OVERSHOOT_BYTES
        open_long.commit()
        assert sorted(consume(shuffle, count, lag)) == list(range(1_000_000, 1_000_000 + count))
        workspace.append("a", batch(0, 1))
        assert consume(shuffle, 1) == [0]
        eventually(lambda: _is_empty(shuffle), WAIT_S, "the release of everything")


# proves G12, G13
@pytest.mark.parametrize("change", [0, 1, 4])
def test_a_full_disk_ends_the_session_with_one_cause(
    workspace: hr.Workspace, members: list[str], monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    disks: list[Faults] = []

    def full_soon(path: Path) -> FaultyDisk:
        disks.append(Faults(change, forever=True, code=errno.ENOSPC))
        return FaultyDisk(Directory(path), disks[-1])

    with monkeypatch.context() as patch:
        patch.setattr(store, "Directory", full_soon)
        publish(workspace, 4_000)
        causes = Counter[str]()
        with pytest.raises(StorageError, match="No space left on device"):
            hold_on(hr.Shuffle(workspace, BINDINGS, members), 4_000, causes)
        assert len(causes) <= 1, causes
    assert any(disk.failed for disk in disks)
    with hr.Shuffle(workspace, BINDINGS, members) as shuffle:
        assert sorted(consume(shuffle, 4_000)) == list(range(4_000))


def hold_on(shuffle: hr.Shuffle, count: int, causes: Counter[str]) -> None:
    """Consume; when the Session ends, every call that follows tells the same cause."""
    with shuffle:
        try:
            consume(shuffle, count)
        finally:
            for _ in range(3):
                with pytest.raises(StorageError) as raised:
                    shuffle.next_checkpoint(WAIT_S)
                causes[str(raised.value)] += 1


# proves G12
def test_the_memory_of_a_member_does_not_grow_with_what_is_read_ahead(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    """An allocator keeps some room; once it has that, no amount of documents takes more."""
    settings = hr.ShuffleSettings(credit_bytes=MIB, fetch_bytes=256 * KIB, ahead_bytes=4 * MIB)
    start = "import headrace as hr, pyarrow as pa; member = hr.Member(folder)"
    with (
        Child(start, folder=tmp_path / "0") as first,
        Child(start, folder=tmp_path / "1") as second,
    ):
        members = first, second
        addresses = [child.run("member.address") for child in members]
        with hr.Shuffle(workspace, BINDINGS, addresses, settings=settings) as shuffle:
            peaks = [0, 0]

            def has_read(ahead_bytes: int) -> bool:
                for at, child in enumerate(members):
                    peaks[at] = max(peaks[at], anonymous_bytes(child.pid))
                return sum(held_bytes(shuffle)) >= ahead_bytes

            def read_ahead(through_mib: int, begin: int) -> list[int]:
                for n in range(begin, through_mib):
                    with workspace.publisher() as transaction:
                        transaction.append("a", batch(n * 64, 64, size=16 * KIB))
                wanted = partial(has_read, through_mib * MIB)
                eventually(wanted, WAIT_S, "everything on the members' disks")
                return list(peaks)

            early = read_ahead(100, 0)
            late = read_ahead(300, 100)
            grown = [now - was for now, was in zip(late, early, strict=True)]
            assert max(grown) < 40 * MIB, f"{[size // MIB for size in grown]} MiB of 200"
            most = [child.run("pa.default_memory_pool().max_memory()") for child in members]
            assert max(most) < 16 * MIB, f"{[size // MIB for size in most]} MiB of documents"
            assert len(consume(shuffle, 64 * 300)) == 64 * 300


def anonymous_bytes(pid: int) -> int:
    """What a process has in memory that is not a mapped file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB
    raise AssertionError(f"process {pid} tells nothing")
