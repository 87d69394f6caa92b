"""Reads journals for one who wants what is past: a plan, then its scans in any process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

import pyarrow as pa

from headrace.clock import Clock
from headrace.errors import BehindRetentionError, NotFoundError, PeerLostError, UsageError
from headrace.frontier import BindingTag, place
from headrace.journal.collection import Collection
from headrace.journal.committed_documents import committed
from headrace.journal.contract import Frame, JournalInfo
from headrace.journal.names import Selector, parse_journal_name
from headrace.journal.workspace import Workspace
from headrace.settings import KIB, MIB
from headrace.shuffle.batch.journal_scan import Scan, parts, scans_between
from headrace.shuffle.binding import Binding, Source, Sources, resolve
from headrace.shuffle.block import Block, Piece, block_of, join_pieces
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.checkpoints.checkpoint_history import History, describe_task
from headrace.shuffle.slice.decoder import Decoder

_BATCH_DOCUMENTS = 16_384
_BATCH_BYTES = 4 << 20

_SMALL_BYTES = 64 * KIB
_AHEAD = 32
_AHEAD_BYTES = MIB
"""Of journals that are small so many are asked for before they are read, each for so much at most:
else what there is to wait for would be more than what there is to read."""


class Plan(NamedTuple):
    sources: Sources
    scans: list[Scan]


# -- planning ------------------------------------------------------------------------------


def take_cut(workspace: Workspace, bindings: Sequence[Binding]) -> list[JournalInfo]:
    """The journals of the collections, all as of one moment: no transaction is half in it."""
    names = {binding.collection for binding in bindings}
    journals = workspace.journals(Selector(min(names)) if len(names) == 1 else None)
    return [each for each in journals if parse_journal_name(each.name).collection in names]


def plan_cut(workspace: Workspace, bindings: Sequence[Binding], cut: Sequence[JournalInfo]) -> Plan:
    """Everything that was committed at the cut."""
    sources = resolve(bindings, _collections(workspace), {})
    return Plan(
        sources,
        [
            Scan(journal, source.tag)
            for journal in cut
            if journal.head > journal.begin
            for source in sources.of_journal(journal.name)
        ],
    )


def plan_between(
    workspace: Workspace,
    bindings: Sequence[Binding],
    task: str,
    first: int | None = None,
    last: int | None = None,
    *,
    generation: str = "",
) -> Plan:
    """Exactly what the task's checkpoints after `first` have shown, up to and including `last`.

    Of those that are kept, if nothing else is said, and of the generation that is current. That is
    refused where a journal has lost some of it, or may have.
    """
    objects = workspace.objects
    there = describe_task(objects, task)
    # A task that is asked for by its generation is not made by looking at it.
    history = History(objects, task, generation=generation or there.generation)
    last = there.last if last is None else last
    first = min(there.first, last) if first is None else first
    if first > last:
        raise UsageError(
            f"from checkpoint {first} to {last} of task {task!r}", do="let the first come first"
        )
    before = history.load(first)
    deltas = [history.delta(number) for number in range(first + 1, last + 1)]
    journals = {journal.id: journal for journal in workspace.journals()}
    known = _known_bindings(before, deltas)
    sources = resolve(bindings, _collections(workspace), known)
    for source in sources.all:
        if deltas and source.tag not in known:
            raise NotFoundError(
                f"task {task!r} has no binding {source.name!r} up to checkpoint {last}",
                do=f"name some of {', '.join(known.values())}",
            )
    return Plan(sources, list(scans_between(sources, before, deltas, journals)))


def _known_bindings(before: Checkpoint, deltas: Sequence[Checkpoint]) -> dict[BindingTag, str]:
    of_all = (each.bindings.items() for each in (before, *deltas))
    return dict(chain.from_iterable(of_all))


def _collections(workspace: Workspace) -> dict[str, Collection]:
    return {each.name: each for each in workspace.collections()}


# -- reading -------------------------------------------------------------------------------


def read_scans(
    workspace: Workspace, sources: Sources, scans: Sequence[Scan]
) -> Iterator[tuple[Source, pa.RecordBatch]]:
    """Their documents. However small frames are, batches are not."""
    for source, pieces in _gathered(workspace, sources, scans):
        yield source, join_pieces(pieces)


def read_blocks(workspace: Workspace, sources: Sources, scans: Sequence[Scan]) -> Iterator[Block]:
    """The same with tables of pairs, whose places begin with the number of a scan."""
    for source, pieces in _gathered(workspace, sources, scans):
        yield block_of(source, pieces)


def _gathered(
    workspace: Workspace, sources: Sources, scans: Sequence[Scan]
) -> Iterator[tuple[Source, list[Piece]]]:
    decode = Decoder(sources, lambda: [each.definition for each in workspace.collections()])
    waiting = {source.tag: _Waiting(source) for source in sources.all}
    for number, (scan, frames) in enumerate(_asked_ahead(workspace, scans)):
        found = waiting[scan.binding]
        at = place(number, scan.binding)
        for frame, skip, end in parts(found.source, scan, frames):
            batch = decode(frame, found.source).slice(skip, end - skip)
            found.add(Piece(at, frame.producer, Clock(frame.clock + skip), batch), frame.bytes)
            if found.is_full:
                yield found.source, found.take()
    yield from ((each.source, each.take()) for each in waiting.values() if each)


def _asked_ahead(
    workspace: Workspace, scans: Sequence[Scan]
) -> Iterator[tuple[Scan, Iterable[Frame]]]:
    """Each with what `parts` wants."""
    asked: deque[Future[list[Frame]] | None] = deque()
    coming = iter(scans)
    for scan in scans:
        asked.extend(_fetch(workspace, each) for each in islice(coming, _AHEAD - len(asked)))
        yield scan, _frames(workspace, scan, asked.popleft())


def _fetch(workspace: Workspace, scan: Scan) -> Future[list[Frame]] | None:
    if scan.bytes > _SMALL_BYTES:
        return None
    return workspace.fetch(scan.journal, scan.offset, _AHEAD_BYTES)


def _frames(workspace: Workspace, scan: Scan, asked: Future[list[Frame]] | None) -> Iterable[Frame]:
    # What was asked for ahead of a retention, of an owner that is lost, or is not all there is.
    with suppress(BehindRetentionError, PeerLostError):
        if asked and (found := asked.result()) and found[-1].end >= scan.journal.head:
            return found if scan.window else committed(found)
    if scan.window is None:
        return workspace.kept_frames(scan.journal)
    return workspace.frames(scan.journal, scan.window.offset, committed=False)


class _Waiting:
    """Documents of one source until there are enough of them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._pieces: list[Piece] = []
        self._documents = 0
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, piece: Piece, size: int) -> None:
        self._pieces.append(piece)
        self._documents += piece.batch.num_rows
        self._bytes += size

    @property
    def is_full(self) -> bool:
        return self._documents >= _BATCH_DOCUMENTS or self._bytes >= _BATCH_BYTES

    def take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        self._documents = self._bytes = 0
        return pieces
