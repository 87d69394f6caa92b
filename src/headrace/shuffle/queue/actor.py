"""Runs one Queue: one thread decides, the log's thread writes, readers read what is durable."""

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
from headrace.transport import Channel, Message


class _Said(NamedTuple):
    slice: int
    control: Any
    bodies: tuple[Any, ...]


class _Synced(NamedTuple):
    number: int
    error: HeadraceError | None


class _NeedsChanged(NamedTuple):
    pass


class _Stopped(NamedTuple):
    error: HeadraceError | None


class _Copied(NamedTuple):
    error: HeadraceError | None


class _Failed(NamedTuple):
    error: HeadraceError


class QueueActor:
    """One member's Queue in one Session."""

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
        self._channels: dict[int, Channel[Any]] = {}
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._deciding = threading.Lock()
        """Others than its thread only look at the state."""
        self._error: HeadraceError | None = None
        self._reading = CheckpointReads(
            self._store, sources, lambda: self._inbox.put(_NeedsChanged())
        )
        self._thread = threading.Thread(target=self._run, name="headrace-queue", daemon=True)
        self._thread.start()

    # -- Slices ----------------------------------------------------------------------------

    def serve(self, slice: int, channel: Channel[Any]) -> None:
        """Take in what one Slice says, until it leaves."""
        if slice in self._channels:
            raise ProtocolError(f"Slice {slice} opened this Queue twice", do=REPORT)
        self._channels[slice] = channel
        channel.send(messages.QueueOpened(self.session))
        try:
            while (message := channel.receive()) is not None:
                self._inbox.put(_Said(slice, message.control, message.bodies))
        except HeadraceError as error:
            self.fail(error)
            raise
        finally:
            if self._error:
                channel.fail(self._error)

    def fail(self, error: HeadraceError) -> None:
        """End the Queue: every Slice is told why."""
        self._inbox.put(_Failed(error))

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()
        self._give_up(PeerLostError("the Session has ended", do="open another"))
        self._reading.close()

    def _run(self) -> None:
        try:
            while (said := self._inbox.get()) is not None:
                with self._deciding:
                    effects = self._take(said)
                for effect in effects:
                    self._carry_out(effect)
        except HeadraceError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001  told to everybody, as any failure is
            self._give_up(HeadraceError(f"the Queue failed: {error!r}", do=REPORT))

    def _take(self, said: Any) -> list[state.Effect]:
        match said:
            case _Said(slice, messages.Append(head), (body,)):
                return self._state.append(slice, head, memoryview(body))
            case _Said(slice, messages.Acks(lane, ends)):
                return self._state.end(slice, lane, ends)
            case _Said(slice, messages.Stopped(lane, places, made)):
                return self._state.stop(slice, lane, places, made)
            case _Said(slice, messages.Bounds(bounds)):
                return self._state.bound(slice, bounds)
            case _Said(slice, messages.Flush(number, lane)):
                return self._state.flush(slice, lane, number)
            case _Said(_, messages.Starving(starving, made)):
                return self._state.starve(starving, made)
            case _Synced(number, error):
                if error:
                    raise error
                return self._state.synced(number)
            case _NeedsChanged():
                return self._state.needs(self._reading.account())
            case _Stopped(error):
                if error:
                    raise error
                return self._state.needs(self._reading.pass_over())
            case _Copied(error):
                if error:
                    raise error
                return self._state.moved(self._reading.copied())
            case _Failed(error):
                raise error
        raise ProtocolError(f"a Queue was told {said!r}", do=REPORT)

    def _carry_out(self, effect: state.Effect) -> None:
        match effect:
            case state.WriteBlock(_, head, body):
                self._store.write_block(head, body)
            case state.Retract(retracted):
                self._store.write_retraction(retracted)
            case state.Stop(places, made):
                self._store.write_stop(places, made)
                self._store.sync(lambda error: self._inbox.put(_Stopped(error)))
            case state.Sync(number):
                self._store.sync(lambda error: self._inbox.put(_Synced(number, error)))
            case state.Grant(slice, lane, size):
                self._channels[slice].send(messages.Grant(lane, size))
            case state.Flushed(slice, number):
                self._channels[slice].send(messages.Flushed(number))
            case state.Move(bytes_max):
                size = self._reading.copy(bytes_max)
                with self._deciding:
                    self._state.moving(size)
                self._store.sync(lambda error: self._inbox.put(_Copied(error)))

    def _give_up(self, error: HeadraceError) -> None:
        self._error = self._error or error
        for channel in list(self._channels.values()):
            channel.fail(self._error)

    # -- readers ---------------------------------------------------------------------------

    def advance(self, number: int, checkpoint: Checkpoint) -> None:
        """To a checkpoint, each in turn; again to one that is not released changes nothing."""
        with self._explained():
            self._reading.advance(number, checkpoint)

    def read(self, request: messages.ReadCheckpoint) -> Iterator[Message[messages.FromReader]]:
        """The documents of a checkpoint, with our columns."""
        with self._explained():
            yield from self._reading.read(
                request.number, ordered=request.ordered, kernel=request.kernel, pairs=request.pairs
            )

    def release(self, number: int) -> None:
        """Checkpoints up to `number` are not read again."""
        with self._explained():
            self._reading.release(number)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """The file goes with the Session, also while somebody reads it."""
        try:
            yield
        except HeadraceError as error:
            raise (self._error or error) from error

    def status(self) -> tuple[int, str]:
        """How many bytes it holds, and why it holds Slices back, if it does."""
        with self._deciding:
            return self._state.held_bytes, self._state.reason()
