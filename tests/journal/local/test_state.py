"""The owner's decisions: many random histories, and single scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.clock import Clock
from headrace.errors import InDoubtError, NotFoundError, ProtocolError
from headrace.ids import JournalId, Offset, new_producer
from headrace.journal.collection import define
from headrace.journal.contract import CommitRequest, DocsHead, Lease, Prepared, Write
from headrace.journal.local.producers import COMMITS_REMEMBERED, NOBODY
from headrace.journal.local.records import AckTable, CollectionPut, JournalsCreated, Record
from headrace.journal.local.state import OwnerState, PublisherState, SharedTransaction
from headrace.journal.sequencer import Flags
from tests.journal.local.simulator import Simulator

STEPS = 120


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", [range(first, first + 50) for first in range(0, 300, 50)], ids=str
)
def test_random_histories(seeds: range) -> None:
    # proves G2
    # proves G3
    for seed in seeds:
        try:
            Simulator(seed).run(STEPS)
        except BaseException as error:
            error.add_note(f"again: python -m tests.journal.local.simulator {seed} {STEPS}")
            raise


def owner_with(*journals: str) -> OwnerState:
    state = OwnerState()
    schemas = define("c", "x long").schemas
    state.change_catalog([CollectionPut("c", schemas, id=1)])
    made = [(JournalId(i), name) for i, name in enumerate(journals, 1)]
    state.change_catalog([JournalsCreated(made)])
    return state


def opened(state: OwnerState, client: int = 1, name: str = "") -> Lease:
    return state.open_publisher(client, name, new_producer())[1]


def write(
    state: OwnerState,
    lease: Lease,
    clock: int,
    commit: CommitRequest | None = None,
    client: int = 1,
) -> list[Record]:
    head = DocsHead(JournalId(1), Clock(clock), 1, 0, Flags.CONTINUE)
    return state.write(client, Write(lease.producer, lease.holder, (head,), commit), [8])


BROKEN: dict[str, Callable[[OwnerState, Lease], None]] = {
    "a span beyond the head": lambda s, lease: s.producers[lease.producer].spans.update(
        {JournalId(1): Offset(1 << 40)}
    ),
    "half a lease": lambda s, lease: setattr(s.producers[lease.producer], "client", NOBODY),
    "a holder of the future": lambda s, lease: setattr(s, "last_holder", 0),
    "idle and held": lambda s, lease: s.idle.append(lease.producer),
    "a transaction nobody opened": lambda s, lease: setattr(
        s.producers[lease.producer], "transaction", 7
    ),
    "a transaction of others": lambda s, lease: s.transactions.update(
        {7: SharedTransaction(new_producer())}
    ),
    "a publisher without its name": lambda s, lease: s.publishers.update(
        {"n": PublisherState(lease.producer)}
    ),
    "a commit of the future": lambda s, lease: s.producers[lease.producer].commits.append(
        (lease.holder, Clock(99))
    ),
    "a journal of no name": lambda s, lease: s.catalog.by_name.clear(),
}


@pytest.mark.parametrize("breakage", BROKEN)
def test_validate_refuses_a_state_with(breakage: str) -> None:
    state = owner_with("c/0000")
    lease = opened(state)
    write(state, lease, 1)
    state.validate()
    BROKEN[breakage](state, lease)
    with pytest.raises(AssertionError):
        state.validate()


def test_a_thousand_commits_in_flight_can_all_be_asked_for() -> None:
    state = owner_with("c/0000")
    lease = opened(state)
    for clock in range(2, 2002, 2):
        write(state, lease, clock, CommitRequest(Clock(clock + 1)))
    write(state, lease, 3000)
    for clock in (3, 5, 1001, 2001):
        assert state.was_committed(lease.producer, lease.holder, Clock(clock))[1]
    assert not state.was_committed(lease.producer, lease.holder, Clock(3001))[1]


def test_a_commit_of_too_many_holders_ago_is_an_error_that_changes_nothing() -> None:
    state = owner_with("c/0000")
    first = opened(state, name="n")
    write(state, first, 1, CommitRequest(Clock(2)))
    lease = first
    for clock in range(4, 4 + 2 * COMMITS_REMEMBERED, 2):
        lease = opened(state, name="n")
        write(state, lease, clock, CommitRequest(Clock(clock + 1)))
    write(state, lease, 1000)
    before = repr(state)
    with pytest.raises(InDoubtError, match="remembers the last 64 holders of a publisher"):
        state.was_committed(first.producer, first.holder, Clock(2))
    assert repr(state) == before


def test_half_a_transaction_is_refused_in_a_journal_made_anew_and_the_next_one_is_not() -> None:
    # proves G2
    state = owner_with("c/0000")
    lease = opened(state)
    write(state, lease, 1)
    state.change_catalog(state.catalog.delete_journals(["c/0000"]))
    with pytest.raises(
        NotFoundError, match="somebody deleted journal c/0000 after this transaction wrote"
    ):
        write(state, lease, 2)
    state.change_catalog([JournalsCreated([(JournalId(2), "c/0000")])])
    anew = DocsHead(JournalId(2), Clock(2), 1, 0, Flags.CONTINUE)
    with pytest.raises(
        NotFoundError, match="somebody deleted journal c/0000 after this transaction wrote"
    ):
        state.write(1, Write(lease.producer, lease.holder, (anew,)), [8])
    state.write(1, Write(lease.producer, lease.holder, (), CommitRequest(Clock(3))), [])
    write(state, lease, 4, CommitRequest(Clock(5)))
    assert state.catalog.journals[JournalId(2)].head > 0


class Spans(dict[JournalId, Offset]):
    def __iter__(self) -> Iterator[JournalId]:
        raise AssertionError("all open spans were walked")


def test_a_write_costs_what_it_writes_however_many_spans_are_open() -> None:
    """Otherwise a transaction of many writes to many journals would cost their product."""
    state = owner_with("c/0000", "c/0001")
    lease = opened(state)
    write(state, lease, 10)
    state.producers[lease.producer].spans = Spans(state.producers[lease.producer].spans)
    for clock in range(11, 20):
        write(state, lease, clock)
    outside = DocsHead(JournalId(1), Clock(20), 1, 0, Flags.OUTSIDE)
    elsewhere = DocsHead(JournalId(2), Clock(20), 1, 0, Flags.OUTSIDE)
    begun = DocsHead(JournalId(2), Clock(21), 1, 0, Flags.CONTINUE)
    with pytest.raises(ProtocolError, match="outside its open transaction to c/0000"):
        state.write(1, Write(lease.producer, lease.holder, (outside,)), [8])
    late = DocsHead(JournalId(2), Clock(22), 1, 0, Flags.OUTSIDE)
    with pytest.raises(ProtocolError, match="outside its open transaction to c/0001"):
        state.write(1, Write(lease.producer, lease.holder, (elsewhere, begun, late)), [8] * 3)
    state.write(1, Write(lease.producer, lease.holder, (elsewhere, begun)), [8] * 2)


def joined(state: OwnerState) -> tuple[Lease, Prepared]:
    """A coordinator, of client 1, and a participant that has prepared, of client 2."""
    coordinator = opened(state, client=1)
    state.begin(1, coordinator.producer, coordinator.holder, 77)
    participant = state.join(2, 77, new_producer())
    write(state, participant, 5, client=2)
    prepared = Prepared(participant.producer, participant.holder, Clock(6))
    state.prepare(2, prepared)
    return coordinator, prepared


def test_a_prepared_participant_lives_by_its_coordinator() -> None:
    state = owner_with("c/0000")
    coordinator, prepared = joined(state)
    assert state.client_lost(2) == []
    made = write(state, coordinator, 1, CommitRequest(Clock(2), (prepared,)))
    acks = made[-1]
    assert isinstance(acks, AckTable)
    assert sorted(acks.rows["producer"].tolist()) == sorted(
        [coordinator.producer, prepared.producer]
    )


def test_losing_the_coordinator_rolls_back_those_who_prepared() -> None:
    # proves G3
    state = owner_with("c/0000")
    _, prepared = joined(state)
    [acks] = state.client_lost(1)
    assert isinstance(acks, AckTable)
    assert acks.rows[["producer", "clock"]].tolist() == [(prepared.producer, 0)]


def test_a_transaction_without_documents_commits_its_payload() -> None:
    state = owner_with("c/0000")
    lease = opened(state, name="n")
    commit = CommitRequest(Clock(5), payload=b"checkpoint 1")
    state.write(1, Write(lease.producer, lease.holder, (), commit), [])
    assert opened(state, name="n").payload == b"checkpoint 1"
    assert state.was_committed(lease.producer, lease.holder, Clock(5))[1]


def test_a_transaction_of_nothing_leaves_nothing() -> None:
    state = owner_with("c/0000")
    lease = opened(state)
    assert (
        state.write(1, Write(lease.producer, lease.holder, (), CommitRequest(Clock(5))), []) == []
    )
