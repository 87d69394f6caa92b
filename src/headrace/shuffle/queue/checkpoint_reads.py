"""Serves the checkpoints of one Queue, from the file where it is durable, in readers' threads."""

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
from headrace.shuffle.document_order import in_order
from headrace.shuffle.queue.space import Account, FileSpace
from headrace.shuffle.queue.store import QueueStore
from headrace.shuffle.queue_reader import BlockLoader, QueueReader, Shown
from headrace.transport import Message

_POINTED_OUT = 256
"""So many blocks at once."""


class CheckpointReads:
    def __init__(self, store: QueueStore, sources: Sources, changed: Callable[[], None]) -> None:
        """`changed` is told when something else is needed than before: see `account`."""
        self._store = store
        self._changed = changed
        self._delays = {source.tag: source.delay for source in sources.all}
        schemas = {source.tag: block_schema(source) for source in sources.all}
        self._loader = BlockLoader(lambda at: store.body(self._location(at)), schemas)
        self._advancing = threading.Lock()
        self._reader = QueueReader()
        self._keeping = threading.Lock()
        """Of what follows; held for moments only."""
        self._needed = FileSpace()
        self._shown: dict[int, list[Shown]] = {}

    # -- what readers ask for --------------------------------------------------------------

    def advance(self, number: int, checkpoint: Checkpoint) -> None:
        """See what a checkpoint shows, which can be read then until it is released."""
        with self._advancing:
            with self._keeping:
                if number in self._shown:
                    return
                self._needed.check_read(number)
            self._advance(number, checkpoint.frontier)
        self._give_back()
        self._changed()

    def read(
        self, number: int, *, ordered: bool = False, kernel: str = "", pairs: bool = False
    ) -> Iterator[Message[messages.FromReader]]:
        """The documents of a checkpoint, with our columns; `pairs` as `ReadCheckpoint` has it."""
        with self._keeping:
            shown = self._shown.get(number)
        if shown is None:
            raise UsageError(
                f"checkpoint {number} is not there to be read: it was released, or is yet to come",
                do="read a checkpoint before it is released",
            )
        if ordered:
            for binding, batch in in_order(shown, self._loader.load, self._delays):
                yield Message(messages.Documents(binding, batch.num_rows), (batch.serialize(),))
        elif kernel and kernel == self._store.directory.kernel:
            yield from self._point_out(shown, pairs)
        else:
            for each in shown:
                yield from self._documents(each, pairs)

    def _point_out(
        self, shown: Sequence[Shown], pairs: bool
    ) -> Iterator[Message[messages.FromReader]]:
        """Of blocks that are shown whole, only where they are; first of all, in which files."""
        yield Message(messages.Blocks(self._store.directory, [], []))
        for whole, some in groupby(shown, key=lambda each: each.whole):
            if not whole:
                for each in some:
                    yield from self._documents(each, pairs)
                continue
            while blocks := list(islice(some, _POINTED_OUT)):
                yield Message(
                    messages.Blocks(
                        self._store.directory,
                        [each.head.binding for each in blocks],
                        [self._store.extent(self._location(each.position)) for each in blocks],
                    )
                )

    def _documents(self, shown: Shown, pairs: bool) -> Iterator[Message[messages.FromReader]]:
        for rows, body in self._loader.encoded(shown):
            bodies = (body, shown.head.pairs) if pairs else (body,)
            yield Message(messages.Documents(shown.head.binding, rows), bodies)

    def _location(self, position: int) -> int:
        with self._keeping:
            return self._needed.location(position)

    def release(self, number: int) -> None:
        """Checkpoints up to `number` are not read again: give up what only they need."""
        with self._keeping:
            self._needed.release(number)
            for read in [each for each in self._shown if each <= number]:
                del self._shown[read]
        self._give_back()
        self._changed()

    # -- what the Queue does with its file -------------------------------------------------

    def account(self) -> Account:
        """What is needed."""
        with self._keeping:
            return self._needed.account()

    def pass_over(self) -> Account:
        """See what is not needed any more without a checkpoint that would show it."""
        with self._advancing:
            self._advance(self.account().read)
        self._give_back()
        return self.account()

    def copy(self, bytes_max: int) -> int:
        """Write open blocks again, away from the front; returns what they count for."""
        with self._keeping:
            moved = self._needed.move(bytes_max)
        copies = {position: self._store.copy(location) for position, location in moved.items()}
        with self._keeping:
            self._needed.copying({position: location for position, (location, _) in copies.items()})
        return sum(size for _, size in copies.values())

    def copied(self) -> Account:
        """What `copy` wrote is durable."""
        with self._keeping:
            self._needed.copied()
        self._give_back()
        return self.account()

    def _give_back(self) -> None:
        """Let go of the file up to what is needed."""
        with self._keeping:
            kept_from = self._needed.kept_from
        self._store.release_before(kept_from)

    def close(self) -> None:
        with self._advancing:
            self._store.close()

    # -- passing over the file -------------------------------------------------------------

    def _advance(self, number: int, checkpoint: Frontier | None = None) -> None:
        """To a checkpoint, or as far as the file goes after the one that was read last."""
        end = self._store.synced_end()
        with self._keeping:
            self._needed.copied(end)
            begin = self._needed.end
        passed = list(takewhile(lambda each: each[0] < end, self._store.entries(begin)))
        entries = [entry for *_, entry in passed if entry]
        shown, closed = self._reader.advance(entries, checkpoint or Frontier.empty(), number)
        with self._keeping:
            for at, size, entry in passed:
                if size:
                    self._needed.passed(at, size, is_copy=entry is None)
            self._needed.end = end
            if checkpoint is not None:
                self._shown[number] = shown
                self._needed.read(number, [each.position for each in shown])
            self._needed.closed(closed)
