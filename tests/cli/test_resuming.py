"""`headrace read --follow` through members, while somebody dies."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cli import resuming
from headrace.cli.resuming import Patience, Sessions
from headrace.errors import (
    AccessError,
    DataError,
    HeadraceError,
    NotFoundError,
    PeerLostError,
    QueueFullError,
    SchemaError,
    StorageError,
    VersionError,
    WorkspaceError,
)
from headrace.settings import ServiceSettings
from headrace.shuffle.local_members import LocalMembers
from headrace.testing.crash import chosen_seed, eventually
from tests.cli.conftest import Ok
from tests.cli.headrace_process import PATIENCE_S, Running, headrace

SHARDS = 2
KILLS = 4
BINDINGS = [hr.Binding(collection="debits"), hr.Binding(collection="credits")]


class Bank:
    """Publishes transfers, each to both collections, and knows what was committed."""

    def __init__(self, ws: hr.Workspace) -> None:
        self._ws = ws
        self._debits = ws.collection("debits", "id long, note string", key="id", journals=3)
        self._credits = ws.collection("credits", "id long, note string", key="id", journals=2)
        self._count = 0
        self.committed: Counter[int] = Counter()

    def transfer(self, count: int) -> None:
        """So many in one transaction, and others in one that is rolled back."""
        ids = range(self._count, self._count + count)
        self._count += count
        documents = [{"id": id, "note": "x" * 100} for id in ids]
        with self._ws.publisher() as kept:
            kept.append(self._debits, documents)
            kept.append(self._credits, documents)
        given_up = self._ws.publisher().begin()
        given_up.append(self._debits, [{"id": -1, "note": "given up"}] * count)
        given_up.rollback()
        self.committed.update(ids)
        self.committed.update(ids)


# proves G5, G6, G7
def test_every_document_is_printed_once_whichever_members_are_killed(here: Path) -> None:
    chance = random.Random(chosen_seed(default=5))
    follow = ("read", "-w", "ws", "debits", "credits", "--shards", str(SHARDS), "--follow")
    with hr.open("ws") as ws:
        bank = Bank(ws)
        bank.transfer(1_000)
        with Running(*follow) as following:
            printed = printed_ids(following, 1)
            for _ in range(KILLS):
                for _ in range(5):
                    bank.transfer(chance.randrange(1, 3_000))
                printed += printed_ids(following, chance.randrange(2_000))
                members = following.children()
                assert len(members) == SHARDS
                os.kill(chance.choice(sorted(members)), signal.SIGKILL)
                bank.transfer(1)
                replaced = partial(are_replaced, following, members)
                eventually(replaced, PATIENCE_S, "other members")
            printed += printed_ids(following, bank.committed.total() - printed.total())
            code, rest, said = following.end(signal.SIGINT)
    assert printed == bank.committed
    assert (code, rest) == (0, "")
    notes = said.splitlines()
    assert len(notes) >= KILLS
    assert all(each.startswith("note: ") and each.endswith("from where it was") for each in notes)


def printed_ids(following: Running, documents: int) -> Counter[int]:
    return Counter(json.loads(following.line())["id"] for _ in range(documents))


def are_replaced(following: Running, members: Collection[int]) -> bool:
    children = following.children()
    return len(children) == SHARDS and children.isdisjoint(members)


class Troubled:
    """Members of which one is lost while checkpoints are read; then openings fail as told."""

    def __init__(
        self,
        losses: Iterable[tuple[int, int]],
        *refusals: HeadraceError,
        processes: bool = False,
    ) -> None:
        """`losses`: the number of the opening, and of how many checkpoints there had documents.

        One is lost when some of the last of them was read: a process is killed, of a thread it is
        said.
        """
        self._losses = set(losses)
        self._refusals = list(refusals)
        self._processes = processes
        self.openings = 0
        self._checkpoints = 0

    @contextmanager
    def members(self) -> Iterator[tuple[list[str], ServiceSettings]]:
        self.openings += 1
        self._checkpoints = 0
        if self.openings > 1 and self._refusals:
            raise self._refusals.pop(0)
        with LocalMembers(SHARDS, processes=self._processes) as self._members:
            yield self._members.addresses, self._members.service

    def read(self, shuffle: hr.Shuffle, checkpoint: hr.NextCheckpoint) -> Iterator[pa.RecordBatch]:
        self._lose()
        for member in range(SHARDS):
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


def handed_out(batches: Iterator[pa.RecordBatch], documents: int) -> Counter[int]:
    """The next ones, at least so many."""
    found: Counter[int] = Counter()
    while found.total() < documents:
        found.update(next(batches)["id"].to_pylist())
    return found


# proves G5, G7
def test_a_checkpoint_that_was_read_in_part_is_handed_out_once(here: Path) -> None:
    with hr.open("ws") as ws:
        bank = Bank(ws)
        troubled = Troubled({(1, 1), (2, 2)}, processes=True)
        # Two in a row would be the end: what is handed out in between counts.
        patience = Patience(failures_max=2, wait_s=0.01)
        batches = Sessions(
            ws, BINDINGS, troubled.members, troubled.read, threading.Event(), patience
        ).batches()
        found: Counter[int] = Counter()
        for _ in range(2):
            bank.transfer(500)
            found += handed_out(batches, bank.committed.total() - found.total())
        batches.close()
    assert found == bank.committed
    assert troubled.openings == 3


def test_a_session_that_stood_for_long_counts_as_a_success(here: Path) -> None:
    with hr.open("ws") as ws:
        bank = Bank(ws)
        bank.transfer(100)
        troubled = Troubled({(1, 0), (2, 0)})
        patience = Patience(failures_max=2, wait_s=0.01, steady_s=0.0)
        batches = Sessions(
            ws, BINDINGS, troubled.members, troubled.read, threading.Event(), patience
        ).batches()
        assert handed_out(batches, bank.committed.total()) == bank.committed
        batches.close()
    assert troubled.openings == 3


def test_failures_in_a_row_end_it_with_the_last_cause(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hr.open("ws") as ws:
        Bank(ws).transfer(100)
        refusals = (
            WorkspaceError("it is locked", do="wait"),
            NotFoundError("that Session has ended", do="open another"),
            QueueFullError("full", do="a retry helps"),
            PeerLostError("gone", do="look"),
        )
        troubled = Troubled({(1, 1)}, *refusals)
        patience = Patience(failures_max=5, wait_s=0.01)
        sessions = Sessions(
            ws, BINDINGS, troubled.members, troubled.read, threading.Event(), patience
        )
        with pytest.raises(PeerLostError) as given_up:
            next(sessions.batches())
    assert str(given_up.value) == "given up after 5 failures in a row: gone; look"
    first, second, third, fourth = capsys.readouterr().err.splitlines()
    assert first == "note: member 1 is gone; reading on in 0.01 s from where it was"
    assert second == "note: it is locked; reading on in 0.02 s from where it was"
    assert third == "note: that Session has ended; reading on in 0.04 s from where it was"
    assert fourth == "note: full; reading on in 0.08 s from where it was"


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
def test_what_a_retry_cannot_help_ends_it_at_once(here: Path, error: HeadraceError) -> None:
    with hr.open("ws") as ws:
        Bank(ws).transfer(100)
        troubled = Troubled({(1, 1)}, error)
        sessions = Sessions(
            ws, BINDINGS, troubled.members, troubled.read, threading.Event(), Patience(wait_s=0.01)
        )
        with pytest.raises(type(error)) as ended:
            next(sessions.batches())
    assert ended.value is error
    assert troubled.openings == 2


def test_a_signal_ends_the_wait(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def alarm(_: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    monkeypatch.setattr(resuming, "print_note", alarm)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with hr.open("ws") as ws:
            Bank(ws).transfer(100)
            troubled = Troubled({(1, 1)})
            patience = Patience(wait_s=3600, wait_s_max=3600)
            sessions = Sessions(
                ws, BINDINGS, troubled.members, troubled.read, threading.Event(), patience
            )
            with pytest.raises(KeyboardInterrupt):
                next(sessions.batches())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert troubled.openings == 1


def test_waits_grow_to_a_bound() -> None:
    waits = [Patience(wait_s=0.1, wait_s_max=1.0).after(failures) for failures in range(1, 7)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_member_that_was_killed_is_used_again_at_its_address(ok: Ok, bank: None) -> None:
    # What is killed leaves its files.
    with Running("shuffle", "member", "--dir", ".", "--json") as member:
        said = json.loads(member.line())
        address, token = said["address"], said["token"]
        through = ("--member", address, "--member-token", token)
        with Running("read", "bank/credits", "--follow", *through) as following:
            assert json.loads(following.line())["account"] == "cay"
            member.end(signal.SIGKILL)
            assert address in following.note()
            ok("publish", "bank/credits", input='{"account":"dan"}')
            port = address.rpartition(":")[2]
            with Running("shuffle", "member", "--dir", ".", "--port", port, "--token", token):
                assert json.loads(following.line())["account"] == "dan"
            assert address in following.note()
            assert following.end(signal.SIGTERM)[:2] == (0, "")


def test_following_through_members_goes_on_when_the_owner_is_killed(bank: None) -> None:
    with Running("serve", "--json") as owner:
        assert owner.line()
        with Running("read", "bank/credits", "--shards", "2", "--follow") as following:
            assert json.loads(following.line())["account"] == "cay"
            owner.end(signal.SIGKILL)
            assert headrace("publish", "bank/credits", input=b'{"account":"dan"}').returncode == 0
            assert json.loads(following.line())["account"] == "dan"
            ended = following.end(signal.SIGINT)
    assert ended == (0, "", "")  # the Session went on with the next owner


def test_what_is_wrong_from_the_beginning_is_told_at_once(bank: None) -> None:
    ended = headrace("read", "bank/credits", "--follow", "--member", "grpc://127.0.0.1:1")
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"error: ")
    assert b"grpc://127.0.0.1:1 cannot be reached" in ended.stderr
    assert ended.stderr.count(b"\n") == 1
