"""Runs one Queue: one thread decides, the log's thread writes, readers read what is durable."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec

from headrace.errors import (
    HeadraceError,
    PeerLostError,
    ProtocolError,
    UsageError,
)
from headrace.settings import LogSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import Sources
from headrace.shuffle.block import block_schema
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.order import in_order
from headrace.shuffle.queue import state
from headrace.shuffle.queue.state import QueueState
from headrace.shuffle.queue.store import QueueStore
from headrace.shuffle.reader import BlockLoader, QueueReader, Shown
from headrace.transport import Channel, Message

_POINTED_OUT = 256
"""So many blocks at once."""

_MOVE_SHARE = 8
"""Open blocks are not moved for less than this share of the soft limit."""


class _Said(NamedTuple):
    slice: int
    control: Any
    bodies: tuple[Any, ...]


class _Synced(NamedTuple):
    number: int
    error: HeadraceError | None


class _Released(NamedTuple):
    total_bytes: int


class _Moved(NamedTuple):
    bytes: int


class _Failed(NamedTuple):
    error: HeadraceError


class QueueActor:
    """One member's Queue in one Session."""

    def __init__(
        self, session: str, root: Path, opening: messages.OpenQueue, settings: LogSettings
    ) -> None:
        self.session = session
        self.slices = opening.slices
        self._sources = Sources(opening.sources)
        self._state = QueueState(
            opening.slices,
            self._sources.lanes,
            opening.settings.queue_soft_bytes,
            opening.settings.queue_hard_bytes,
        )
        sync = opening.settings.sync
        self._store = QueueStore(root, msgspec.structs.replace(settings, sync=sync))
        schemas = {source.tag: block_schema(source) for source in self._sources.all}
        self._loader = BlockLoader(self._store.body, schemas)
        self._channels: dict[int, Channel[Any]] = {}
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._error: HeadraceError | None = None
        self._reading = threading.Lock()
        self._reader = QueueReader()
        self._scanned = 0
        self._last_read = 0
        self._read_bytes = 0
        self._sizes: deque[tuple[int, int]] = deque()
        """Where each entry begins, with the bytes of all blocks up to its end."""
        self._shown: dict[int, list[Shown]] = {}
        self._lowest: dict[int, int] = {}
        """Of each checkpoint that is shown, where its first block is."""
        self._sizes_needed: dict[int, int] = {}
        """What blocks count for that are open or shown, by position."""
        self._soft_bytes = opening.settings.queue_soft_bytes
        self._thread = threading.Thread(target=self._run, name="headrace-queue", daemon=True)
        self._thread.start()

    # -- Slices ----------------------------------------------------------------------------

    def serve(self, slice: int, channel: Channel[Any]) -> None:
        """Take in what one Slice says, until it leaves."""
        if slice in self._channels:
            raise ProtocolError(f"Slice {slice} opened this Queue twice", do="this is a bug")
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
        with self._reading:
            self._store.close()

    def _run(self) -> None:
        try:
            while (said := self._inbox.get()) is not None:
                for effect in self._take(said):
                    self._carry_out(effect)
        except HeadraceError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001  told to everybody, as any failure is
            self._give_up(HeadraceError(f"the Queue failed: {error!r}", do="this is a bug"))

    def _take(self, said: Any) -> list[state.Effect]:
        match said:
            case _Said(slice, messages.Append(head), (body,)):
                return self._state.append(slice, head, memoryview(body))
            case _Said(slice, messages.Acks(lane, ends)):
                return self._state.end(slice, lane, ends)
            case _Said(slice, messages.Bounds(bounds)):
                return self._state.bound(slice, bounds)
            case _Said(slice, messages.Flush(number)):
                return self._state.flush(slice, number)
            case _Said(_, messages.Hunger(starving)):
                return self._state.starve(starving)
            case _Synced(number, error):
                if error:
                    raise error
                return self._state.synced(number)
            case _Released(total_bytes):
                return self._state.released(total_bytes)
            case _Moved(size):
                return self._state.moved(size)
            case _Failed(error):
                raise error
        raise ProtocolError(f"a Queue was told {said!r}", do="this is a bug")

    def _carry_out(self, effect: state.Effect) -> None:
        match effect:
            case state.WriteBlock(_, head, body):
                self._store.write_block(head, body)
            case state.Retract(retracted):
                self._store.write_retraction(retracted)
            case state.Sync(number):
                self._store.sync(lambda error: self._inbox.put(_Synced(number, error)))
            case state.Grant(slice, lane, size):
                self._channels[slice].send(messages.Grant(lane, size))
            case state.Flushed(slice, number):
                self._channels[slice].send(messages.Flushed(number))

    def _give_up(self, error: HeadraceError) -> None:
        self._error = self._error or error
        for channel in list(self._channels.values()):
            channel.fail(self._error)

    # -- readers ---------------------------------------------------------------------------

    def read(
        self, number: int, checkpoint: Checkpoint, *, ordered: bool = False, kernel: str = ""
    ) -> Iterator[Message[messages.FromReader]]:
        """The documents of a checkpoint, with our columns."""
        try:
            shown = self._plan(number, checkpoint)
            if ordered:
                yield from self._read_ordered(shown)
            elif kernel and kernel == self._store.directory.kernel:
                yield from self._point_out(shown)
            else:
                for each in shown:
                    yield from self._documents(each)
        except HeadraceError as error:
            # Its file goes with the Session, also while somebody reads it.
            raise (self._error or error) from error

    def _read_ordered(self, shown: Sequence[Shown]) -> Iterator[Message[messages.FromReader]]:
        delays = {source.tag: source.delay for source in self._sources.all}
        for binding, batch in in_order(shown, self._loader.load, delays):
            yield Message(messages.Documents(binding, batch.num_rows), (batch.serialize(),))

    def _point_out(self, shown: Sequence[Shown]) -> Iterator[Message[messages.FromReader]]:
        """Of blocks that are shown whole, only where they are; first of all, in which files."""
        yield Message(messages.Blocks(self._store.directory, [], []))
        for whole, some in groupby(shown, key=lambda each: each.whole):
            if not whole:
                for each in some:
                    yield from self._documents(each)
                continue
            while blocks := list(islice(some, _POINTED_OUT)):
                yield Message(
                    messages.Blocks(
                        self._store.directory,
                        [each.head.binding for each in blocks],
                        [self._store.extent(each.position) for each in blocks],
                    )
                )

    def _documents(self, shown: Shown) -> Iterator[Message[messages.FromReader]]:
        for rows, body in self._loader.encoded(shown):
            yield Message(messages.Documents(shown.head.binding, rows), (body,))

    def release(self, number: int) -> None:
        """Checkpoints up to `number` are not read again: give up what only they need."""
        with self._reading:
            if number > self._last_read:
                raise UsageError(
                    f"checkpoint {number} is released, and {self._last_read} was read last",
                    do="read it first",
                )
            for read in [n for n in self._shown if n <= number]:
                del self._shown[read], self._lowest[read]
            open_blocks = self._reader.open_blocks()
            shown = {each.position for some in self._shown.values() for each in some}
            needed = {*open_blocks, *shown}
            self._sizes_needed = {at: self._sizes_needed[at] for at in needed}
            self._store.settle(needed)
            places = [self._store.place(at) for at in open_blocks]
            keep_from = min([self._scanned, *self._lowest.values(), *places])
            self._store.release_before(keep_from)
            while self._sizes and self._sizes[0][0] < keep_from:
                self._read_bytes = self._sizes.popleft()[1]
            self._inbox.put(_Released(self._read_bytes))
            self._make_room(open_blocks)

    def _make_room(self, open_blocks: list[int]) -> None:
        """Move what is open away from the front, once it keeps more than its own size there."""
        kept = self._sizes[-1][1] - self._read_bytes if self._sizes else 0
        unneeded = kept - sum(self._sizes_needed.values())
        size = sum(self._sizes_needed[at] for at in open_blocks)
        if size and unneeded > max(size, self._soft_bytes // _MOVE_SHARE):
            self._inbox.put(_Moved(self._store.move(open_blocks)))

    def status(self) -> tuple[int, str]:
        """How many bytes it holds, and why it holds Slices back, if it does."""
        return self._state.held_bytes, self._state.reason()

    def _plan(self, number: int, checkpoint: Checkpoint) -> list[Shown]:
        with self._reading:
            if number in self._shown:
                return self._shown[number]
            if number != self._last_read + 1:
                raise UsageError(
                    f"checkpoint {number} is read after {self._last_read}",
                    do="read every checkpoint on every member, one after the other",
                )
            end = self._store.synced_end()
            entries = []
            total = self._sizes[-1][1] if self._sizes else self._read_bytes
            for at, size, entry in self._store.entries(self._scanned):
                if at >= end:
                    break
                total += size
                self._sizes.append((at, total))
                if entry:
                    entries.append(entry)
                    self._sizes_needed[at] = size
            self._scanned = end
            shown = self._shown[number] = self._reader.advance(entries, checkpoint.frontier)
            self._lowest[number] = min(
                (self._store.place(at.position) for at in shown), default=end
            )
            self._last_read = number
            return shown
