"""Messages between a Session, its Slices and its Queues in words, for scripts and replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from headrace.frontier import TAG_MAX, BindingTag, Frontier
from headrace.ids import JournalId
from headrace.shuffle import messages
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.block import BlockHead, SpanEnd
from headrace.shuffle.checkpoint import Checkpoint, NextCheckpoint
from headrace.shuffle.progress_delta import ProgressReport
from headrace.shuffle.queue import state as queue
from headrace.shuffle.session.effects import AnswerPoll
from headrace.shuffle.slice import effects as slices
from headrace.testing.shuffle.memory_run import MemoryRun, Message, SpaceChanged, Synced
from headrace.testing.shuffle.pipes import Party, Pipe, Role


class Topic(StrEnum):
    """What a message is about, so that a script can leave out what it does not show."""

    CHECKPOINTS = "checkpoints"
    TAGS = "tags"
    READS = "reads"
    HEADS = "heads"
    FETCHES = "fetches"
    BLOCKS = "blocks"
    ACKS = "acks"
    BOUNDS = "bounds"
    FLUSHES = "flushes"
    CREDIT = "credit"
    PROGRESS = "progress"
    HOLDS = "holds"
    STARVING = "starving"
    WRITES = "writes"
    SYNCS = "syncs"
    NEEDS = "needs"


_TOPICS: dict[type, Topic] = {
    AnswerPoll: Topic.CHECKPOINTS,
    messages.Tags: Topic.TAGS,
    messages.StartRead: Topic.READS,
    messages.StopRead: Topic.READS,
    messages.Heads: Topic.HEADS,
    messages.Hold: Topic.HOLDS,
    messages.Starving: Topic.STARVING,
    slices.Fetch: Topic.FETCHES,
    slices.SendBlock: Topic.BLOCKS,
    slices.SendEnds: Topic.ACKS,
    slices.SendBounds: Topic.BOUNDS,
    slices.SendFlush: Topic.FLUSHES,
    slices.SendStop: Topic.READS,
    slices.SendStarving: Topic.STARVING,
    slices.Report: Topic.PROGRESS,
    slices.Finish: Topic.PROGRESS,
    queue.SendGrant: Topic.CREDIT,
    queue.SendFlushed: Topic.FLUSHES,
    queue.WriteBlock: Topic.WRITES,
    queue.WriteRetraction: Topic.WRITES,
    queue.WriteStop: Topic.WRITES,
    queue.CopyBlocks: Topic.WRITES,
    queue.GiveBack: Topic.WRITES,
    Synced: Topic.SYNCS,
    SpaceChanged: Topic.NEEDS,
}


def topic_of(message: Message) -> Topic:
    return _TOPICS[type(message)]


class Trace:
    """Describes the messages of one run."""

    def __init__(self, run: MemoryRun, producer_name: Callable[[int], str]) -> None:
        self._run = run
        self._producer = producer_name
        self._places: dict[int, str] = {}
        """The names of places; they outlive their journals."""

    # -- names -----------------------------------------------------------------------------

    def pipe(self, pipe: Pipe) -> str:
        return f"{self.party(pipe.sender)} -> {self.party(pipe.receiver)}"

    def party(self, party: Party) -> str:
        is_journal = party.role is Role.JOURNAL
        return f"journal {self.place(party.number)}" if is_journal else str(party)

    def place(self, place: int) -> str:
        if place not in self._places:
            name = self._run.session.assignment.journal_name(place)
            source = self._run.sources.by_tag.get(BindingTag(place & TAG_MAX))
            is_other = source is not None and source.name != source.collection
            self._places[place] = f"{name} as {source.name}" if source and is_other else name
        return self._places[place]

    def _all_places(self, places: Iterable[int]) -> str:
        return ", ".join(self.place(place) for place in places)

    def _journal(self, id: int) -> str:
        return self._run.journals.journals[JournalId(id)].name

    # -- messages --------------------------------------------------------------------------

    def message(self, message: Message) -> list[str]:
        """A line, and those that say more."""
        match message:
            case slices.Report(delta):
                return ["progress", *self._delta(delta)]
            case AnswerPoll(None):
                return ["no checkpoint"]
            case AnswerPoll(NextCheckpoint(number, delta)):
                return [f"checkpoint {number}", *self._checkpoint(delta)]
        return [self._to_queue(message)]

    def _to_queue(self, message: Message) -> str:
        match message:
            case slices.SendBlock(_, head):
                return f"block, {self._block(head)}"
            case slices.SendEnds(_, _, ends):
                return "ACKs, " + "; ".join(map(self._end, ends))
            case slices.SendBounds(bounds):
                return "bounds, " + ", ".join(map(_bound, range(len(bounds)), bounds))
            case slices.SendFlush(number, lane):
                return f"Flush {number} of lane {lane}"
            case slices.SendStop(_, places, checkpoint) | messages.StopRead(places, checkpoint):
                shown = f"checkpoints after {checkpoint} show nothing of it"
                return f"stop read, {self._all_places(places)}: {shown}"
            case slices.SendStarving(starving, checkpoint) | messages.Starving(
                starving, checkpoint
            ):
                state = "starves" if starving else "does not starve"
                return f"the consumer {state} after checkpoint {checkpoint}"
            case slices.Finish():
                return "finished the cut"
            case slices.Fetch():
                return f"fetch {message.offset} to {message.through}"
            case queue.SendGrant(_, lane):
                return f"credit for lane {lane}"
            case queue.SendFlushed(_, number):
                return f"Flushed {number}"
        return self._to_slice(message)

    def _to_slice(self, message: Message) -> str:
        match message:
            case messages.Tags(journals):
                names = self._run.sources.by_tag
                readers = (
                    f"{self._journal(id)} for {', '.join(names[BindingTag(t)].name for t in tags)}"
                    for id, tags in journals
                )
                return "tags, " + "; ".join(readers)
            case messages.StartRead(starts, is_cut):
                reads = "; ".join(map(self._start, starts)) or "nothing"
                return f"start read{' of a cut' if is_cut else ''}, {reads}"
            case messages.Heads(heads):
                return "heads, " + ", ".join(f"{self.place(p)} at {head}" for p, head in heads)
            case messages.Hold(lanes, behind):
                held = [f"all of lane {lane}" for lane in lanes]
                for lane, places in behind.items():
                    held.append(f"lane {lane} but for {self._all_places(places)}")
                return f"hold {'; '.join(held) or 'nothing'}"
        return self._on_disk(message)

    def _on_disk(self, message: Message) -> str:
        match message:
            case queue.WriteBlock(_, head):
                return f"write block, {self._block(head)}"
            case queue.WriteRetraction(retracted):
                return "write retraction, " + "; ".join(map(self._end, retracted))
            case queue.WriteStop(places):
                return f"write stop, {self._all_places(places)}"
            case queue.CopyBlocks():
                return "copy open blocks to the end"
            case queue.GiveBack(below):
                return f"give back what lies below {below}"
            case Synced(_, queue.Sync()):
                return "sync, then answer Flushes"
            case Synced(_, queue.WriteStop()):
                return "sync, then let go of what was stopped"
            case Synced():
                return "sync, then let go of what was copied"
            case SpaceChanged():
                return "space of the file changed"
        raise AssertionError(f"no words for {message!r}")

    def _block(self, head: BlockHead) -> str:
        pairs = head.pair_rows().tolist()
        return "; ".join(
            f"{self._producer(producer)} {_clocks(first, last, rows)} of {self.place(place)}"
            for place, producer, first, last, rows in pairs
        )

    def _end(self, end: SpanEnd) -> str:
        who, where = self._producer(end.producer), self.place(end.place)
        if end.committed:
            return f"{who} commits {where} through {end.last_commit}"
        return f"{who} rolls back {where} {_clocks(end.first, end.last)}"

    def _start(self, start: messages.ReadStart) -> str:
        known = [
            f", {self._producer(producer)} committed through {clock}" if clock else ""
            for producer, clock in start.producers
        ]
        return f"{self.place(start.place)} from {start.offset} to {start.head}{''.join(known)}"

    def _delta(self, delta: ProgressReport) -> Iterator[str]:
        for place, through in delta.journals.tolist():
            yield f"{self.place(place)} through {through}"
        for place, producer, commit, span, *_ in delta.producers.tolist():
            yield f"{self._progress(producer, commit, span)} in {self.place(place)}"
        for row in delta.parts.tolist():
            _, id_producer, id_clock, journal, _, producer, clock, offset = row
            yield (
                f"hint, {self._producer(id_producer)}@{id_clock} has {self._producer(producer)}'s"
                f" ACK {clock} at {offset} of {self._journal(journal)}"
            )

    # -- checkpoints -----------------------------------------------------------------------

    def _checkpoint(self, delta: Checkpoint) -> Iterator[str]:
        """A line for each place that moved, and one for each journal that is gone."""
        yield from self.frontier(delta.frontier)
        for tag in sorted(delta.gone):
            yield f"journal tag {tag} is gone"

    def frontier(self, frontier: Frontier) -> Iterator[str]:
        rows = frontier.producers.tolist()
        for place, through in frontier.journals.tolist():
            producers = [
                self._progress(producer, commit, span)
                for row_place, producer, commit, span in rows
                if row_place == place
            ]
            yield f"{self.place(place)} through {through}: {', '.join(producers) or 'no producers'}"

    def _progress(self, producer: int, commit: int, span: int) -> str:
        states = [f"committed through {commit}"] if commit else []
        states += [f"open from {span}"] if span >= 0 else []
        return f"{self._producer(producer)} {' and '.join(states) or 'closed'}"


def _clocks(first: int, last: int, rows: int | None = None) -> str:
    """A range of clocks; `rows` of them, if that is not all."""
    clocks = str(first) if first == last else f"{first}..{last}"
    is_part = rows is not None and rows < last - first + 1
    return f"{clocks} ({rows} documents)" if is_part else clocks


def _bound(lane: int, bound: int) -> str:
    return f"lane {lane} " + ("has nothing due" if bound == INFINITE else f"at {bound}")
