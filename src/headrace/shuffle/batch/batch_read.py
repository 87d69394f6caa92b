"""Reads what journals hold, without a Session: one process plans scans, any process reads them."""

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
from headrace.shuffle.batch.journal_scan import Scan, scans_between, select_rows
from headrace.shuffle.binding import Binding, Source, Sources, resolve
from headrace.shuffle.block import Block, Piece, block_of, join_pieces
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.checkpoints.checkpoint_history import History, describe_task
from headrace.shuffle.slice.decoder import Decoder

_BATCH_DOCUMENTS = 16_384
_BATCH_BYTES = 4 << 20

_SMALL_BYTES = 64 * KIB
_AHEAD_SCANS = 32
_AHEAD_BYTES = MIB
"""Ask for up to this many small journals before reading them, each up to so many bytes. Otherwise a
reader of small journals would spend most of its time waiting for answers."""


class Plan(NamedTuple):
    """Scans, and the sources whose tags they name."""

    sources: Sources
    scans: list[Scan]


# -- planning ------------------------------------------------------------------------------


def take_cut(workspace: Workspace, bindings: Sequence[Binding]) -> list[JournalInfo]:
    """Return the journals of the bindings' collections as of one moment.

    No transaction is half in a cut.
    """
    names = {binding.collection for binding in bindings}
    journals = workspace.journals(Selector(min(names)) if len(names) == 1 else None)
    return [each for each in journals if parse_journal_name(each.name).collection in names]


def plan_cut(workspace: Workspace, bindings: Sequence[Binding], cut: Sequence[JournalInfo]) -> Plan:
    """Plan to read everything that was committed at the cut."""
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
    """Plan to read exactly what the task's checkpoints after `first` showed, up to and with `last`.

    By default they are all checkpoints that the task keeps of its current generation. Raises
    NotFoundError or BehindRetentionError if a journal has lost some of that, or may have.
    """
    objects = workspace.objects
    info = describe_task(objects, task)
    # Always with a generation: a History that is opened without one would create the task.
    history = History(objects, task, generation=generation or info.generation)
    last = info.last if last is None else last
    first = min(info.first, last) if first is None else first
    if first > last:
        raise UsageError(
            f"checkpoint {first} of task {task!r} comes after checkpoint {last}",
            do="give the earlier checkpoint first",
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
                do=f"name one of {', '.join(known.values())}",
            )
    return Plan(sources, list(scans_between(sources, before, deltas, journals)))


def _known_bindings(before: Checkpoint, deltas: Sequence[Checkpoint]) -> dict[BindingTag, str]:
    return dict(chain.from_iterable(each.bindings.items() for each in (before, *deltas)))


def _collections(workspace: Workspace) -> dict[str, Collection]:
    return {each.name: each for each in workspace.collections()}


# -- reading -------------------------------------------------------------------------------


def read_scans(
    workspace: Workspace, sources: Sources, scans: Sequence[Scan]
) -> Iterator[tuple[Source, pa.RecordBatch]]:
    """Yield the documents of the scans, in large batches however small the frames are."""
    for source, pieces in _gather(workspace, sources, scans):
        yield source, join_pieces(pieces)


def read_blocks(workspace: Workspace, sources: Sources, scans: Sequence[Scan]) -> Iterator[Block]:
    """Yield them as blocks. A place in their pairs has the number of a scan as its journal tag."""
    for source, pieces in _gather(workspace, sources, scans):
        yield block_of(source, pieces)


def _gather(
    workspace: Workspace, sources: Sources, scans: Sequence[Scan]
) -> Iterator[tuple[Source, list[Piece]]]:
    decode = Decoder(sources, lambda: [each.definition for each in workspace.collections()])
    gathered = {source.tag: _Gathered(source) for source in sources.all}
    for number, (scan, frames) in enumerate(_fetch_ahead(workspace, scans)):
        target = gathered[scan.binding]
        scan_place = place(number, scan.binding)
        for frame, skip, end in select_rows(target.source, scan, frames):
            batch = decode(frame, target.source).slice(skip, end - skip)
            piece = Piece(scan_place, frame.producer, Clock(frame.clock + skip), batch)
            target.add(piece, frame.bytes)
            if target.is_full:
                yield target.source, target.take()
    yield from ((each.source, each.take()) for each in gathered.values() if each)


def _fetch_ahead(
    workspace: Workspace, scans: Sequence[Scan]
) -> Iterator[tuple[Scan, Iterable[Frame]]]:
    """Yield each scan with the frames that `select_rows` takes."""
    fetches: deque[Future[list[Frame]] | None] = deque()
    coming = iter(scans)
    for scan in scans:
        room = _AHEAD_SCANS - len(fetches)
        fetches.extend(_fetch(workspace, each) for each in islice(coming, room))
        yield scan, _frames(workspace, scan, fetches.popleft())


def _fetch(workspace: Workspace, scan: Scan) -> Future[list[Frame]] | None:
    """Ask for the frames of a scan; return None if they are too many to ask for at once."""
    if scan.bytes > _SMALL_BYTES:
        return None
    return workspace.fetch(scan.journal, scan.offset, _AHEAD_BYTES)


def _frames(workspace: Workspace, scan: Scan, fetch: Future[list[Frame]] | None) -> Iterable[Frame]:
    # A fetch may fail since retention went on or the owner was lost, or may not bring everything.
    # The scan then reads the journal itself.
    with suppress(BehindRetentionError, PeerLostError):
        if fetch and (found := fetch.result()) and found[-1].end >= scan.journal.head:
            return found if scan.window else committed(found)
    if scan.window is None:
        return workspace.kept_frames(scan.journal)
    return workspace.frames(scan.journal, scan.window.offset, committed=False)


class _Gathered:
    """Collects the documents of one source until they fill a batch."""

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
