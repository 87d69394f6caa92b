"""Publishers and their transactions, at the owner and through it."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FencedError, NotFoundError, PublishError, UsageError
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags
from tests.journal.conftest import SETTINGS, column

BUFFER_BYTES = SETTINGS.journal.transaction_buffer_bytes
FRAME_BYTES = SETTINGS.journal.frame_bytes_target


@pytest.fixture(autouse=True)
def collections(workspace: hr.Workspace) -> None:
    for name in ("a", "b"):
        workspace.collection(name, "n long, text string")


def numbers(workspace: hr.Workspace, name: str = "a") -> list[int]:
    return column(workspace, name, "n")


def some(*numbers: int, text: str = "") -> list[dict[str, object]]:
    return [{"n": n, "text": text} for n in numbers]


def raw(workspace: hr.Workspace, name: str = "a") -> list[Frame]:
    [journal] = workspace.journals(hr.selector(name))
    return list(workspace.frames(journal, committed=False))


def flags(workspace: hr.Workspace, name: str = "a") -> list[Flags]:
    return [frame.flags for frame in raw(workspace, name)]


# proves G2
def test_a_transaction_becomes_visible_in_all_its_journals_at_its_end(
    workspace: hr.Workspace,
) -> None:
    with workspace.publisher() as tx:
        assert tx.append("a", some(1, 2)) == 2
        assert tx.append(workspace.collection("b"), some(3)) == 1
        assert tx.append("a", some(4)) == 1
        assert (numbers(workspace, "a"), numbers(workspace, "b")) == ([], [])
    assert (numbers(workspace, "a"), numbers(workspace, "b")) == ([1, 2, 4], [3])


def test_every_journal_of_a_transaction_has_an_ack_with_the_same_hints(
    workspace: hr.Workspace,
) -> None:
    with workspace.publisher() as tx:
        tx.append("a", some(1))
        tx.append("b", some(2))
    acks = [raw(workspace, name)[-1] for name in ("a", "b")]
    assert [ack.flags for ack in acks] == [Flags.ACK, Flags.ACK]
    expected = sorted((ack.journal, ack.offset, ack.producer, ack.clock) for ack in acks)
    for ack in acks:
        assert ack.hints is not None
        assert sorted(ack.hints.tolist()) == expected


# proves G2
@pytest.mark.parametrize("documents", [1, 400])
def test_an_exception_rolls_back_and_is_raised(workspace: hr.Workspace, documents: int) -> None:
    def write_and_fail(tx: hr.Transaction) -> None:
        for n in range(documents):
            tx.append("a", some(n, text="x" * 100))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), workspace.publisher() as tx:
        write_and_fail(tx)
    assert numbers(workspace) == []
    assert not tx.is_open
    workspace.append("a", some(7))
    assert numbers(workspace) == [7]


def test_rolling_back_is_of_one_transaction_only(workspace: hr.Workspace) -> None:
    publisher = workspace.publisher("named")
    for n in range(4):
        tx = publisher.begin()
        tx.append("a", some(n, text="x" * BUFFER_BYTES))
        tx.append("a", some(n + 10))
        if n % 2:
            tx.rollback()
            tx.rollback()
        else:
            tx.commit()
    assert numbers(workspace) == [0, 10, 2, 12]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_has_ended_takes_nothing_more(workspace: hr.Workspace, end: str) -> None:
    tx = workspace.publisher().begin()
    tx.append("a", some(1))
    getattr(tx, end)()
    for use in (
        lambda: tx.append("a", some(2)),
        tx.invite,
        tx.commit,
        lambda: tx.include("[1,2,3]"),
    ):
        with pytest.raises(UsageError, match="the transaction has ended; begin another"):
            use()
    assert numbers(workspace) == ([1] if end == "commit" else [])


def test_a_commit_inside_the_block_is_the_only_one(workspace: hr.Workspace) -> None:
    with workspace.publisher() as tx:
        tx.append("a", some(1))
        tx.commit()
    assert flags(workspace) == [Flags.CONTINUE, Flags.ACK]


def test_an_error_after_the_commit_is_raised_as_it_is(workspace: hr.Workspace) -> None:
    workspace.collection("once", "n long")

    def commit_and_fail() -> None:
        with workspace.publisher() as tx:
            tx.append("once", [{"n": 1}])
            tx.commit()
            raise ValueError("afterwards")

    with pytest.raises(ValueError, match="afterwards") as raised:
        commit_and_fail()
    assert not hasattr(raised.value, "__notes__")
    assert column(workspace, "once", "n") == [1]


def test_nothing_to_write_leaves_nothing(workspace: hr.Workspace) -> None:
    with workspace.publisher() as tx:
        pass
    with workspace.publisher() as tx:
        assert tx.append("a", []) == 0
        assert tx.append("a", b"\n\n") == 0
    assert workspace.append("a", []) == 0
    assert raw(workspace) == []


def test_anonymous_publishers_share_few_producers(workspace: hr.Workspace) -> None:
    for n in range(6):
        with workspace.publisher() as tx:
            tx.append("a", some(n))
        workspace.append("a", some(n + 10))
    assert len({frame.producer for frame in raw(workspace)}) == 1
    publisher = workspace.publisher()
    both = [publisher.begin(), publisher.begin()]
    for tx in both:
        tx.append("b", some(1))
    for tx in both:
        tx.commit()
    assert len({frame.producer for frame in raw(workspace, "b")}) == 2


def test_a_producer_that_was_refused_is_not_used_again(workspace: hr.Workspace) -> None:
    tx = workspace.publisher().begin()
    tx.append("a", some(1))
    workspace.delete_collection("a")
    with pytest.raises(NotFoundError, match="somebody deleted collection 'a' while it was"):
        tx.commit()
    workspace.collection("a", "n long, text string")
    for n in range(3):
        with workspace.publisher() as tx:
            tx.append("a", some(n))
            tx.append("b", some(n))
    assert (numbers(workspace, "a"), numbers(workspace, "b")) == ([0, 1, 2], [0, 1, 2])


def test_a_named_publisher_hands_its_payload_to_the_next(workspace: hr.Workspace) -> None:
    first = workspace.publisher("job")
    assert first.payload == b""
    tx = first.begin()
    tx.append("a", some(1))
    tx.commit(b"one")
    tx = first.begin()
    tx.append("a", some(2))
    tx.commit()
    assert workspace.publisher("job").payload == b"one"
    workspace.publisher("job").begin().commit(b"alone")
    assert workspace.publisher("job").payload == b"alone"
    tx = workspace.publisher("job").begin()
    tx.append("a", some(3, text="x" * BUFFER_BYTES))
    tx.rollback()
    assert workspace.publisher("job").payload == b"alone"
    assert workspace.publisher("other").payload == b""


# proves G2, G3
def test_a_name_is_taken_over_with_its_producer_and_above_its_clocks(
    workspace: hr.Workspace,
) -> None:
    left = workspace.publisher("job").begin()
    left.append("a", some(1, text="x" * BUFFER_BYTES))
    tx = workspace.publisher("job").begin()
    tx.append("a", some(2))
    with pytest.raises(FencedError, match=r"'job' .* was taken over .* and repeat the transaction"):
        left.commit()
    tx.commit()
    assert numbers(workspace) == [2]
    frames = raw(workspace)
    assert [frame.flags for frame in frames] == [1, 2, 1, 2]
    assert len({frame.producer for frame in frames}) == 1
    assert frames[0].clock < frames[2].clock < frames[3].clock
    assert frames[1].clock == 0


def test_who_was_fenced_may_still_roll_back_and_close(workspace: hr.Workspace) -> None:
    fenced = workspace.publisher("job")
    tx = fenced.begin()
    tx.append("a", some(1, text="x" * BUFFER_BYTES))
    workspace.publisher("job")
    tx.rollback()
    fenced.close()
    assert numbers(workspace) == []


def test_a_named_publisher_has_one_transaction_at_a_time(workspace: hr.Workspace) -> None:
    publisher = workspace.publisher("job")
    tx = publisher.begin()
    with pytest.raises(UsageError, match="a transaction of publisher 'job' is open"):
        publisher.begin()
    tx.rollback()
    with publisher as tx, pytest.raises(UsageError, match="transaction is open"), publisher:
        pass


@pytest.mark.parametrize("name", ["", "job"])
def test_a_closed_publisher_begins_nothing(workspace: hr.Workspace, name: str) -> None:
    publisher = workspace.publisher(name)
    publisher.close()
    publisher.close()
    with pytest.raises(UsageError, match="the publisher is closed; open another"):
        publisher.begin()


def test_closing_a_named_publisher_rolls_back_what_it_has_open(workspace: hr.Workspace) -> None:
    publisher = workspace.publisher("job")
    tx = publisher.begin()
    tx.append("a", some(1, text="x" * BUFFER_BYTES))
    publisher.close()
    with pytest.raises(FencedError):
        tx.commit()
    assert flags(workspace) == [Flags.CONTINUE, Flags.ACK]
    assert numbers(workspace) == []


def test_small_appends_are_joined_into_one_frame(workspace: hr.Workspace) -> None:
    with workspace.publisher() as tx:
        for n in range(20):
            tx.append("a", some(n))
    [frame, _] = raw(workspace)
    assert frame.documents == 20


def test_frames_are_cut_at_their_target_size_and_a_document_is_never_split(
    workspace: hr.Workspace,
) -> None:
    with workspace.publisher() as tx:
        tx.append("a", some(*range(100), text="x" * 300) + some(100, text="y" * 50_000))
    *frames, _ = raw(workspace)
    # The message around a batch takes a few hundred bytes.
    sizes = [len(frame.body) for frame in frames if frame.documents > 1]
    assert all(size < FRAME_BYTES + 1024 for size in sizes)
    assert len(sizes) >= 7
    assert sum(len(frame.body) > 50_000 for frame in frames) == 1
    assert numbers(workspace) == list(range(101))


# proves G2
def test_a_transaction_larger_than_the_buffer_is_on_its_way_before_it_ends(
    workspace: hr.Workspace,
) -> None:
    tx = workspace.publisher().begin()
    for n in range(100):
        tx.append("a", some(n, text="x" * 1000))
        tx.append("b", some(n))
    # Count frames when the owner has them: `invite` waits for what was sent before it.
    tx.invite()
    sent = flags(workspace)
    assert set(sent) == {Flags.CONTINUE}
    assert (numbers(workspace, "a"), numbers(workspace, "b")) == ([], [])
    tx.commit()
    assert (numbers(workspace, "a"), numbers(workspace, "b")) == ([*range(100)], [*range(100)])
    assert flags(workspace).count(Flags.ACK) == 1


@pytest.mark.parametrize("name", ["", "job"])
def test_pipelined_commits_keep_their_order(workspace: hr.Workspace, name: str) -> None:
    publisher = workspace.publisher(name)
    pending = []
    for n in range(50):
        tx = publisher.begin()
        tx.append("a", some(n))
        tx.append("b", some(n))
        pending.append(tx.commit_nowait(b"%d" % n if name else b""))
    pending[-1].result()
    assert all(commit.done() for commit in pending)
    for commit in pending:
        commit.result()
        commit.result()
    assert numbers(workspace, "a") == numbers(workspace, "b") == list(range(50))
    if name:
        assert workspace.publisher(name).payload == b"49"


def test_what_is_pipelined_behind_a_refused_commit_is_refused_too(workspace: hr.Workspace) -> None:
    publisher = workspace.publisher("job")
    outcomes: list[hr.PendingCommit | hr.HeadraceError] = []
    kept = workspace.collection("a")
    gone = workspace.collection("gone", "n long")
    first = publisher.begin()
    first.append(gone, [{"n": 1}])
    workspace.delete_collection("gone")
    for n in range(3):
        try:
            tx = first if n == 0 else publisher.begin()
            tx.append(kept, some(n))
            outcomes.append(tx.commit_nowait())
        except hr.HeadraceError as error:
            outcomes.append(error)
    kinds = []
    for outcome in outcomes:
        with pytest.raises((NotFoundError, FencedError)) as refused:
            raise outcome if isinstance(outcome, hr.HeadraceError) else refusal(outcome)
        kinds.append(refused.type)
    assert kinds == [NotFoundError, FencedError, FencedError]
    assert numbers(workspace) == []


def refusal(pending: hr.PendingCommit) -> BaseException:
    try:
        pending.result()
    except hr.HeadraceError as error:
        return error
    raise AssertionError("it committed")


def test_documents_outside_of_transactions_are_visible_when_append_returns(
    workspace: hr.Workspace,
) -> None:
    with workspace.publisher() as tx:
        tx.append("a", some(1))
        assert workspace.append("a", some(2)) == 1
        assert numbers(workspace) == [2]
        large = pa.table({"n": range(100), "text": ["x" * 1000] * 100})
        assert workspace.append("b", large) == 100
    assert numbers(workspace) == [2, 1]
    assert numbers(workspace, "b") == list(range(100))
    assert set(flags(workspace, "b")) == {Flags.OUTSIDE}


def test_one_transaction_may_span_a_growing_schema(workspace: hr.Workspace) -> None:
    old = workspace.collection("a")
    with workspace.publisher() as tx:
        tx.append(old, some(1))
        new = workspace.collection("a", "n long, text string, more int")
        tx.append(new, [{"n": 2, "more": 5}])
        tx.append(old, some(3))
    assert workspace.table("a").select(["n", "more"]).to_pylist() == [
        {"n": 1, "more": None},
        {"n": 3, "more": None},
        {"n": 2, "more": 5},
    ]


# proves G3
def test_closing_the_workspace_rolls_back_what_is_open(owner: hr.Workspace) -> None:
    other = hr.open(owner.location, settings=SETTINGS)
    tx = other.publisher().begin()
    tx.append("a", some(1, text="x" * BUFFER_BYTES))
    other.close()
    other.close()
    assert flags(owner) == [Flags.CONTINUE, Flags.ACK]
    assert numbers(owner) == []


def test_a_closed_workspace_says_so(workspace: hr.Workspace) -> None:
    tx = workspace.publisher().begin()
    publisher = workspace.publisher("job")
    begun = workspace.publisher("begun").begin()
    begun.append("a", some(1))
    workspace.close()
    for use in (
        lambda: workspace.publisher("name"),
        lambda: workspace.publisher().begin(),
        lambda: workspace.append("a", some(1)),
        lambda: workspace.collection("c", "n long"),
        lambda: workspace.table("a"),
        workspace.journals,
        workspace.watch,
        lambda: tx.append("a", some(1)),
        lambda: publisher.begin().append("a", some(1)),
    ):
        with pytest.raises(UsageError, match="the workspace is closed; open it again"):
            use()
    with pytest.raises(PublishError, match="rolled back"):
        begun.commit()
    publisher.close()
