"""Runs one Slice. One thread decides; fetches, Queues and the Session put what they have into its
inbox."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from headrace.clock import Clock, from_unix_ns, to_unix_ns
from headrace.errors import (
    REPORT,
    HeadraceError,
    NotFoundError,
    PeerLostError,
    ProtocolError,
    bug,
)
from headrace.ids import JournalId
from headrace.journal.contract import Frame
from headrace.journal.wire.failover import FailoverReads
from headrace.settings import ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import Sources
from headrace.shuffle.peer import Peer
from headrace.shuffle.routing import Range
from headrace.shuffle.slice import effects
from headrace.shuffle.slice.decoder import Decoder
from headrace.shuffle.slice.state import Limits, SliceState
from headrace.transport import Channel

_LAGGING_SHOWN = 100
_OPEN_SHOWN = 100
_SLEEP_S_MAX = 3600.0
"""The longest wait. Documents may be due later than any timer allows."""


class _FromSession(NamedTuple):
    control: Any


class _FromQueue(NamedTuple):
    member: int
    control: Any


class _Fetched(NamedTuple):
    fetch: effects.Fetch
    frames: Future[list[Frame]]


class _Failed(NamedTuple):
    error: HeadraceError


class SliceActor:
    def __init__(
        self,
        sources: Sources,
        ranges: Sequence[Range],
        journals: FailoverReads,
        session: Channel[Any],
        queues: Sequence[Peer],
        queue_status: Callable[[], tuple[int, str]],
        settings: ShuffleSettings,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._journals = journals
        self._session = session
        self._queues = queues
        self._queue_status = queue_status
        self._now_ns = now_ns
        self._decoder = Decoder(sources, journals.collections)
        limits = Limits.of(settings, len(ranges), sources.lanes)
        self._state = SliceState(sources, ranges, self._decoder, limits, journals.at_most_bytes)
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._listeners = [
            threading.Thread(
                target=self._listen_to_queue,
                args=(member,),
                name="headrace-slice-queue",
                daemon=True,
            )
            for member in range(len(queues))
        ]

    def run(self) -> None:
        """Run until the Session leaves. Raises the error that ends the Slice otherwise."""
        for listener in self._listeners:
            listener.start()
        threading.Thread(
            target=self._listen_to_session, name="headrace-slice-session", daemon=True
        ).start()
        while True:
            for event in self._wait():
                if event is None:
                    return
                self._handle(event)
            self._carry_out(self._state.advance(self._now()))

    # -- events ----------------------------------------------------------------------------

    def _listen_to_session(self) -> None:
        """Pass on what the Session sends. The Slice ends when the Session leaves."""
        try:
            while (message := self._session.receive()) is not None:
                self._inbox.put(_FromSession(message.control))
            self._inbox.put(None)
        except HeadraceError as error:
            self._inbox.put(_Failed(error))
        except Exception as error:  # noqa: BLE001  it ends the Slice
            self._inbox.put(_Failed(bug("the Session", error)))

    def _listen_to_queue(self, member: int) -> None:
        try:
            while (message := self._queues[member].receive()) is not None:
                self._inbox.put(_FromQueue(member, message.control))
            error: HeadraceError = PeerLostError(f"the Queue of member {member} closed", do="retry")
        except HeadraceError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001  it ends the Slice
            error = bug(f"the Queue of member {member}", raised)
        self._inbox.put(_Failed(error))

    def _wait(self) -> list[Any]:
        """Return the events in the inbox. Wait for one, or until the state has something to do."""
        events = []
        try:
            events.append(self._inbox.get(timeout=self._wait_s()))
            while True:
                events.append(self._inbox.get_nowait())
        except Empty:
            return events

    def _wait_s(self) -> float | None:
        wake_at = self._state.wake_at()
        if wake_at is None:
            return None
        sleep_s = (to_unix_ns(Clock(wake_at)) - self._now_ns()) / 1e9
        return min(max(0.0, sleep_s), _SLEEP_S_MAX)

    def _now(self) -> Clock:
        return from_unix_ns(self._now_ns())

    def _handle(self, event: Any) -> None:
        match event:
            case _FromSession(control):
                self._handle_message(control)
            case _FromQueue(member, messages.Grant(lane, size)):
                self._state.granted(member, lane, size)
            case _FromQueue(member, messages.Flushed(number)):
                self._carry_out(self._state.flushed(member, number))
            case _Fetched(fetch, frames):
                self._handle_frames(fetch, frames)
            case _Failed(error):
                raise error
            case _FromQueue(member, control):
                raise ProtocolError(
                    f"the Queue of member {member} sent {control}, which is no answer",
                    do=REPORT,
                )
            case _:
                raise ProtocolError(f"a Slice got the unknown event {event!r}", do=REPORT)

    def _handle_message(self, message: Any) -> None:
        match message:
            case messages.Tags(journals):
                for id, tags in journals:
                    self._state.learned(JournalId(id), tags)
            case messages.StartRead(reads, is_cut):
                self._decoder.journals_started()
                self._state.start(reads, is_cut=is_cut)
            case messages.StopRead(places, checkpoint):
                self._carry_out(self._state.stop(places, checkpoint))
            case messages.Heads(heads):
                for place, head in heads:
                    self._state.head(place, head)
            case messages.Starving(starving, checkpoint):
                self._carry_out(self._state.starve(starving, checkpoint))
            case messages.Hold(lanes, behind):
                self._state.hold(lanes, behind)
            case messages.AskStatus(number):
                self._session.send(self._status(number))
            case _:
                raise ProtocolError(
                    f"a Slice got {type(message).__name__} after it was opened",
                    do=REPORT,
                )

    def _handle_frames(self, fetch: effects.Fetch, fetched: Future[list[Frame]]) -> None:
        try:
            frames = fetched.result()
        except NotFoundError:
            self._state.journal_deleted(fetch.place)
            return
        if unknown := sorted(self._state.unknown_journals(frames)):
            ids = [JournalId(id) for id in unknown]
            for id, name in zip(ids, self._journals.journal_names(ids), strict=True):
                self._state.named(id, name)
        self._state.fetched(fetch.number, fetch.place, frames, fetch.through)

    # -- effects ---------------------------------------------------------------------------

    def _carry_out(self, decisions: list[effects.Effect]) -> None:
        for effect in decisions:
            match effect:
                case effects.Fetch():
                    self._fetch(effect)
                case effects.SendBlock(member, head, body):
                    self._queues[member].send(messages.Append(head), (body,))
                case effects.SendEnds(member, lane, ends):
                    self._queues[member].send(messages.Acks(lane, ends))
                case effects.SendBounds(bounds):
                    self._tell_queues(messages.Bounds(bounds))
                case effects.SendFlush(number, lane):
                    self._tell_queues(messages.Flush(number, lane))
                case effects.SendStop(lane, places, checkpoint):
                    self._tell_queues(messages.Stopped(lane, places, checkpoint))
                case effects.SendStarving(starving, checkpoint):
                    self._tell_queues(messages.Starving(starving, checkpoint))
                case effects.Report(delta):
                    self._session.send(messages.ProgressDelta(delta.documents), delta.bodies())
                case effects.Finish():
                    self._session.send(messages.Finished())

    def _fetch(self, fetch: effects.Fetch) -> None:
        frames = self._journals.fetch(fetch.journal, fetch.offset, fetch.through, fetch.bytes_max)
        frames.add_done_callback(lambda done: self._inbox.put(_Fetched(fetch, done)))

    def _status(self, number: int) -> messages.SliceStatus:
        reads = self._state.reads.values()
        lagging = sorted(
            (read for read in reads if read.taken < read.head),
            key=lambda read: read.taken - read.head,
        )
        spans = (
            (read.place, producer)
            for read in reads
            for producer, state in read.producers.items()
            if state.is_open
        )
        return messages.SliceStatus(
            number,
            dict(Counter(read.phase.value for read in reads)),
            [
                messages.Lagging(read.place, read.phase.value, read.taken, read.head)
                for read in lagging[:_LAGGING_SHOWN]
            ],
            *self._queue_status(),
            list(islice(spans, _OPEN_SHOWN)),
            self._state.is_settled,
        )

    def _tell_queues(self, control: object) -> None:
        for queue in self._queues:
            queue.send(control)
