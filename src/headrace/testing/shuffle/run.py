"""One Session, its members and everything under way between them, in memory."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.frontier import BindingTag
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Frame
from headrace.shuffle import messages
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.block import block_schema, decode_block
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.progress_delta import Delta
from headrace.shuffle.queue import state as queue
from headrace.shuffle.queue.checkpoint_reads import CheckpointReads
from headrace.shuffle.queue.state import QueueState
from headrace.shuffle.routing import Range, Router
from headrace.shuffle.session.pending_limit import PENDING_MAX, Hold
from headrace.shuffle.session.state import KEPT_ROWS_MAX, SessionState
from headrace.shuffle.slice import effects as slices
from headrace.shuffle.slice.state import Limits, SliceState
from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.queue_file import QueueFile
from headrace.testing.shuffle.world import World

_MUCH = 1 << 40
HORIZON = 1 << 60


class Conditions(NamedTuple):
    """What a Session has to cope with."""

    soft_bytes: int = _MUCH
    hard_bytes: int = 2 * _MUCH
    """The limits of each Queue."""
    credit_bytes: int = _MUCH
    """At most, of what the limits leave."""
    kept_rows_max: int | None = None
    """Slices wait while so many rows of reports do."""
    trouble: float = 0.0
    """How often a fetch is answered late, or twice."""
    lags: bool = False
    """Whether the watch tells what happened late, and in parts."""


CALM = Conditions()


@dataclass
class Member:
    slice: SliceState
    queue: QueueState
    file: QueueFile
    reading: CheckpointReads
    seen: set[Kind] = field(default_factory=set)


class Run:
    """One Session from its opening to its end."""

    def __init__(
        self,
        world: World,
        sources: Sources,
        rng: Random,
        say: Callable[[str], None],
        ranges: list[Range],
        last_commit: Checkpoint,
        read_through: Checkpoint | None,
        *,
        is_cut: bool = False,
        conditions: Conditions = CALM,
        counts: Counter[Kind] | None = None,
    ) -> None:
        self.world = world
        self.sources = sources
        self.rng = rng
        self.say = say
        self.ranges = ranges
        self.router = Router(ranges)
        self.conditions = conditions
        self.counts: Counter[Kind] = Counter() if counts is None else counts
        kept_rows_max = conditions.kept_rows_max
        self.session = SessionState(
            sources,
            ranges,
            last_commit,
            read_through,
            HORIZON,
            is_cut=is_cut,
            is_limited=kept_rows_max is not None,
            kept_rows_max=kept_rows_max or KEPT_ROWS_MAX,
            pending_max=self.rng.choice([1, 3, PENDING_MAX]),
            pending_hard_max=PENDING_MAX,
        )
        self.now_held = Hold()
        self.is_starving = False
        self.known: dict[JournalId, Offset] = {}
        self.checkpoints_read = 0
        self.checkpoints_released = 0
        self.pipes: dict[tuple[str, int, int], deque[Callable[[], None]]] = defaultdict(deque)
        """Messages under way, by kind, sender and receiver; each pipe keeps its order."""
        self._schemas = {source.tag: block_schema(source) for source in sources.all}
        limits = self._limits()
        self.members = [self._member(at, limits) for at in range(len(ranges))]

    def _limits(self) -> Limits:
        room_bytes = self.conditions.hard_bytes - self.conditions.soft_bytes
        share_bytes = room_bytes // (len(self.ranges) * self.sources.lanes * 4)
        credit_bytes = max(1, min(self.conditions.credit_bytes, share_bytes))
        return Limits(
            credit_bytes=credit_bytes,
            fetch_bytes=self.rng.choice([1, 30, 1 << 20]),
            ahead_bytes=self.rng.choice([1, 100, 1 << 20]),
            block_documents=self.rng.choice([1, 3, 100]),
            cycle_documents=self.rng.choice([1, 4, 100]),
            cycle_bytes=min(Limits().cycle_bytes, credit_bytes),
            report_documents=self.rng.choice([2, 1 << 62, 1 << 62]),
            patience=self.rng.choice([0, 50]),
        )

    def _member(self, at: int, limits: Limits) -> Member:
        soft_bytes, hard_bytes = self.conditions.soft_bytes, self.conditions.hard_bytes
        file = QueueFile()
        return Member(
            SliceState(self.sources, self.ranges, _decode, limits, lambda *_: _MUCH),
            QueueState(len(self.ranges), self.sources.lanes, soft_bytes, hard_bytes),
            file,
            CheckpointReads(
                file, self.sources, lambda: self.send("needs", at, at, lambda: self.needs(at))
            ),
        )

    # -- the machinery ---------------------------------------------------------------------

    def send(self, kind: str, sender: int, receiver: int, deliver: Callable[[], None]) -> None:
        self.pipes[kind, sender, receiver].append(deliver)

    def deliver(self) -> bool:
        """One message of one pipe."""
        full = [key for key, pipe in self.pipes.items() if pipe]
        if not full:
            return False
        key = self.rng.choice(full)
        self.say(f"  deliver {key}")
        self.pipes[key].popleft()()
        return True

    def watch(self, *, lags: bool = False) -> bool:
        changes = self.world.changes_since(self.known, lags=lags)
        if not changes:
            return False
        told = self.session.journals_changed(changes)
        for member in range(len(self.members)):
            self.send("session", -1, member, lambda m=member: self.assigned(m, told))  # type: ignore[misc]
        return True

    def assigned(self, member: int, told: Any) -> None:
        state = self.members[member].slice
        for id, tags in told.tags:
            state.learned(id, tags)
        if (starts := told.start.get(member)) is not None:
            state.start(starts, is_cut=told.last)
        if stops := told.stop.get(member):
            self.slice_effects(member, state.stop(stops, told.made))
        for place, head in told.heads.get(member, []):
            state.head(place, head)
        self.advance(member)

    def advance(self, member: int) -> None:
        state = self.members[member].slice
        self.slice_effects(member, state.advance(self.world.now))
        self.counts[Kind.NO_CREDIT] += state.lacks_credit(self.world.now)

    def slice_effects(self, member: int, effects: list[slices.Effect]) -> None:
        for effect in effects:
            match effect:
                case slices.Fetch():
                    # Fetches are answered in any order.
                    self.send(
                        "fetch",
                        member,
                        effect.place,
                        lambda e=effect: self.fetch(member, e),  # type: ignore[misc]
                    )
                case slices.SendBlock(to, head, body):
                    self.enqueue(member, to, lambda q, h=head, b=body: q.append(member, h, b))  # type: ignore[misc]
                case slices.SendEnds(to, lane, ends):
                    self.enqueue(member, to, lambda q, n=lane, e=ends: q.end(member, n, e))  # type: ignore[misc]
                case slices.SendBounds(bounds):
                    self.enqueue_all(member, lambda q, b=bounds: q.bound(member, b))  # type: ignore[misc]
                case slices.SendFlush(number, lane):
                    self.enqueue_all(member, lambda q, n=number, w=lane: q.flush(member, w, n))  # type: ignore[misc]
                case slices.SendStop(lane, places, made):
                    self.enqueue_all(
                        member,
                        lambda q, n=lane, p=places, m=made: q.stop(member, n, p, m),  # type: ignore[misc]
                    )
                case slices.SendStarving(starving, made):
                    self.enqueue_all(member, lambda q, s=starving, m=made: q.starve(s, m))  # type: ignore[misc]
                case slices.Finish():
                    self.send("report", member, -1, lambda: self.session.finished(member))
                case slices.Report(delta):
                    self.send(
                        "report",
                        member,
                        -1,
                        lambda d=delta: self.reported(member, d),  # type: ignore[misc]
                    )

    def reported(self, member: int, delta: Delta) -> None:
        self.session.progress(member, delta)
        self.hold()

    def hold(self) -> None:
        """Tell Slices, if they are to take more, or no more; after whatever changes that."""
        if self.now_held != (hold := self.session.hold()):
            self.now_held = hold
            self.counts[Kind.HELD] += bool(hold.lanes)
            self.counts[Kind.AHEAD] += bool(hold.behind)
            for member in range(len(self.members)):
                self.send("session", -1, member, lambda m=member: self.held(m, hold))  # type: ignore[misc]

    def held(self, member: int, hold: Hold) -> None:
        self.members[member].slice.hold(hold.lanes, dict(hold.behind))
        self.advance(member)

    def starve(self, starving: bool) -> None:
        """Whether the consumer waits for a checkpoint: Slices tell the Queues."""
        if self.is_starving == starving:
            return
        self.is_starving = starving
        made = self.session.assignment.made
        for member in range(len(self.members)):
            self.send("session", -1, member, lambda m=member: self.starved(m, starving, made))  # type: ignore[misc]

    def starved(self, member: int, starving: bool, made: int) -> None:
        self.slice_effects(member, self.members[member].slice.starve(starving, made))

    # -- Queues ----------------------------------------------------------------------------

    def enqueue(
        self, sender: int, receiver: int, event: Callable[[QueueState], list[queue.Effect]]
    ) -> None:
        def deliver() -> None:
            self.queue_effects(receiver, event(self.members[receiver].queue))

        self.send("queue", sender, receiver, deliver)

    def enqueue_all(self, sender: int, event: Callable[[QueueState], list[queue.Effect]]) -> None:
        for to in range(len(self.members)):
            self.enqueue(sender, to, event)

    def queue_effects(self, member: int, effects: list[queue.Effect]) -> None:
        target = self.members[member]
        for effect in effects:
            match effect:
                case queue.WriteBlock(_, head, body):
                    target.file.write_block(head, body)
                case queue.Retract(retracted):
                    target.file.write_retraction(retracted)
                case queue.Stop(places, made):
                    target.file.write_stop(places, made)
                    self.sync(member, lambda: target.queue.needs(target.reading.pass_over()))
                case queue.Sync(number):
                    self.sync(member, lambda n=number: target.queue.synced(n))  # type: ignore[misc]
                case queue.Move(bytes_max):
                    self.counts[Kind.MOVED_BLOCKS] += 1
                    target.queue.moving(target.reading.copy(bytes_max))
                    self.sync(member, lambda: target.queue.moved(target.reading.copied()))
                case queue.Grant(to, lane, size):
                    self.send(
                        "grant",
                        member,
                        to,
                        lambda t=to, n=lane, s=size: self.granted(member, t, n, s),  # type: ignore[misc]
                    )
                case queue.Flushed(to, number):
                    self.send(
                        "grant",
                        member,
                        to,
                        lambda t=to, n=number: self.flushed(member, t, n),  # type: ignore[misc]
                    )
        self._count_limits(target)

    def _count_limits(self, target: Member) -> None:
        over = {Kind.SOFT_LIMIT} if target.queue.reason() else set()
        if over and self.is_starving:
            over.add(Kind.STARVING)
        self.counts.update(over - target.seen)
        target.seen = over

    def sync(self, member: int, event: Callable[[], list[queue.Effect]]) -> None:
        """Tell the Queue once everything that is written by now is durable."""
        target = self.members[member]
        end = target.file.end

        def deliver() -> None:
            target.file.synced(end)
            self.queue_effects(member, event())

        self.send("sync", member, member, deliver)

    def needs(self, member: int) -> None:
        target = self.members[member]
        self.queue_effects(member, target.queue.needs(target.reading.account()))

    def granted(self, member: int, to: int, lane: int, size: int) -> None:
        self.members[to].slice.granted(member, lane, size)
        self.advance(to)

    def flushed(self, member: int, to: int, number: int) -> None:
        self.slice_effects(to, self.members[to].slice.flushed(member, number))
        self.advance(to)

    def fetch(self, member: int, fetch: slices.Fetch) -> None:
        if self.rng.random() < self.conditions.trouble:
            # It is not answered yet, or once more later.
            kind = self.rng.choice([Kind.LATE_FETCH, Kind.REPEATED_ANSWER])
            self.counts[kind] += 1
            self.send("fetch", member, fetch.place, lambda: self.fetch(member, fetch))
            if kind is Kind.LATE_FETCH:
                return
        state = self.members[member].slice
        if (journal := self.world.there().get(fetch.journal)) is None:
            state.journal_deleted(fetch.place)
            return
        frames = journal.fetch(fetch.offset, fetch.through, fetch.bytes_max)
        for id in state.unknown_journals(frames):
            hinted = self.world.there().get(JournalId(id))
            state.named(JournalId(id), hinted.name if hinted else None)
        state.fetched(fetch.number, fetch.place, frames, fetch.through)
        self.advance(member)

    # -- reading ---------------------------------------------------------------------------

    def read(self, checkpoint: Checkpoint) -> list[list[tuple[BindingTag, int]]]:
        """The documents that each member shows for the next checkpoint."""
        self.checkpoints_read += 1
        for member in self.members:
            member.reading.advance(self.checkpoints_read, checkpoint)
        return self.read_again()

    def read_again(self, *, ordered: bool = False) -> list[list[tuple[BindingTag, int]]]:
        """The same as `read` showed last; in order if that is asked for."""
        return [self._documents(member, ordered) for member in self.members]

    def _documents(self, member: Member, ordered: bool) -> list[tuple[BindingTag, int]]:
        found = []
        for message in member.reading.read(self.checkpoints_read, ordered=ordered):
            assert isinstance(message.control, messages.Documents)
            binding = message.control.binding
            batch: pa.RecordBatch = decode_block(message.bodies[0], self._schemas[binding])
            found += [(binding, number) for number in batch.column(0).to_pylist()]
        return found

    def release(self) -> None:
        """The checkpoints that were read are not read again."""
        if self.checkpoints_released < self.checkpoints_read:
            self.checkpoints_released = self.checkpoints_read
            for member in self.members:
                member.reading.release(self.checkpoints_read)

    def held_bytes(self) -> int:
        """What all Queues keep on disk."""
        return sum(member.queue.held_bytes for member in self.members)


def _decode(frame: Frame, source: Source) -> pa.RecordBatch:
    return frame.body
