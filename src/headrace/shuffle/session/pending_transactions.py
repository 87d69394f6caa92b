"""Transactions that are not yet known to be complete. Pure.

A transaction here is what a transaction has within one cohort: the ACKs there, and where its
documents begin in each place whose ACK was read. The Session releases and forgets a transaction
once two things hold: every ACK that it waits for is read or given up, and every older transaction
of each of its producers is released before it or with it.

A transaction waits for an ACK that a journal has, however long it takes to read that far: Slices
advance at their own pace through years of documents. An ACK that no journal has may never come. The
Session gives it up once it has read documents whose clocks are beyond the transaction's by more
than the horizon: in a journal that named the ACK, in the journal that should have it, or of the
same producer anywhere in the cohort. Other documents do not count: their clocks may be wrong.

The cost depends on what changed, never on how much is pending: the awaited ACKs of a journal are
sorted by offset, and the transactions of a producer by clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from heapq import nsmallest
from typing import NamedTuple

from headrace.ids import JournalId
from headrace.shuffle.progress_delta import ProgressReport
from headrace.shuffle.session.awaited_acks import AwaitedAcks, HintedPlace
from headrace.shuffle.session.producer_line import ProducerLine


class AckStatus(Enum):
    """Where the ACK is that a hint names."""

    READ = "it is read, or can never be"
    COMING = "the journal has it, or more before it"
    NOWHERE = "the journal is read to its end and does not have it, or is not there"


AckLookup = Callable[[JournalId, int, int], AckStatus]
"""Returns the status of the ACK at an offset of a journal, under a binding."""

PlaceOf = Callable[[JournalId, int], int | None]
"""Returns the place of a journal under a binding, or None if nobody reads it."""

TransactionId = tuple[int, int, int]
"""A cohort, and the least (producer, clock) of the transaction's ACKs."""

LineId = tuple[int, int]
"""A cohort and a producer."""


class CommitCap(NamedTuple):
    """How much of a producer a checkpoint may show in a place while a transaction is pending."""

    commit: int
    """The greatest clock that a checkpoint may show."""
    begin: int
    """The offset where the transaction begins; zero if none of its ACKs was read there."""


class _Begin(NamedTuple):
    """The first document that a producer has in one place within a transaction."""

    clock: int
    offset: int


class PendingTransaction:
    """What a transaction has within one cohort."""

    __slots__ = ("awaits", "begins", "clocks", "id", "is_dropped")

    def __init__(self, id: TransactionId) -> None:
        self.id = id
        self.clocks: tuple[tuple[int, int], ...] = ()
        """Every producer with the clock of its ACKs."""
        self.begins: dict[tuple[int, int], _Begin] = {}
        """By place and producer, for the ACKs that were read."""
        self.awaits = 0
        """How many of its ACKs are neither read nor given up."""
        self.is_dropped = False

    @property
    def lines(self) -> Iterator[tuple[LineId, int]]:
        """Yield the lines that have the transaction, each with its clock there."""
        return (((self.id[0], producer), clock) for producer, clock in self.clocks)

    @property
    def last_clock(self) -> int:
        return max(clock for _, clock in self.clocks)


class PendingTransactions:
    """All pending transactions. `settle` leaves none that could be released."""

    def __init__(self, horizon: int, cohort_of: Callable[[int], int] = lambda _: 0) -> None:
        """`horizon` is in clock units. `cohort_of` returns the cohort of a place."""
        self._horizon = horizon
        self._cohort_of = cohort_of
        self._newest_in: dict[int, int] = {}
        """By place, the greatest clock that was committed there."""
        self._newest_of: dict[LineId, int] = {}
        """By cohort and producer, the greatest clock that the producer committed."""
        self._newest = 0
        """The greatest clock of all."""
        self._transactions: dict[TransactionId, PendingTransaction] = {}
        self._lines: dict[LineId, ProducerLine[PendingTransaction]] = {}
        """By cohort and producer, the producer's transactions, sorted by clock."""
        self._awaited: AwaitedAcks[PendingTransaction] = AwaitedAcks()
        self._dirty: set[LineId] = set()
        """Lines that got a transaction, or have one that became complete, since `settle`."""
        self._changed: set[LineId] = set()
        """Lines that lost a transaction since `take_changed`."""

    def __len__(self) -> int:
        return len(self._transactions)

    # -- reports ---------------------------------------------------------------------------

    def fold(self, delta: ProgressReport) -> None:
        """Take over the transactions of a report."""
        for place, producer, clock in delta.producers[
            ["place", "producer", "last_commit"]
        ].tolist():
            self.committed(place, producer, clock)
        for cohort, id_producer, id_clock, place, producer, clock, *begin in delta.commits.tolist():
            id = cohort, id_producer, id_clock
            if (transaction := self._transactions.get(id)) is None:
                transaction = self._transactions[id] = PendingTransaction(id)
            self._add_producer(transaction, producer, clock)
            transaction.begins[place, producer] = _Begin(*begin)
        for *id_columns, journal, binding, producer, clock, offset in delta.parts.tolist():
            # If it is unknown, the journals are deleted in which the Slice read its ACKs.
            if (transaction := self._transactions.get(tuple(id_columns))) is not None:
                self._add_producer(transaction, producer, clock)
                transaction.awaits += self._awaited.add((journal, binding), offset, transaction)

    def committed(self, place: int, producer: int, clock: int) -> None:
        """A producer committed this clock in a place, in this Session or before it."""
        line = self._cohort_of(place), producer
        self._newest_in[place] = max(self._newest_in.get(place, 0), clock)
        self._newest_of[line] = max(self._newest_of.get(line, 0), clock)
        self._newest = max(self._newest, clock)

    def _add_producer(self, transaction: PendingTransaction, producer: int, clock: int) -> None:
        if any(known == producer for known, _ in transaction.clocks):
            return
        transaction.clocks += ((producer, clock),)
        line_id = transaction.id[0], producer
        if (line := self._lines.get(line_id)) is None:
            line = self._lines[line_id] = ProducerLine()
        line.insert(clock, transaction)
        self._dirty.add(line_id)

    def moved(self, journal: JournalId, binding: int) -> None:
        """A Slice read more of the journal under the binding."""
        self._awaited.touch((journal, binding))

    def forget(self, is_gone: Callable[[int], bool], left: Collection[LineId]) -> None:
        """Forget the places that are gone. `left` are the producers that other places have.

        This also forgets a transaction whose ACKs were read in no other place: a Slice that reads
        another of its ACKs reports it again.
        """
        self._newest_of = {line: clock for line, clock in self._newest_of.items() if line in left}
        self._newest_in = {
            place: clock for place, clock in self._newest_in.items() if not is_gone(place)
        }
        for transaction in list(self._transactions.values()):
            transaction.begins = {
                key: begin for key, begin in transaction.begins.items() if not is_gone(key[0])
            }
            if not transaction.begins:
                self._drop(transaction)
        self._awaited.touch_all()

    def forget_shown(self, shown: Mapping[tuple[int, int], int]) -> None:
        """Forget what a checkpoint showed: by place and producer, everything up to a clock.

        The rest of a transaction, under bindings that the task did not have then, stays pending,
        so that a checkpoint shows it as a whole.
        """
        for transaction in list(self._transactions.values()):
            clocks = dict(transaction.clocks)
            transaction.begins = {
                key: begin
                for key, begin in transaction.begins.items()
                if shown.get(key, 0) < clocks[key[1]]
            }
            if not transaction.begins:
                self._drop(transaction)

    # -- release --------------------------------------------------------------------------

    def settle(self, find: AckLookup, place_of: PlaceOf = lambda *_: None) -> None:
        """Release the transactions that are complete."""
        for hinted in self._awaited.touched():
            status = AckStatus.READ
            while (first := self._awaited.first(hinted)) is not None:
                offset, transactions = first
                if any(not transaction.is_dropped for transaction in transactions):
                    status = find(*hinted, offset)
                if status is not AckStatus.READ:
                    break
                self._stop_awaiting(hinted, offset, transactions)
            if status is AckStatus.NOWHERE:
                self._give_up(hinted, place_of(*hinted))
            self._awaited.settle(hinted, stays_touched=status is AckStatus.NOWHERE)
        self._release()

    def _stop_awaiting(
        self, hinted: HintedPlace, offset: int, transactions: Iterable[PendingTransaction]
    ) -> None:
        self._awaited.remove(hinted, offset)
        for transaction in transactions:
            transaction.awaits -= 1
            if not (transaction.awaits or transaction.is_dropped):
                self._dirty.update(line for line, _ in transaction.lines)

    def _give_up(self, hinted: HintedPlace, place: int | None) -> None:
        """Give up the ACKs of late transactions that the journal, read to its end, does not have.

        A journal has its ACKs roughly in the order of their clocks. So if the first one cannot be
        late, there is no need to look at the others.
        """
        first = self._awaited.first(hinted)
        if first is None or not any(self._may_be_late(transaction) for transaction in first[1]):
            return
        for offset, transactions in self._awaited.acks(hinted):
            if all(
                transaction.is_dropped or self._is_late(transaction, place)
                for transaction in transactions
            ):
                self._stop_awaiting(hinted, offset, transactions)

    def _may_be_late(self, transaction: PendingTransaction) -> bool:
        return self._newest - transaction.last_clock > self._horizon

    def _is_late(self, transaction: PendingTransaction, awaited: int | None) -> bool:
        """Return True if documents that count for the transaction are beyond the horizon."""
        if not self._may_be_late(transaction):
            return False
        places = [place for place, _ in transaction.begins]
        places += [] if awaited is None else [awaited]
        newest = max(self._newest_in.get(place, 0) for place in places)
        newest = max(newest, *(self._newest_of.get(line, 0) for line, _ in transaction.lines))
        return newest - transaction.last_clock > self._horizon

    def _release(self) -> None:
        """Drop complete transactions: in each line from the oldest on, up to one that waits."""
        while self._dirty:
            line_id = self._dirty.pop()
            while (line := self._lines.get(line_id)) is not None:
                if not (found := self._releasable_with(line.oldest)):
                    break
                for transaction in found:
                    self._drop(transaction)

    def _releasable_with(self, transaction: PendingTransaction) -> list[PendingTransaction]:
        """Return the transaction with all that must be released before it or with it.

        Returns nothing if one of them waits for an ACK. Two transactions of several producers can
        each be older than the other.
        """
        if transaction.awaits:
            return []
        found = {transaction.id: transaction}
        to_follow = [self._older_than(transaction)]
        while to_follow:
            if (older := next(to_follow[-1], None)) is None:
                to_follow.pop()
            elif older.awaits:
                return []
            elif older.id not in found:
                found[older.id] = older
                to_follow.append(self._older_than(older))
        return list(found.values())

    def _older_than(self, transaction: PendingTransaction) -> Iterator[PendingTransaction]:
        for line, clock in transaction.lines:
            yield from self._lines[line].older_than(clock)

    def _drop(self, transaction: PendingTransaction) -> None:
        transaction.is_dropped = True
        del self._transactions[transaction.id]
        for line_id, clock in transaction.lines:
            line = self._lines[line_id]
            line.remove(clock, transaction)
            if not line:
                del self._lines[line_id]
            self._changed.add(line_id)
            self._dirty.add(line_id)

    # -- queries -------------------------------------------------------------------------

    def take_changed(self) -> set[LineId]:
        """Return the lines that lost a transaction since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    @property
    def changed_lines(self) -> frozenset[LineId]:
        """The lines that `take_changed` would return."""
        return frozenset(self._changed)

    def cap(self, cohort: int, producer: int, place: int) -> CommitCap | None:
        """Return what the producer's oldest pending transaction allows; None if it has none."""
        if (line := self._lines.get((cohort, producer))) is None:
            return None
        begin = line.oldest.begins.get((place, producer), _Begin(line.oldest_clock, 0))
        return CommitCap(begin.clock - 1, begin.offset)

    def places_behind(self, find: AckLookup, count: int) -> list[HintedPlace]:
        """Return up to `count` places that have more to read and that transactions wait for.

        The oldest transactions decide which.
        """
        found: list[tuple[int, JournalId, int]] = []
        for hinted in self._awaited.places():
            first = self._awaited.first(hinted)
            if first and find(*hinted, first[0]) is AckStatus.COMING:
                found.append((min(transaction.last_clock for transaction in first[1]), *hinted))
        return [(journal, binding) for _, journal, binding in nsmallest(count, found)]

    def oldest_clocks(self) -> dict[LineId, int]:
        """Return, by cohort and producer, the clock of the oldest pending transaction."""
        return {id: line.oldest_clock for id, line in self._lines.items()}

    def waiting(self, find: AckLookup) -> Iterator[tuple[int, JournalId]]:
        """Yield the producers of each pending transaction, with a journal that it waits for."""
        yielded: set[TransactionId] = set()
        for hinted, offset, transaction in self._awaited:
            if transaction.is_dropped or transaction.id in yielded:
                continue
            if find(*hinted, offset) is not AckStatus.READ:
                yielded.add(transaction.id)
                yield from ((producer, hinted[0]) for producer, _ in transaction.clocks)

    def validate(self) -> None:
        """Assert the invariants that hold between events."""
        awaited: dict[TransactionId, int] = {}
        for _, _, transaction in self._awaited:
            awaited[transaction.id] = awaited.get(transaction.id, 0) + (not transaction.is_dropped)
        for id, transaction in self._transactions.items():
            assert id == transaction.id, f"transaction {id} is kept as {transaction.id}"
            assert transaction.begins, f"transaction {id} was read nowhere"
            assert not transaction.is_dropped, f"transaction {id} is dropped and kept"
            assert transaction.awaits == awaited.get(id, 0), (
                f"transaction {id} counts its ACKs wrong"
            )
            for line, _ in transaction.lines:
                assert transaction in self._lines[line], f"{id} is not in line {line}"
        entries = sum(len(transaction.clocks) for transaction in self._transactions.values())
        assert sum(map(len, self._lines.values())) == entries, "a line has a dropped transaction"
