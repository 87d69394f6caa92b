"""`headrace.follow`: every document once, whatever happens to the shuffles it reads through."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.backoff import Backoff
from headrace.errors import (
    AccessError,
    DataError,
    HeadraceError,
    NotFoundError,
    PeerLostError,
    QueueFullError,
    SchemaError,
    StorageError,
    TransportError,
    UsageError,
    VersionError,
    WorkspaceError,
)
from headrace.settings import ServiceSettings
from headrace.shuffle.member.local_members import LocalMembers
from headrace.shuffle.shuffle_follower import ShuffleFollower
from tests.shuffle.transfers import BINDINGS, Transfers

MEMBERS = 2


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "data") as workspace:
        yield workspace


class FailingMembers:
    """Members that are lost while a follower reads checkpoints, or that refuse to open."""

    def __init__(
        self,
        losses: Iterable[tuple[int, int]],
        *refusals: HeadraceError,
        processes: bool = False,
    ) -> None:
        """Each loss is (number of the opening, how many of its checkpoints have documents).

        The last member is lost after the follower read a part of the last of those checkpoints: a
        member process is killed; of a member thread the read says that it is gone. The openings
        after the first raise the refusals, one each, then succeed.
        """
        self._losses = set(losses)
        self._refusals = list(refusals)
        self._processes = processes
        self.openings = 0
        self._checkpoints = 0

    @contextmanager
    def open(self) -> Iterator[tuple[list[str], ServiceSettings]]:
        self.openings += 1
        self._checkpoints = 0
        if self.openings > 1 and self._refusals:
            raise self._refusals.pop(0)
        with LocalMembers(MEMBERS, processes=self._processes) as self._members:
            yield self._members.addresses, self._members.service

    def read(self, shuffle: hr.Shuffle, checkpoint: hr.NextCheckpoint) -> Iterator[pa.RecordBatch]:
        self._lose()
        for member in range(MEMBERS):
            found = [batch for _, batch in shuffle.read(member, checkpoint)]
            yield from found
            if member == 0 and found:
                self._checkpoints += 1
                self._lose()

    def _lose(self) -> None:
        if (self.openings, self._checkpoints) not in self._losses:
            return
        if not self._processes:
            raise PeerLostError("member 1 is gone", do="look")
        os.kill(self._members.processes[-1], signal.SIGKILL)


def follower(
    workspace: hr.Workspace,
    members: FailingMembers,
    restarts: int = 9,
    delay_s: float = 0.01,
    steady_s: float = 60.0,
) -> ShuffleFollower:
    backoff = Backoff(restarts, first_s=delay_s, longest_s=3600.0)
    return ShuffleFollower(workspace, BINDINGS, members.open, members.read, backoff, steady_s)


def take(batches: Iterator[pa.RecordBatch], documents: int) -> Counter[int]:
    """Return the ids of the next documents, at least so many."""
    found: Counter[int] = Counter()
    while found.total() < documents:
        found.update(next(batches)["id"].to_pylist())
    return found


def test_it_yields_what_is_there_and_then_what_commits_until_it_is_stopped(
    workspace: hr.Workspace,
) -> None:
    transfers = Transfers(workspace)
    transfers.publish(100)
    stop = threading.Event()
    with LocalMembers(MEMBERS) as members:
        batches = hr.follow(
            workspace, BINDINGS, members.addresses, service=members.service, stop=stop
        )
        found = take(batches, transfers.committed.total())
        transfers.publish(1)
        found += take(batches, transfers.committed.total() - found.total())
        stop.set()
        assert list(batches) == []
    assert found == transfers.committed


def test_meta_columns_say_where_a_document_comes_from(workspace: hr.Workspace) -> None:
    transfers = Transfers(workspace)
    transfers.publish(100)
    with LocalMembers(1) as members:
        batches = hr.follow(
            workspace, BINDINGS, members.addresses, service=members.service, meta=True
        )
        found = [next(batches), next(batches)]
        batches.close()
    assert found[0].schema.names == ["id", "note", "_collection", "_shard", "_clock"]
    assert {each["_collection"][0].as_py() for each in found} == {"debits", "credits"}


# proves G5, G7
@pytest.mark.long
def test_a_checkpoint_that_was_read_in_part_is_handed_out_once(workspace: hr.Workspace) -> None:
    transfers = Transfers(workspace)
    members = FailingMembers({(1, 1), (2, 2)}, processes=True)
    # Two failures in a row would end it: the documents in between count as progress.
    batches = follower(workspace, members, restarts=1).batches(threading.Event())
    found: Counter[int] = Counter()
    for _ in range(2):
        transfers.publish(500)
        found += take(batches, transfers.committed.total() - found.total())
    batches.close()
    assert found == transfers.committed
    assert members.openings == 3


@pytest.mark.long
def test_a_shuffle_that_ran_for_long_counts_as_progress(workspace: hr.Workspace) -> None:
    transfers = Transfers(workspace)
    transfers.publish(100)
    members = FailingMembers({(1, 0), (2, 0)})
    batches = follower(workspace, members, restarts=1, steady_s=0.0).batches(threading.Event())
    assert take(batches, transfers.committed.total()) == transfers.committed
    batches.close()
    assert members.openings == 3


def test_failures_in_a_row_end_it_with_the_last_cause(workspace: hr.Workspace) -> None:
    Transfers(workspace).publish(100)
    refusals = (
        WorkspaceError("it is locked", do="wait"),
        NotFoundError("that Session has ended", do="open another"),
        QueueFullError("full", do="a retry helps"),
        PeerLostError("gone", do="look"),
    )
    members = FailingMembers({(1, 1)}, *refusals)
    restarts: list[tuple[str, float]] = []
    batches = follower(workspace, members, restarts=4).batches(
        threading.Event(), lambda error, delay_s: restarts.append((error.what, delay_s))
    )
    with pytest.raises(PeerLostError) as given_up:
        next(batches)
    assert str(given_up.value) == "given up after 5 failures in a row: gone; look"
    assert restarts == [
        ("member 1 is gone", 0.01),
        ("it is locked", 0.02),
        ("that Session has ended", 0.04),
        ("full", 0.08),
    ]


@pytest.mark.parametrize(
    "error",
    [
        SchemaError("a field is gone", do="put it back"),
        StorageError("queue over its limit", do="a retry will not help"),
        DataError("damaged", do="restore it"),
        AccessError("refused", do="set the token"),
        VersionError("too new", do="upgrade"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_retry_cannot_help_ends_it_at_once(
    workspace: hr.Workspace, error: HeadraceError
) -> None:
    Transfers(workspace).publish(100)
    members = FailingMembers({(1, 1)}, error)
    with pytest.raises(type(error)) as ended:
        next(follower(workspace, members).batches(threading.Event()))
    assert ended.value is error
    assert members.openings == 2


def test_one_address_instead_of_a_list_is_refused(workspace: hr.Workspace) -> None:
    with pytest.raises(UsageError) as refused:
        hr.follow(workspace, BINDINGS, members="grpc://x:1")
    assert str(refused.value) == (
        "members must be a list of addresses, got 'grpc://x:1'; use ['grpc://x:1']"
    )


def test_a_first_shuffle_that_does_not_open_ends_it_at_once(workspace: hr.Workspace) -> None:
    Transfers(workspace)
    restarts: list[HeadraceError] = []
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:1"):
        next(
            hr.follow(
                workspace,
                BINDINGS,
                ["grpc://127.0.0.1:1"],
                on_restart=lambda error, _: restarts.append(error),
            )
        )
    assert restarts == []


def test_a_signal_ends_the_wait_for_a_restart(workspace: hr.Workspace) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        Transfers(workspace).publish(100)
        members = FailingMembers({(1, 1)})
        batches = follower(workspace, members, delay_s=3600).batches(
            threading.Event(), lambda *_: signal.setitimer(signal.ITIMER_REAL, 0.05) and None
        )
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert members.openings == 1


def test_stopping_ends_the_wait_for_a_restart(workspace: hr.Workspace) -> None:
    Transfers(workspace).publish(100)
    stop = threading.Event()
    members = FailingMembers({(1, 1)})
    batches = follower(workspace, members, delay_s=3600).batches(stop, lambda *_: stop.set())
    assert list(batches) == []
    assert members.openings == 1
