"""Runs one Queue: its thread carries out what the state decides, the log's thread writes.

Readers read what is durable in threads of their own. They change the state's space of the file,
and hand what the state then decides to the thread of the Queue.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec

from headrace.errors import REPORT, HeadraceError, PeerLostError, ProtocolError
from headrace.settings import LogSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import Sources
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.queue import state
from headrace.shuffle.queue.checkpoint_reads import CheckpointReads
from headrace.shuffle.queue.state import QueueState
from headrace.shuffle.queue.store import QueueStore
from headrace.transport import ChannelEnd, Message


class _Received(NamedTuple):
    """A message of a Slice."""

    slice: int
    control: Any
    bodies: tuple[Any, ...]


class _Synced(NamedTuple):
    number: int


class _Decided(NamedTuple):
    """What the state decided after a reader changed the space of the file."""

    effects: list[state.Effect]


class _StopDurable(NamedTuple):
    pass


class _CopiesDurable(NamedTuple):
    pass


class _Failed(NamedTuple):
    error: HeadraceError


class QueueActor:
    """Runs one member's Queue in one Session."""

    def __init__(
        self, session: str, root: Path, opening: messages.OpenQueue, settings: LogSettings
    ) -> None:
        self.session = session
        self.member = opening.member
        sources = Sources(opening.sources)
        self._state = QueueState(
            opening.slices,
            sources.lanes,
            opening.settings.queue_soft_bytes,
            opening.settings.queue_hard_bytes,
        )
        sync = opening.settings.sync
        self._store = QueueStore(root, msgspec.structs.replace(settings, sync=sync))
        self._channels: dict[int, ChannelEnd[Any]] = {}
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._deciding = threading.Lock()
        """Whoever uses the state holds this lock. Only the thread of this actor carries out."""
        self._error: HeadraceError | None = None
        self._reading = CheckpointReads(
            self._store,
            sources,
            self._state,
            self._deciding,
            lambda effects: self._inbox.put(_Decided(effects)),
        )
        self._thread = threading.Thread(target=self._run, name="headrace-queue", daemon=True)
        self._thread.start()

    # -- Slices ----------------------------------------------------------------------------

    def serve(self, slice: int, channel: ChannelEnd[Any]) -> None:
        """Receive what one Slice sends, until it leaves."""
        if slice in self._channels:
            raise ProtocolError(f"Slice {slice} opened this Queue twice", do=REPORT)
        self._channels[slice] = channel
        channel.send(messages.QueueOpened(self.session))
        try:
            while (message := channel.receive()) is not None:
                self._inbox.put(_Received(slice, message.control, message.bodies))
        except HeadraceError as error:
            self.fail(error)
            raise
        finally:
            if self._error:
                channel.fail(self._error)

    def fail(self, error: HeadraceError) -> None:
        """End the Queue and tell every Slice why."""
        self._inbox.put(_Failed(error))

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()
        self._give_up(PeerLostError("the Session has ended", do="open another Session"))
        self._reading.close()

    def _run(self) -> None:
        try:
            while (event := self._inbox.get()) is not None:
                for effect in self._decide(event):
                    self._carry_out(effect)
        except HeadraceError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001  every Slice is told, as of any failure
            self._give_up(HeadraceError(f"the Queue failed: {error!r}", do=REPORT))

    def _decide(self, event: Any) -> list[state.Effect]:
        match event:
            case _Received(slice, control, bodies):
                with self._deciding:
                    return self._receive(slice, control, bodies)
            case _Synced(number):
                with self._deciding:
                    return self._state.synced(number)
            case _Decided(effects):
                return effects
            case _StopDurable():
                return self._reading.scan()
            case _CopiesDurable():
                with self._deciding:
                    return self._state.copies_durable()
            case _Failed(error):
                raise error
        raise AssertionError(f"no such event: {event!r}")

    def _receive(self, slice: int, control: Any, bodies: tuple[Any, ...]) -> list[state.Effect]:
        match control, bodies:
            case messages.Append(head), (body,):
                return self._state.append(slice, head, memoryview(body))
            case messages.Acks(lane, ends), _:
                return self._state.end(slice, lane, ends)
            case messages.Stopped(lane, places, checkpoint), _:
                return self._state.stop(slice, lane, places, checkpoint)
            case messages.Bounds(bounds), _:
                return self._state.bound(slice, bounds)
            case messages.Flush(number, lane), _:
                return self._state.flush(slice, lane, number)
            case messages.Starving(starving, checkpoint), _:
                return self._state.starve(starving, checkpoint)
        raise ProtocolError(
            f"Slice {slice} sent a Queue {type(control).__name__} with {len(bodies)} bodies",
            do=REPORT,
        )

    def _carry_out(self, effect: state.Effect) -> None:
        match effect:
            case state.WriteBlock(_, head, body):
                self._store.write_block(head, body)
            case state.WriteRetraction(retracted):
                self._store.write_retraction(retracted)
            case state.WriteStop(places, checkpoint):
                self._store.write_stop(places, checkpoint)
                self._sync(_StopDurable())
            case state.Sync(number):
                self._sync(_Synced(number))
            case state.SendGrant(slice, lane, size):
                self._channels[slice].send(messages.Grant(lane, size))
            case state.SendFlushed(slice, number):
                self._channels[slice].send(messages.Flushed(number))
            case state.CopyBlocks(locations):
                copies = {
                    position: self._store.copy(location) for position, location in locations.items()
                }
                with self._deciding:
                    self._state.copies_written(copies)
                self._sync(_CopiesDurable())
            case state.GiveBack(below):
                self._store.release_before(below)

    def _sync(self, event: Any) -> None:
        """Have the event follow once everything written so far is durable."""
        self._store.sync(lambda error: self._inbox.put(_Failed(error) if error else event))

    def _give_up(self, error: HeadraceError) -> None:
        self._error = self._error or error
        for channel in list(self._channels.values()):
            channel.fail(self._error)

    # -- readers ---------------------------------------------------------------------------

    def advance(self, number: int, checkpoint: Checkpoint) -> None:
        """Find what the next checkpoint shows.

        Repeating this for a checkpoint that is not released changes nothing.
        """
        with self._explained():
            self._reading.advance(number, checkpoint)

    def read(self, request: messages.ReadCheckpoint) -> Iterator[Message[messages.FromReader]]:
        """Yields the documents of a checkpoint, with `_clock` and `_pair`."""
        with self._explained():
            yield from self._reading.read(
                request.number, ordered=request.ordered, kernel=request.kernel, pairs=request.pairs
            )

    def release(self, number: int) -> None:
        """Nobody will read the checkpoints up to `number` again."""
        with self._explained():
            self._reading.release(number)
            if self._error:
                # The thread has ended that would give space back.
                raise self._error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise why the Session ended, if it did: its file may go while somebody reads it."""
        try:
            yield
        except HeadraceError as error:
            raise (self._error or error) from error

    def status(self) -> tuple[int, str]:
        """How many bytes the Queue holds on disk, and why it holds Slices back, if it does."""
        with self._deciding:
            return self._state.space.held_bytes, self._state.reason()
