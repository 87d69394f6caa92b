"""Transactions that are not yet known to be complete. Pure.

A group is one transaction within one cohort: the ACKs it has there, and of those that were read,
where its documents begin in that place. It is released, and forgotten, once every ACK that it
waits for is read or given up, and every older group of each of its producers is released before
it or with it.

An ACK that stands in a journal is waited for however long it takes to read up to it: Slices advance
at their own pace through years of documents. One that stands nowhere may never come. It is given up
once documents are read whose clocks are further on than the horizon: in the journals that named it,
in the journal where it should stand, or of the same producer anywhere in the cohort. Documents that
have nothing to do with the transaction do not count: their clocks may be wrong.

Work is done for what changed, never for all that is pending: the awaited ACKs of a journal are in
the order of their offsets, and the groups of a producer in the order of their clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from heapq import nsmallest
from typing import NamedTuple

from headrace.ids import JournalId
from headrace.shuffle.progress_delta import Delta
from headrace.shuffle.session.awaited_acks import AwaitedAcks
from headrace.shuffle.session.producer_line import ProducerLine


class AckStatus(Enum):
    """How an ACK stands that a hint names."""

    READ = "it is read, or can never be"
    COMING = "the journal has it, or more before it"
    NOWHERE = "the journal is read to its end and does not have it, or is not there"


Find = Callable[[JournalId, int, int], AckStatus]
"""The ACK at an offset of a journal, under a binding."""

PlaceOf = Callable[[JournalId, int], int | None]
"""The place of a journal under a binding, if it is read."""

TransactionId = tuple[int, int, int]
"""Its cohort, and the least (producer, clock) of its ACKs."""

LineId = tuple[int, int]
"""A cohort and a producer."""


class CommitCap(NamedTuple):
    """How far a pending transaction lets a producer be shown in a place."""

    commit: int
    """The greatest clock that a checkpoint may show."""
    begin: int
    """Where the transaction begins in the place; zero if no ACK of it was read there."""


class _Span(NamedTuple):
    """A transaction in one place, of one producer."""

    first: int
    """The clock of its first document."""
    begin: int
    """The offset of that."""


class PendingTransaction:
    """One transaction within a cohort; `awaits` counts the ACKs neither read nor given up."""

    __slots__ = ("awaits", "clocks", "id", "is_dropped", "spans")

    def __init__(self, id: TransactionId) -> None:
        self.id = id
        self.clocks: tuple[tuple[int, int], ...] = ()
        """Each producer with the clock of its ACKs."""
        self.spans: dict[tuple[int, int], _Span] = {}
        """By place and producer, of the ACKs that were read."""
        self.awaits = 0
        self.is_dropped = False

    @property
    def lines(self) -> Iterator[tuple[LineId, int]]:
        """The lines that it stands in, each with its clock there."""
        return (((self.id[0], producer), clock) for producer, clock in self.clocks)

    @property
    def last_clock(self) -> int:
        return max(clock for _, clock in self.clocks)


class PendingTransactions:
    """Pending transactions. After `settle`, no group could be released that is still here."""

    def __init__(self, horizon: int, cohort_of: Callable[[int], int] = lambda _: 0) -> None:
        """`cohort_of` is that of a place."""
        self._horizon = horizon
        self._cohort_of = cohort_of
        self._newest_in: dict[int, int] = {}
        """By place, the greatest clock that was committed there."""
        self._newest_of: dict[LineId, int] = {}
        """By cohort and producer, the greatest clock that it committed."""
        self._newest = 0
        """The greatest clock of all."""
        self._groups: dict[TransactionId, PendingTransaction] = {}
        self._lines: dict[LineId, ProducerLine[PendingTransaction]] = {}
        """By cohort and producer, its groups in the order of their clocks."""
        self._awaited: AwaitedAcks[PendingTransaction] = AwaitedAcks()
        self._dirty: set[LineId] = set()
        """Lines in which a group came or became complete since they were last settled."""
        self._changed: set[LineId] = set()

    def __len__(self) -> int:
        return len(self._groups)

    # -- what is reported ------------------------------------------------------------------

    def fold(self, delta: Delta) -> None:
        """Take over what a Slice reports of transactions."""
        for at, producer, clock in delta.producers[["place", "producer", "last_commit"]].tolist():
            self.committed(at, producer, clock)
        for cohort, g_producer, g_clock, at, producer, clock, *span in delta.commits.tolist():
            id = cohort, g_producer, g_clock
            if (group := self._groups.get(id)) is None:
                group = self._groups[id] = PendingTransaction(id)
            self._add_producer(group, producer, clock)
            group.spans[at, producer] = _Span(*span)
        for *ids, journal, binding, producer, clock, offset in delta.parts.tolist():
            # Without a commit the journals are gone in which this Slice read it.
            if (group := self._groups.get(tuple(ids))) is not None:
                self._add_producer(group, producer, clock)
                group.awaits += self._awaited.add((journal, binding), offset, group)

    def committed(self, at: int, producer: int, clock: int) -> None:
        """A producer committed this clock in a place, in this Session or before it."""
        line = self._cohort_of(at), producer
        self._newest_in[at] = max(self._newest_in.get(at, 0), clock)
        self._newest_of[line] = max(self._newest_of.get(line, 0), clock)
        self._newest = max(self._newest, clock)

    def _add_producer(self, group: PendingTransaction, producer: int, clock: int) -> None:
        if any(known == producer for known, _ in group.clocks):
            return
        group.clocks += ((producer, clock),)
        line_id = group.id[0], producer
        if (line := self._lines.get(line_id)) is None:
            line = self._lines[line_id] = ProducerLine()
        line.insert(clock, group)
        self._dirty.add(line_id)

    def moved(self, journal: JournalId, binding: int) -> None:
        """The journal is read further under the binding."""
        self._awaited.touch((journal, binding))

    def forget(self, is_gone: Callable[[int], bool], left: Collection[LineId]) -> None:
        """Those places are not read any more; in others, producers are `left`.

        A group of which nothing else was read is forgotten: whoever reads another ACK of it
        reports it again.
        """
        self._newest_of = {line: clock for line, clock in self._newest_of.items() if line in left}
        self._newest_in = {at: clock for at, clock in self._newest_in.items() if not is_gone(at)}
        for group in list(self._groups.values()):
            group.spans = {key: span for key, span in group.spans.items() if not is_gone(key[0])}
            if not group.spans:
                self._drop(group)
        self._awaited.touch_all()

    def complete(self, shown: Mapping[tuple[int, int], int]) -> None:
        """Forget what was shown of groups: `shown` has the clocks up to which.

        What is left of a group, under bindings that the task did not have then, is still shown
        as a whole.
        """
        for group in list(self._groups.values()):
            clocks = dict(group.clocks)
            group.spans = {
                key: span for key, span in group.spans.items() if shown.get(key, 0) < clocks[key[1]]
            }
            if not group.spans:
                self._drop(group)

    # -- what becomes complete -------------------------------------------------------------

    def settle(self, find: Find, place_of: PlaceOf = lambda *_: None) -> None:
        """Forget the groups that are complete."""
        for key in self._awaited.to_look_at():
            journal, binding = JournalId(key[0]), key[1]
            found = AckStatus.READ
            while (first := self._awaited.first(key)) is not None:
                offset, groups = first
                if any(not group.is_dropped for group in groups):
                    found = find(journal, binding, offset)
                if found is not AckStatus.READ:
                    break
                self._await_no_more(key, offset, groups)
            if found is AckStatus.NOWHERE:
                self._give_up(key, place_of(journal, binding))
            self._awaited.looked_at(key, again=found is AckStatus.NOWHERE)
        self._release()

    def _await_no_more(
        self, key: tuple[int, int], offset: int, groups: Iterable[PendingTransaction]
    ) -> None:
        self._awaited.remove(key, offset)
        for group in groups:
            group.awaits -= 1
            if not (group.awaits or group.is_dropped):
                self._dirty.update(line for line, _ in group.lines)

    def _give_up(self, key: tuple[int, int], at: int | None) -> None:
        """Await no ACK of a late group in a journal that is read to its end, or is not there.

        ACKs stand about in the order of their clocks. So only if the first could be late, others
        are looked at: each group is as late as documents that have to do with it say.
        """
        first = self._awaited.first(key)
        if first is None or not any(self._may_be_late(group) for group in first[1]):
            return
        for offset, groups in self._awaited.at(key):
            if all(group.is_dropped or self._is_late(group, at) for group in groups):
                self._await_no_more(key, offset, groups)

    def _may_be_late(self, group: PendingTransaction) -> bool:
        return self._newest - group.last_clock > self._horizon

    def _is_late(self, group: PendingTransaction, awaited: int | None) -> bool:
        """Whether documents that have to do with the group are beyond the horizon."""
        if not self._may_be_late(group):
            return False
        places = [at for at, _ in group.spans]
        places += [] if awaited is None else [awaited]
        newest = max(self._newest_in.get(at, 0) for at in places)
        newest = max(newest, *(self._newest_of.get(line, 0) for line, _ in group.lines))
        return newest - group.last_clock > self._horizon

    def _release(self) -> None:
        """Drop what waits for nothing: from the oldest of each line on, as far as that goes."""
        while self._dirty:
            line_id = self._dirty.pop()
            while (line := self._lines.get(line_id)) is not None:
                if not (found := self._that_waits_for_nothing_else(line.oldest)):
                    break
                for group in found:
                    self._drop(group)

    def _that_waits_for_nothing_else(self, group: PendingTransaction) -> list[PendingTransaction]:
        """The group with all that must be released before or with it; nothing if one of these
        waits for an ACK. Of several producers two can be older than each other."""
        if group.awaits:
            return []
        found = {group.id: group}
        to_follow = [self._older_than(group)]
        while to_follow:
            if (older := next(to_follow[-1], None)) is None:
                to_follow.pop()
            elif older.awaits:
                return []
            elif older.id not in found:
                found[older.id] = older
                to_follow.append(self._older_than(older))
        return list(found.values())

    def _older_than(self, group: PendingTransaction) -> Iterator[PendingTransaction]:
        for line, clock in group.lines:
            yield from self._lines[line].older_than(clock)

    def _drop(self, group: PendingTransaction) -> None:
        group.is_dropped = True
        del self._groups[group.id]
        for line_id, clock in group.lines:
            line = self._lines[line_id]
            line.remove(clock, group)
            if not line:
                del self._lines[line_id]
            self._changed.add(line_id)
            self._dirty.add(line_id)

    # -- what is held ----------------------------------------------------------------------

    def take_changed(self) -> set[LineId]:
        """The producers of which groups were released since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    @property
    def changed_lines(self) -> frozenset[LineId]:
        """What `take_changed` would return."""
        return frozenset(self._changed)

    def cap(self, cohort: int, producer: int, place: int) -> CommitCap | None:
        """What the producer's oldest pending transaction allows; None if it has none."""
        if (line := self._lines.get((cohort, producer))) is None:
            return None
        span = line.oldest.spans.get((place, producer), _Span(line.oldest_clock, 0))
        return CommitCap(span.first - 1, span.begin)

    def behind(self, find: Find, count: int) -> list[tuple[int, int]]:
        """Journals, each with a binding, that pending transactions wait for and that have more to
        read: those that the oldest transactions wait for, so many at most."""
        found: list[tuple[int, int, int]] = []
        for stand in self._awaited.stands():
            first = self._awaited.first(stand)
            if first and find(JournalId(stand[0]), stand[1], first[0]) is AckStatus.COMING:
                found.append((min(group.last_clock for group in first[1]), *stand))
        return [(journal, binding) for _, journal, binding in nsmallest(count, found)]

    def floors(self) -> dict[LineId, int]:
        """By cohort and producer, the clock of the oldest group that is pending."""
        return {id: line.oldest_clock for id, line in self._lines.items()}

    def waiting(self, find: Find) -> Iterator[tuple[int, int]]:
        """Each producer of a pending group, with a journal that the group waits for."""
        told: set[TransactionId] = set()
        for (journal, binding), offset, group in self._awaited:
            if group.is_dropped or group.id in told:
                continue
            if find(JournalId(journal), binding, offset) is not AckStatus.READ:
                told.add(group.id)
                yield from ((producer, journal) for producer, _ in group.clocks)

    def validate(self) -> None:
        """Assert what holds between events."""
        awaited: dict[TransactionId, int] = {}
        for _, _, group in self._awaited:
            awaited[group.id] = awaited.get(group.id, 0) + (not group.is_dropped)
        for id, group in self._groups.items():
            assert id == group.id, f"transaction {id} is kept as {group.id}"
            assert group.spans, f"transaction {id} was read nowhere"
            assert not group.is_dropped, f"transaction {id} is dropped and kept"
            assert group.awaits == awaited.get(id, 0), f"transaction {id} counts its ACKs wrong"
            for line, _ in group.lines:
                assert group in self._lines[line], f"{id} is not in line {line}"
        members = sum(len(group.clocks) for group in self._groups.values())
        assert sum(map(len, self._lines.values())) == members, "a line has a dropped transaction"
