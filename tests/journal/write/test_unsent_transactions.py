"""Transactions that fail before the owner has all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import headrace as hr
from headrace.errors import (
    DocumentError,
    FencedError,
    NotFoundError,
    PublishError,
    SchemaError,
    UsageError,
)
from headrace.journal.contract import PAYLOAD_BYTES_MAX
from headrace.journal.local.local_journals import LocalJournals
from headrace.journal.wire.remote_journals import RemoteJournals
from headrace.journal.write.partitioner import Partitioner
from headrace.transport import message
from tests.journal.conftest import SETTINGS, column
from tests.journal.interruption import Interruption

LONG = "x" * SETTINGS.journal.transaction_buffer_bytes


@pytest.fixture(autouse=True)
def collections(owner: hr.Workspace) -> None:
    owner.collection("c", "n long, text string")
    owner.collection("d", "n long")


def sent(publisher: hr.Publisher) -> hr.Transaction:
    """Begin a transaction of which the owner has a part."""
    tx = publisher.begin()
    tx.append("c", [{"n": 1, "text": LONG}])
    tx.append("d", [{"n": 1}])
    return tx


def numbers(workspace: hr.Workspace) -> tuple[list[int], list[int]]:
    return column(workspace, "c", "n"), column(workspace, "d", "n")


def assert_goes_on(workspace: hr.Workspace, *shown: int) -> None:
    """Assert that the next holder commits, and that nothing else became visible."""
    with workspace.publisher("job") as tx:
        tx.append("c", [{"n": 9}])
        tx.append("d", [{"n": 9}])
    assert numbers(workspace) == ([*shown, 9], [*shown, 9])


# proves G2, G27
@pytest.mark.parametrize(
    ("name", "payload", "what"),
    [
        ("job", "text", "the payload is of type str"),
        ("job", bytearray(b"x"), "the payload is of type bytearray"),
        ("job", b"x" * (PAYLOAD_BYTES_MAX + 1), f"the payload has {PAYLOAD_BYTES_MAX + 1} bytes"),
        ("", b"x", "the publisher has no name, so nobody could get its payload back"),
    ],
)
@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_a_payload_that_is_refused_leaves_the_transaction_open(
    workspace: hr.Workspace, name: str, payload: Any, what: str, then: str
) -> None:
    tx = sent(workspace.publisher(name))
    with pytest.raises(UsageError, match=what):
        tx.commit(payload)
    assert tx.is_open
    assert numbers(workspace) == ([], [])
    if then == "commit":
        tx.commit()
        assert_goes_on(workspace, 1)
    else:
        tx.rollback()
        assert_goes_on(workspace)


def test_the_largest_payload_reaches_the_next_holder(workspace: hr.Workspace) -> None:
    sent(workspace.publisher("job")).commit(b"x" * PAYLOAD_BYTES_MAX)
    assert workspace.publisher("job").payload == b"x" * PAYLOAD_BYTES_MAX


@contextmanager
def small_messages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "MESSAGE_BYTES_MAX", 8 * 1024)
        yield


@contextmanager
def failing_writes(error: BaseException) -> Iterator[None]:
    def fail(*_: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        for kind in (LocalJournals, RemoteJournals):
            patch.setattr(kind, "write", fail)
        yield


FAILURES: list[tuple[Callable[[], Any], type[BaseException]]] = [
    (small_messages, UsageError),
    (lambda: failing_writes(TypeError()), TypeError),
    (lambda: failing_writes(KeyboardInterrupt()), KeyboardInterrupt),
]


# proves G2
@pytest.mark.parametrize(("failing", "kind"), FAILURES, ids=[k.__name__ for _, k in FAILURES])
def test_a_commit_that_cannot_be_sent_leaves_nothing_for_the_next_one_to_show(
    owner: hr.Workspace, failing: Callable[[], Any], kind: type[BaseException]
) -> None:
    with hr.open(owner.location, settings=SETTINGS) as workspace:
        publisher = workspace.publisher("job")
        tx = sent(publisher)
        with failing(), pytest.raises(kind):
            tx.commit(b"x" * 10_000)
        assert not tx.is_open
        tx.rollback()
        if kind is UsageError:
            with pytest.raises(FencedError, match="'job' was refused or lost, and has ended; open"):
                publisher.begin()
        else:
            with publisher as following:
                following.append("d", [{"n": 2}])
        assert numbers(workspace) == ([], [] if kind is UsageError else [2])


# proves G2
@pytest.mark.parametrize(("failing", "kind"), FAILURES, ids=[k.__name__ for _, k in FAILURES])
def test_a_transaction_of_which_an_append_failed_half_way_cannot_commit(
    owner: hr.Workspace, failing: Callable[[], Any], kind: type[BaseException]
) -> None:
    with hr.open(owner.location, settings=SETTINGS) as workspace:
        tx = sent(workspace.publisher("job"))
        with failing(), pytest.raises(kind):
            tx.append("c", [{"n": 2, "text": LONG}])
        with pytest.raises(PublishError, match="half-way; roll the transaction back"):
            tx.commit()
        assert not tx.is_open
        part = workspace.join(workspace.publisher().begin().invite())
        with failing(), pytest.raises(kind):
            part.append("c", [{"n": 2, "text": LONG}])
        with pytest.raises(PublishError, match="half-way"):
            part.prepare()
        assert_goes_on(workspace)


# proves G2
def test_nobody_goes_on_with_a_publisher_whose_rolling_back_was_interrupted(
    workspace: hr.Workspace,
) -> None:
    publisher = workspace.publisher("job")
    tx = sent(publisher)
    with pytest.MonkeyPatch.context() as patch:
        for kind in (LocalJournals, RemoteJournals):
            patch.setattr(kind, "rollback", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            tx.rollback()
    with pytest.raises(FencedError, match="'job' was refused or lost"):
        publisher.begin()
    assert_goes_on(workspace)


PUBLISHER = ("journal/publisher.py", "journal/write/pending_commit.py")
BELOW = (
    "journal/write/write_buffer.py",
    "journal/write/producer_pool.py",
    "journal/write/partitioner.py",
    "journal/wire/remote_journals.py",
)


# proves G2
@pytest.mark.long
@pytest.mark.parametrize("name", ["job", ""])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize(
    "files", [PUBLISHER, pytest.param(BELOW, marks=pytest.mark.deep)], ids=["publisher", "below"]
)
def test_an_interruption_at_any_line_of_a_publisher_leaves_all_of_it_or_nothing(
    workspace: hr.Workspace, name: str, end: str, files: tuple[str, ...]
) -> None:
    """The next user of the publisher or its producer shows nothing of what was left."""
    publisher = workspace.publisher(name)

    def transact(n: int) -> None:
        tx = publisher.begin()
        tx.append("c", [{"n": n, "text": LONG}])
        tx.append("d", [{"n": n}])
        getattr(tx, end)()

    with Interruption(files) as counted:
        transact(0)
    for line in range(1, counted.lines + 1):
        before = [{each.name: each.head} for each in workspace.journals()]
        with Interruption(files, line), suppress(KeyboardInterrupt):
            transact(line)
        try:
            following = publisher.begin()
        except (FencedError, UsageError):
            publisher = workspace.publisher(name)
            following = publisher.begin()
        for collection in ("c", "d"):
            following.append(collection, [{"n": -line}])
        following.commit()
        seen = [column(workspace, c, "n", start=s) for c, s in zip("cd", before, strict=True)]
        allowed = [[-line], [line, -line]] if end == "commit" else [[-line]]
        assert seen[0] == seen[1] in allowed, f"line {line} of {counted.lines}"
    assert counted.lines > 10


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


# proves G2
def test_a_refused_commit_concerns_only_what_follows_it_in_the_same_publisher(
    owner: hr.Workspace,
) -> None:
    ownership = owner._connection.ownership
    assert ownership
    with hr.open(owner.location, settings=SETTINGS) as workspace:
        gone, kept = workspace.collection("c"), workspace.collection("d")
        workspace.append(gone, [{"n": 0}])
        workspace.append(kept, [{"n": 0}])
        for tx in [workspace.publisher().begin() for _ in range(3)]:
            tx.rollback()
        owner.delete_collection("c")
        publisher = workspace.publisher()
        # Hold the answers until all commits are sent.
        with ownership.owner._planning:
            pending = []
            for collection, n in ((gone, 1), (kept, 2)):
                tx = publisher.begin()
                tx.append(collection, [{"n": n}])
                pending.append(tx.commit_nowait())
            unrelated = workspace.publisher().begin()
            unrelated.append(kept, [{"n": 3}])
        for commit, kind in zip(pending, (NotFoundError, FencedError), strict=True):
            with pytest.raises(kind):
                commit.result()
        unrelated.commit()
        with publisher as tx:
            tx.append(kept, [{"n": 4}])
        assert column(workspace, "d", "n") == [0, 3, 4]


# proves G2
def test_an_append_while_journals_are_forgotten_takes_all_documents_or_none(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that deletes any collection forgets the journals."""
    collection = workspace.collection("p", "n long, p string", partition_by="p")
    given = [{"n": n, "p": f"{n}"} for n in range(8)]
    workspace.append(collection, given)
    partition = Partitioner.partition

    def disturbed(partitioner: Partitioner, *rest: Any) -> Iterator[Any]:
        for part in partition(partitioner, *rest):
            yield part
            partitioner.forget()

    monkeypatch.setattr(Partitioner, "partition", disturbed)
    with workspace.publisher() as tx:
        tx.append(collection, given)
    assert sorted(column(workspace, "p", "n")) == sorted([*range(8), *range(8)])


# proves G2
def test_an_append_that_cannot_be_partitioned_takes_no_document(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = workspace.collection("p", "n long, p string", partition_by="p")
    partition = Partitioner.partition

    def cut_short(*given: Any) -> Iterator[Any]:
        yield next(partition(*given))
        raise MemoryError

    tx = workspace.publisher().begin()
    with monkeypatch.context() as patch:
        patch.setattr(Partitioner, "partition", cut_short)
        with pytest.raises(MemoryError):
            tx.append(collection, [{"n": n, "p": f"{n}"} for n in range(8)])
    tx.append("d", [{"n": 1}])
    tx.commit()
    assert column(workspace, "p", "n") == []
    assert column(workspace, "d", "n") == [1]


# proves G27
def test_partition_values_that_are_too_long_to_be_a_name_are_refused(
    workspace: hr.Workspace,
) -> None:
    workspace.collection("p", "n long, p string, q string", partition_by="p, q")
    with workspace.publisher() as tx:
        tx.append("d", [{"n": 1}])
        with pytest.raises(DocumentError, match=r"the partition values 'x{32}'… have 2049 bytes"):
            tx.append("p", [{"n": 1, "p": "a"}, {"n": 2, "p": "x" * 2048, "q": "y"}])
        tx.append("p", [{"n": 3, "p": "x" * 2047, "q": "y"}])
    assert (column(workspace, "p", "n"), column(workspace, "d", "n")) == ([3], [1])
    assert len(workspace.journals(hr.selector("p"))) == 1


# proves G27
def test_a_partition_field_that_is_named_twice_is_refused(workspace: hr.Workspace) -> None:
    with pytest.raises(SchemaError, match="partition field 'p' is named twice; name it once"):
        workspace.collection("p", "n long, p string", partition_by=["p", "n", "p"])
    assert [each.name for each in workspace.collections()] == ["c", "d"]


# proves G2
def test_closing_waits_for_commits_that_are_under_way(owner: hr.Workspace) -> None:
    for n in range(20):
        workspace = hr.open(owner.location, settings=SETTINGS)
        tx = workspace.publisher().begin()
        tx.append("d", [{"n": n}])
        pending = tx.commit_nowait()
        workspace.close()
        assert pending.done()
        pending.result()
    assert column(owner, "d", "n") == list(range(20))
