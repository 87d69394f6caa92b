"""Serves checkpoints from the durable part of a Queue's file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice, takewhile

from headrace.errors import UsageError
from headrace.frontier import Frontier
from headrace.shuffle import messages
from headrace.shuffle.binding import Sources
from headrace.shuffle.block import block_schema
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.queue.document_order import in_order
from headrace.shuffle.queue.queue_reader import BlockLoader, QueueReader, Shown
from headrace.shuffle.queue.state import Effect, QueueState
from headrace.shuffle.queue.store import QueueStore
from headrace.transport import Message

_EXTENTS_MAX = 256
"""One message tells a reader where up to this many blocks are."""


class CheckpointReads:
    """Serves the readers of one Queue, on their own threads. Only the Queue itself calls `scan`."""

    def __init__(
        self,
        store: QueueStore,
        sources: Sources,
        state: QueueState,
        deciding: threading.Lock,
        decided: Callable[[list[Effect]], None],
    ) -> None:
        """Changes `state.space` only while it holds `deciding`; `decided` gets the effects."""
        self._store = store
        self._state = state
        self._deciding = deciding
        self._decided = decided
        self._delays = {source.tag: source.delay for source in sources.all}
        schemas = {source.tag: block_schema(source) for source in sources.all}
        self._loader = BlockLoader(lambda pos: store.body(self._location(pos)), schemas)
        self._scanning = threading.Lock()
        """Held while a thread scans the file. It guards `_reader`."""
        self._reader = QueueReader()
        self._shown: dict[int, list[Shown]] = {}
        """For each checkpoint that is not released. `_deciding` guards it."""

    def advance(self, number: int, checkpoint: Checkpoint) -> None:
        """Find what a checkpoint shows. Readers may ask for it until somebody releases it."""
        with self._scanning:
            with self._deciding:
                if number in self._shown:
                    return
                self._state.space.check_read(number)
            effects = self._scan(number, checkpoint.frontier)
        self._decided(effects)

    def scan(self) -> list[Effect]:
        """Find what no checkpoint will show any more."""
        with self._scanning:
            return self._scan(self._state.space.last_read)

    def _scan(self, number: int, checkpoint: Frontier | None = None) -> list[Effect]:
        """Scan what is durable, and find what the checkpoint shows of it, if there is one."""
        space = self._state.space
        end = self._store.synced_end()
        found = list(takewhile(lambda each: each[0] < end, self._store.entries(space.scanned_to)))
        entries = [entry for *_, entry in found if entry]
        shown, closed = self._reader.advance(entries, checkpoint or Frontier.empty(), number)
        with self._deciding:
            space.copies_durable(end)
            for location, size, entry in found:
                if size:
                    space.scanned(location, size, is_copy=entry is None)
            space.scanned_to = end
            if checkpoint is not None:
                self._shown[number] = shown
                space.read(number, [each.position for each in shown])
            space.closed(closed)
            return self._state.space_changed()

    def read(
        self, number: int, *, ordered: bool = False, kernel: str = "", pairs: bool = False
    ) -> Iterator[Message[messages.FromReader]]:
        """Yield the documents of a checkpoint, as `ReadCheckpoint` asks for them."""
        with self._deciding:
            shown = self._shown.get(number)
        if shown is None:
            raise UsageError(
                f"checkpoint {number} cannot be read: it was released, or does not exist yet",
                do="read a checkpoint before you release it",
            )
        if ordered:
            for binding, batch in in_order(shown, self._loader.load, self._delays):
                yield Message(messages.Documents(binding, batch.num_rows), (batch.serialize(),))
        elif kernel and kernel == self._store.directory.kernel:
            yield from self._locate(shown, pairs)
        else:
            for block in shown:
                yield from self._documents(block, pairs)

    def _locate(
        self, shown: Sequence[Shown], pairs: bool
    ) -> Iterator[Message[messages.FromReader]]:
        """Yield where the files are, then where each block is, or its rows if it is not whole."""
        yield Message(messages.Blocks(self._store.directory, [], []))
        for is_whole, blocks in groupby(shown, key=lambda each: each.whole):
            if not is_whole:
                for block in blocks:
                    yield from self._documents(block, pairs)
                continue
            while portion := list(islice(blocks, _EXTENTS_MAX)):
                positions = (block.position for block in portion)
                yield Message(
                    messages.Blocks(
                        self._store.directory,
                        [block.head.binding for block in portion],
                        list(self._store.extents(map(self._location, positions))),
                    )
                )

    def _documents(self, shown: Shown, pairs: bool) -> Iterator[Message[messages.FromReader]]:
        for rows, body in self._loader.encoded(shown):
            bodies = (body, shown.head.pairs) if pairs else (body,)
            yield Message(messages.Documents(shown.head.binding, rows), bodies)

    def _location(self, position: int) -> int:
        with self._deciding:
            return self._state.space.location(position)

    def release(self, number: int) -> None:
        """Give up what only the checkpoints up to `number` need: nobody will read them again."""
        with self._deciding:
            self._state.space.release(number)
            for released in [each for each in self._shown if each <= number]:
                del self._shown[released]
            effects = self._state.space_changed()
        self._decided(effects)

    def close(self) -> None:
        with self._scanning:
            self._store.close()
