"""One Session, its members and everything under way between them, in memory.

The states are the real ones. A run carries out what they decide, as the actors do, with one
difference: a message stays in its pipe until somebody delivers it. So a test chooses the order in
which things happen. Nothing here is random and nothing takes time. Each state validates itself
whenever it has decided something.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from headrace.frontier import BindingTag
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, Frame
from headrace.settings import ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.block import block_schema, decode_block
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.progress_delta import ProgressReport
from headrace.shuffle.queue import state as queue
from headrace.shuffle.queue.checkpoint_reads import CheckpointReads
from headrace.shuffle.queue.state import QueueState
from headrace.shuffle.routing import Range, Router
from headrace.shuffle.session import effects as sessions
from headrace.shuffle.session.pending_limit import PENDING_MAX
from headrace.shuffle.session.state import KEPT_ROWS_MAX, SessionState
from headrace.shuffle.slice import effects as slices
from headrace.shuffle.slice.state import Limits, SliceState, credit_that_fits
from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.memory_journals import MemoryJournals
from headrace.testing.shuffle.pipes import CONSUMER, SESSION, Party, Pipe, Role
from headrace.testing.shuffle.queue_file import QueueFile

AMPLE = 1 << 40
"""A limit in bytes that no test reaches."""
HORIZON = 1 << 60


class Synced(NamedTuple):
    """Everything that a Queue wrote below `end` is durable, as the effect asked for."""

    end: int
    effect: queue.WriteStop | queue.Sync | queue.CopyBlocks


class SpaceChanged(NamedTuple):
    """A reader changed what its Queue needs of the file, and the Queue decided what follows."""

    effects: Sequence[queue.Effect]


Message = (
    messages.ToSlice | slices.Effect | queue.Effect | sessions.AnswerPoll | Synced | SpaceChanged
)


class Conditions(NamedTuple):
    """The limits under which a Session runs."""

    soft_bytes: int = AMPLE
    hard_bytes: int = 2 * AMPLE
    """The limits of each Queue."""
    limits: Limits = Limits(credit_bytes=AMPLE)
    """The limits of each Slice. The credit becomes less if the Queue's limits leave less room."""
    kept_rows_max: int | None = None
    """The Session holds Slices once it keeps this many rows of reports; None: it never does."""
    pending_max: int = PENDING_MAX
    """The Session holds journals that are ahead once this many transactions are pending."""
    pending_hard_max: int = PENDING_MAX
    """The Session fails once more transactions are pending."""


CALM = Conditions()


@dataclass
class MemoryMember:
    slice: SliceState
    queue: QueueState
    file: QueueFile
    reading: CheckpointReads
    limits_reached: set[Kind] = field(default_factory=set)


class MemoryRun:
    """One Session from its opening to its end."""

    def __init__(
        self,
        journals: MemoryJournals,
        sources: Sources,
        ranges: list[Range],
        last_commit: Checkpoint,
        read_through: Checkpoint | None = None,
        *,
        is_cut: bool = False,
        conditions: Conditions = CALM,
        counts: Counter[Kind] | None = None,
        on_send: Callable[[Pipe, Message], None] | None = None,
    ) -> None:
        """`on_send` hears of every message when it is sent, and of every write and answer."""
        self.journals = journals
        self.sources = sources
        self.ranges = ranges
        self.router = Router(ranges)
        self.conditions = conditions
        self.counts: Counter[Kind] = Counter() if counts is None else counts
        self._on_send = on_send
        self.session = SessionState(
            sources,
            ranges,
            last_commit,
            read_through,
            HORIZON,
            is_cut=is_cut,
            is_limited=conditions.kept_rows_max is not None,
            kept_rows_max=conditions.kept_rows_max or KEPT_ROWS_MAX,
            pending_max=conditions.pending_max,
            pending_hard_max=conditions.pending_hard_max,
        )
        self._is_polling = False
        self.answer: Checkpoint | None = None
        """The answer to the last poll, until it is taken."""
        self.known_heads: dict[JournalId, Offset] = {}
        """The heads that the watch has reported so far."""
        self.checkpoints_read = 0
        self.checkpoints_released = 0
        self.pipes: dict[Pipe, deque[Message]] = defaultdict(deque)
        self._schemas = {source.tag: block_schema(source) for source in sources.all}
        limits = self._limits()
        self.members = [self._member(member, limits) for member in range(len(ranges))]

    def _limits(self) -> Limits:
        soft_bytes, hard_bytes, limits, *_ = self.conditions
        settings = ShuffleSettings(
            queue_soft_bytes=soft_bytes,
            queue_hard_bytes=hard_bytes,
            credit_bytes=limits.credit_bytes,
        )
        credit_bytes = credit_that_fits(settings, len(self.ranges), self.sources.lanes)
        return limits._replace(
            credit_bytes=credit_bytes, cycle_bytes=min(limits.cycle_bytes, credit_bytes)
        )

    def _member(self, number: int, limits: Limits) -> MemoryMember:
        soft_bytes, hard_bytes = self.conditions.soft_bytes, self.conditions.hard_bytes
        file = QueueFile()
        state = QueueState(len(self.ranges), self.sources.lanes, soft_bytes, hard_bytes)
        changed = Pipe(Party(Role.READER, number), Party(Role.QUEUE, number))
        return MemoryMember(
            SliceState(self.sources, self.ranges, _decode, limits, lambda *_: AMPLE),
            state,
            file,
            CheckpointReads(
                file,
                self.sources,
                state,
                threading.Lock(),
                lambda effects: self.send(changed, SpaceChanged(effects)),
            ),
        )

    # -- messages --------------------------------------------------------------------------

    def send(self, pipe: Pipe, message: Message) -> None:
        self._note(pipe, message)
        self.pipes[pipe].append(message)

    def _note(self, pipe: Pipe, message: Message) -> None:
        if self._on_send is not None:
            self._on_send(pipe, message)

    def busy_pipes(self) -> list[Pipe]:
        """The pipes that have messages under way."""
        return [pipe for pipe, waiting in self.pipes.items() if waiting]

    def deliver(self, pipe: Pipe) -> None:
        """Deliver the oldest message of a pipe."""
        message = self.pipes[pipe].popleft()
        sender, receiver = pipe.sender.number, pipe.receiver.number
        match pipe.receiver.role:
            case Role.SESSION:
                self._tell_session(sender, message)
            case Role.SLICE:
                self._tell_slice(receiver, sender, message)
            case Role.QUEUE:
                self._tell_queue(receiver, sender, message)
            case Role.JOURNAL:
                assert isinstance(message, slices.Fetch)
                self._fetch(sender, message)
            case Role.DISK:
                assert isinstance(message, Synced)
                self._sync(sender, message)

    # -- the Session -----------------------------------------------------------------------

    def watch(self, changes: Changes | None = None) -> bool:
        """Tell the Session what changed, or else everything that did; True if anything did."""
        if changes is None:
            changes = self.journals.changes_since(self.known_heads)
        if not changes:
            return False
        self._carry_out_session(self.session.journals_changed(changes))
        self._advance_session()
        return True

    def poll(
        self, documents_max: int | None = None, *, may_be_empty: bool = False
    ) -> Checkpoint | None:
        """Take the next checkpoint. If there is none yet, the poll stays open: ask again."""
        if not self._is_polling and self.answer is None:
            self._is_polling = True
            self.session.poll(documents_max, may_be_empty=may_be_empty)
            self._advance_session()
        answer, self.answer = self.answer, None
        return answer

    def give_up(self) -> None:
        """Give up the open poll, if there is one. The next poll takes what it was answered."""
        if self._is_polling:
            self._carry_out_session(self.session.give_up())
            self._advance_session()

    def _tell_session(self, member: int, message: Message) -> None:
        match message:
            case slices.Report(delta):
                self.reported(member, delta)
            case slices.Finish():
                self.counts[Kind.FINISHED] += 1
                self.session.finished(member)
                self._advance_session()

    def reported(self, member: int, delta: ProgressReport) -> None:
        self.session.progress(member, delta)
        self._advance_session()

    def _advance_session(self) -> None:
        self._carry_out_session(self.session.advance())
        self.session.validate()

    def _carry_out_session(self, effects: Sequence[sessions.Effect]) -> None:
        for effect in effects:
            match effect:
                case sessions.SendSlice(member, message):
                    self._send_slice(member, message)
                case sessions.SendAllSlices(message):
                    if isinstance(message, messages.Hold):
                        self.counts[Kind.HELD] += bool(message.lanes)
                        self.counts[Kind.AHEAD] += bool(message.behind)
                    for member in range(len(self.members)):
                        self._send_slice(member, message)
                case sessions.AnswerPoll(checkpoint):
                    self._note(Pipe(SESSION, CONSUMER), effect)
                    self._is_polling = False
                    self.answer = checkpoint.delta if checkpoint else None

    def _send_slice(self, member: int, message: messages.ToSlice) -> None:
        self.send(Pipe(SESSION, Party(Role.SLICE, member)), message)

    # -- Slices ----------------------------------------------------------------------------

    def advance(self, member: int) -> None:
        """Let a Slice do what it can: time may have passed."""
        state, now = self.members[member].slice, self.journals.now
        self._carry_out_slice(member, state.advance(now))
        state.validate()
        self.counts[Kind.NO_CREDIT] += state.lacks_credit(now)

    def _tell_slice(self, member: int, sender: int, message: Message) -> None:
        state = self.members[member].slice
        effects: list[slices.Effect] = []
        match message:
            case messages.Tags(journals):
                for id, tags in journals:
                    state.learned(JournalId(id), tags)
            case messages.StartRead(starts, is_cut):
                state.start(starts, is_cut=is_cut)
            case messages.StopRead(places, checkpoint):
                effects = state.stop(places, checkpoint)
            case messages.Heads(heads):
                for place, head in heads:
                    state.head(place, head)
            case messages.Starving(is_starving, checkpoint):
                effects = state.starve(is_starving, checkpoint)
            case messages.Hold(lanes, behind):
                state.hold(lanes, behind)
            case queue.SendGrant(_, lane, size):
                state.granted(sender, lane, size)
            case queue.SendFlushed(_, number):
                effects = state.flushed(sender, number)
        self._carry_out_slice(member, effects)
        self.advance(member)

    def _carry_out_slice(self, member: int, effects: Sequence[slices.Effect]) -> None:
        me = Party(Role.SLICE, member)
        for effect in effects:
            match effect:
                case slices.Fetch():
                    # Fetches of different places are answered in any order.
                    self.send(Pipe(me, Party(Role.JOURNAL, effect.place)), effect)
                case slices.SendBlock() | slices.SendEnds():
                    self.send(Pipe(me, Party(Role.QUEUE, effect.member)), effect)
                case slices.Report() | slices.Finish():
                    self.send(Pipe(me, SESSION), effect)
                case _:
                    for receiver in range(len(self.members)):
                        self.send(Pipe(me, Party(Role.QUEUE, receiver)), effect)

    def _fetch(self, member: int, fetch: slices.Fetch) -> None:
        state, there = self.members[member].slice, self.journals.there()
        if (journal := there.get(fetch.journal)) is None:
            state.journal_deleted(fetch.place)
            return
        frames = journal.fetch(fetch.offset, fetch.through, fetch.bytes_max)
        for id in state.unknown_journals(frames):
            hinted = there.get(JournalId(id))
            state.named(JournalId(id), hinted.name if hinted else None)
        state.fetched(fetch.number, fetch.place, frames, fetch.through)
        self.advance(member)

    # -- Queues ----------------------------------------------------------------------------

    def _tell_queue(self, member: int, sender: int, message: Message) -> None:
        state = self.members[member].queue
        effects: list[queue.Effect] = []
        match message:
            case slices.SendBlock(_, head, body):
                effects = state.append(sender, head, body)
            case slices.SendEnds(_, lane, ends):
                effects = state.end(sender, lane, ends)
            case slices.SendBounds(bounds):
                effects = state.bound(sender, bounds)
            case slices.SendFlush(number, lane):
                effects = state.flush(sender, lane, number)
            case slices.SendStop(lane, places, checkpoint):
                self.counts[Kind.STOPPED] += 1
                effects = state.stop(sender, lane, places, checkpoint)
            case slices.SendStarving(is_starving, checkpoint):
                effects = state.starve(is_starving, checkpoint)
            case SpaceChanged(decided):
                effects = list(decided)
        self._carry_out_queue(member, effects)

    def _carry_out_queue(self, member: int, effects: Sequence[queue.Effect]) -> None:
        target = self.members[member]
        me = Party(Role.QUEUE, member)
        disk = Pipe(me, Party(Role.DISK, member))
        for effect in effects:
            match effect:
                case queue.SendGrant(to) | queue.SendFlushed(to):
                    self.send(Pipe(me, Party(Role.SLICE, to)), effect)
                case queue.WriteBlock(_, head, body):
                    self._note(disk, effect)
                    target.file.write_block(head, body)
                case queue.WriteRetraction(retracted):
                    self._note(disk, effect)
                    target.file.write_retraction(retracted)
                case queue.WriteStop(places, checkpoint):
                    self._note(disk, effect)
                    target.file.write_stop(places, checkpoint)
                    self.send(disk, Synced(target.file.end, effect))
                case queue.CopyBlocks(locations):
                    self._note(disk, effect)
                    self.counts[Kind.MOVED_BLOCKS] += 1
                    copies = {
                        position: target.file.copy(location)
                        for position, location in locations.items()
                    }
                    target.queue.copies_written(copies)
                    self.send(disk, Synced(target.file.end, effect))
                case queue.GiveBack(below):
                    target.file.release_before(below)
                case queue.Sync():
                    self.send(disk, Synced(target.file.end, effect))
        target.queue.validate()
        self._count_limits(target)

    def _count_limits(self, target: MemoryMember) -> None:
        reached = {Kind.SOFT_LIMIT} if target.queue.reason() else set()
        if reached and self.session.is_starving:
            reached.add(Kind.STARVING)
        self.counts.update(reached - target.limits_reached)
        target.limits_reached = reached

    def _sync(self, member: int, synced: Synced) -> None:
        target = self.members[member]
        target.file.synced(synced.end)
        match synced.effect:
            case queue.WriteStop():
                effects = target.reading.scan()
            case queue.Sync(number):
                effects = target.queue.synced(number)
            case queue.CopyBlocks():
                effects = target.queue.copies_durable()
        self._carry_out_queue(member, effects)

    # -- reading ---------------------------------------------------------------------------

    def read(self, checkpoint: Checkpoint) -> list[list[tuple[BindingTag, int]]]:
        """The documents that each member shows for the next checkpoint, by binding and number."""
        self.checkpoints_read += 1
        for member in self.members:
            member.reading.advance(self.checkpoints_read, checkpoint)
        return self.read_again()

    def read_again(self, *, ordered: bool = False) -> list[list[tuple[BindingTag, int]]]:
        """The same as `read` showed last; in order if that is asked for."""
        return [self._documents(member, ordered) for member in self.members]

    def _documents(self, member: MemoryMember, ordered: bool) -> list[tuple[BindingTag, int]]:
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
        return sum(member.queue.space.held_bytes for member in self.members)


def _decode(frame: Frame, source: Source) -> pa.RecordBatch:
    return frame.body
