"""One Session, its members and everything under way between them, in memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from headrace.frontier import BindingTag, Frontier
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Frame
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.block import BlockHead, block_schema, decode_block
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.delta import Delta
from headrace.shuffle.queue import state as queue
from headrace.shuffle.queue.state import QueueState, Retract, Stop
from headrace.shuffle.reader import (
    BlockEntry,
    BlockLoader,
    Entry,
    QueueReader,
    RetractionEntry,
    Shown,
    StopEntry,
)
from headrace.shuffle.routing import Range, Router
from headrace.shuffle.session.state import KEPT_ROWS_MAX, SessionState
from headrace.shuffle.slice import state as slices
from headrace.shuffle.slice.state import Limits, SliceState
from headrace.testing.shuffle.world import World

_MUCH = 1 << 40
HORIZON = 1 << 60


@dataclass
class Member:
    slice: SliceState
    queue: QueueState
    reader: QueueReader = field(default_factory=QueueReader)
    log: list[tuple[BlockHead, Any] | Retract | Stop] = field(default_factory=list)
    written: int = 0
    """How many of the entries in the log are synced."""
    scanned: int = 0
    reads_cut: bool = False
    finished: bool = False


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
        kept_rows_max: int | None = None,
    ) -> None:
        """With `kept_rows_max` Slices wait while so many rows of reports do."""
        self.world = world
        self.sources = sources
        self.rng = rng
        self.say = say
        self.ranges = ranges
        self.router = Router(ranges)
        count = len(ranges)
        limits = Limits(
            credit_bytes=self.rng.choice([1, 4000, 1 << 20]),
            fetch_bytes=self.rng.choice([1, 30, 1 << 20]),
            ahead_bytes=self.rng.choice([1, 100, 1 << 20]),
            block_documents=self.rng.choice([1, 3, 100]),
            cycle_documents=self.rng.choice([1, 4, 100]),
            report_documents=self.rng.choice([2, 1 << 62, 1 << 62]),
            patience=self.rng.choice([0, 50]),
        )
        self.session = SessionState(
            sources,
            ranges,
            last_commit,
            read_through,
            HORIZON,
            is_cut=is_cut,
            is_limited=kept_rows_max is not None,
            kept_rows_max=kept_rows_max or KEPT_ROWS_MAX,
        )
        self.is_held = False
        self.members = [
            Member(
                SliceState(sources, ranges, _decode, limits, lambda *_: _MUCH),
                QueueState(count, sources.lanes, 1 << 40, 1 << 41),
            )
            for _ in ranges
        ]
        self.known: dict[JournalId, Offset] = {}
        self.checkpoints_read = 0
        self.pipes: dict[tuple[str, int, int], deque[Callable[[], None]]] = defaultdict(deque)
        """Messages under way, by kind, sender and receiver; each pipe keeps its order."""

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

    def watch(self) -> bool:
        changes = self.world.changes_since(self.known)
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
        for start in told.start.get(member, []):
            state.start(start)
        for place in told.stop.get(member, []):
            state.stop(place)
            lane = self.sources.of_place(place).lane
            for to in range(len(self.members)):
                self.enqueue(
                    member,
                    to,
                    lambda q, n=lane, p=place: q.stop(member, n, [p], told.made),  # type: ignore[misc]
                )
        for place, head in told.heads.get(member, []):
            state.head(place, head)
        self.members[member].reads_cut = told.last
        self.advance(member)

    def advance(self, member: int) -> None:
        target = self.members[member]
        self.slice_effects(member, target.slice.advance(self.world.now))
        if target.reads_cut and not target.finished and target.slice.is_settled:
            target.finished = True
            self.send("report", member, -1, lambda: self.session.finished(member))

    def slice_effects(self, member: int, effects: list[slices.Effect]) -> None:
        everybody = range(len(self.members))
        for effect in effects:
            match effect:
                case slices.Fetch():
                    self.send("fetch", member, member, lambda e=effect: self.fetch(member, e))  # type: ignore[misc]
                case slices.SendBlock(to, head, body):
                    self.enqueue(member, to, lambda q, h=head, b=body: q.append(member, h, b))  # type: ignore[misc]
                case slices.SendEnds(to, lane, ends):
                    self.enqueue(member, to, lambda q, n=lane, e=ends: q.end(member, n, e))  # type: ignore[misc]
                case slices.SendBounds(bounds):
                    for to in everybody:
                        self.enqueue(member, to, lambda q, b=bounds: q.bound(member, b))  # type: ignore[misc]
                case slices.SendFlush(number, lane):
                    for to in everybody:
                        self.enqueue(member, to, lambda q, n=number, w=lane: q.flush(member, w, n))  # type: ignore[misc]
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
        if self.is_held != self.session.is_full:
            self.is_held = self.session.is_full
            for member in range(len(self.members)):
                self.send("session", -1, member, lambda m=member, h=self.is_held: self.held(m, h))  # type: ignore[misc]

    def held(self, member: int, held: bool) -> None:
        self.members[member].slice.hold(held)
        self.advance(member)

    def enqueue(
        self, sender: int, receiver: int, event: Callable[[QueueState], list[queue.Effect]]
    ) -> None:
        def deliver() -> None:
            self.queue_effects(receiver, event(self.members[receiver].queue))

        self.send("queue", sender, receiver, deliver)

    def queue_effects(self, member: int, effects: list[queue.Effect]) -> None:
        target = self.members[member]
        for effect in effects:
            match effect:
                case queue.WriteBlock(_, head, body):
                    target.log.append((head, body))
                case queue.Retract():
                    target.log.append(effect)
                case queue.Stop():
                    target.log.append(effect)
                    end = len(target.log)
                    self.send("sync", member, member, lambda e=end: self.stopped(member, e))  # type: ignore[misc]
                case queue.Sync(number):
                    end = len(target.log)
                    self.send(
                        "sync",
                        member,
                        member,
                        lambda n=number, e=end: self.synced(member, n, e),  # type: ignore[misc]
                    )
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

    def synced(self, member: int, number: int, end: int) -> None:
        target = self.members[member]
        target.written = max(target.written, end)
        self.queue_effects(member, target.queue.synced(number))

    def stopped(self, member: int, end: int) -> None:
        target = self.members[member]
        target.written = max(target.written, end)
        self.pass_over(target)

    def granted(self, member: int, to: int, lane: int, size: int) -> None:
        self.members[to].slice.granted(member, lane, size)
        self.advance(to)

    def flushed(self, member: int, to: int, number: int) -> None:
        self.slice_effects(to, self.members[to].slice.flushed(member, number))
        self.advance(to)

    def fetch(self, member: int, fetch: slices.Fetch) -> None:
        state = self.members[member].slice
        if (journal := self.world.there().get(fetch.journal)) is None:
            return  # the Session will say so
        frames = journal.fetch(fetch.offset, fetch.through, fetch.bytes_max)
        for id in state.unknown_journals(frames):
            hinted = self.world.there().get(JournalId(id))
            found = self.sources.of_journal(hinted.name) if hinted else []
            state.learned(JournalId(id), [source.tag for source in found])
        state.fetched(fetch.number, fetch.place, frames, fetch.through)
        self.advance(member)

    # -- reading ---------------------------------------------------------------------------

    def read(self, checkpoint: Checkpoint) -> list[list[tuple[BindingTag, int]]]:
        """The documents that each member shows for a checkpoint."""
        self.checkpoints_read += 1
        return [self.read_member(member, checkpoint) for member in self.members]

    def read_member(self, member: Member, checkpoint: Checkpoint) -> list[tuple[BindingTag, int]]:
        shown = self.pass_over(member, checkpoint)
        schemas = {source.tag: block_schema(source) for source in self.sources.all}
        loader = BlockLoader(lambda position: member.log[position][1], schemas)  # type: ignore[misc]
        return [
            (each.head.binding, number)
            for each in shown
            for _, body in loader.encoded(each)
            for number in decode_block(body, schemas[each.head.binding]).column(0).to_pylist()
        ]

    def pass_over(self, member: Member, checkpoint: Checkpoint | None = None) -> list[Shown]:
        """What is synced of a Queue, to a checkpoint or after the one that was read last."""
        entries: list[Entry] = []
        for position in range(member.scanned, member.written):
            item = member.log[position]
            if isinstance(item, Retract):
                entries.append(RetractionEntry(position, item.retracted))
            elif isinstance(item, Stop):
                entries.append(StopEntry(position, *item))
            else:
                entries.append(BlockEntry(position, item[0]))
        member.scanned = member.written
        frontier = checkpoint.frontier if checkpoint else Frontier.empty()
        return member.reader.advance(entries, frontier, self.checkpoints_read).shown

    def open_blocks(self) -> int:
        """How many are kept for what may yet become visible."""
        return sum(len(member.reader.open) for member in self.members)


def _decode(frame: Frame, source: Source) -> pa.RecordBatch:
    return frame.body
