"""Snapshots of state and index: opening a workspace replays the log only from the newest one.

The owner writes a snapshot whole under a temporary name, syncs it and renames it. It keeps the
newest two, and drops a log segment only once both cover it. If one cannot be read, the other and
the log after it still hold everything.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import deque
from pathlib import Path

import msgspec
import xxhash

from headrace.clock import Clock
from headrace.decoders import decode_msgpack
from headrace.errors import DataError, VersionError
from headrace.files import UNFINISHED, make_directory, write_durably
from headrace.ids import Holder, JournalId, Offset, Producer
from headrace.journal.local.catalog import Catalog, JournalState
from headrace.journal.local.index import Index, JournalIndex
from headrace.journal.local.producers import COMMITS_REMEMBERED, ProducerState
from headrace.journal.local.records import CollectionPut
from headrace.journal.local.state import OwnerState, PublisherState

_NAME = re.compile(r"(\d{20})\.snapshot")
_KEPT = 2
_FORMAT = 1


class _Journal(msgspec.Struct, array_like=True):
    id: JournalId
    name: str
    begin: Offset
    head: Offset
    frames: int


class _Producer(msgspec.Struct, array_like=True):
    producer: Producer
    last_clock: Clock
    commits: list[tuple[Holder, Clock]]
    spans: dict[JournalId, Offset]
    name: str


class _Image(msgspec.Struct):
    format: int
    position: int
    collections: list[CollectionPut]
    journals: list[_Journal]
    last_journal: int
    last_collection: int
    last_holder: int
    producers: list[_Producer]
    publishers: dict[str, tuple[Producer, bytes]]
    offsets: bytes
    positions: bytes
    clocks: bytes
    rows: bytes


def capture(position: int, state: OwnerState, index: Index) -> bytes:
    """Encode state and index, which are exactly at `position`: no record may be in flight."""
    journals = list(index.journals.values())
    image = _Image(
        format=_FORMAT,
        position=position,
        collections=list(index.collections.values()),
        journals=[_Journal(j.id, j.name, j.begin, j.head, len(j)) for j in journals],
        last_journal=state.catalog.last_journal,
        last_collection=state.catalog.last_collection,
        last_holder=state.last_holder,
        producers=[
            _Producer(producer, p.last_clock, list(p.commits), p.spans, p.name)
            for producer, p in state.producers.items()
        ],
        publishers={name: (p.producer, p.payload) for name, p in state.publishers.items()},
        offsets=b"".join(j.offsets.tobytes() for j in journals),
        positions=b"".join(j.positions.tobytes() for j in journals),
        clocks=b"".join(j.clocks.tobytes() for j in journals),
        rows=b"".join(j.rows.tobytes() for j in journals),
    )
    data = msgspec.msgpack.encode(image)
    return xxhash.xxh3_64_digest(data) + data


def restore(data: bytes) -> tuple[int, OwnerState, Index]:
    """Decode a snapshot; return the position to replay from, the state and the index."""
    if xxhash.xxh3_64_digest(memoryview(data)[8:]) != data[:8]:
        raise DataError(
            "the snapshot is damaged", do="remove it: the owner then uses the one before"
        )
    image = decode_msgpack(memoryview(data)[8:], _Image)
    if image.format > _FORMAT:
        raise VersionError(
            f"the snapshot has format {image.format}, and this Headrace knows up to {_FORMAT}",
            do="use a newer Headrace",
        )
    catalog = Catalog(
        {c.name: c for c in image.collections},
        {j.id: JournalState(j.name, j.head) for j in image.journals},
        {j.name: j.id for j in image.journals},
        image.last_journal,
        image.last_collection,
    )
    state = OwnerState(catalog, last_holder=image.last_holder)
    for p in image.producers:
        commits = deque(p.commits, maxlen=COMMITS_REMEMBERED)
        state.producers[p.producer] = ProducerState(p.last_clock, commits, p.spans, p.name)
    state.publishers = {n: PublisherState(*p) for n, p in image.publishers.items()}
    return image.position, state, _restore_index(image)


def _restore_index(image: _Image) -> Index:
    index = Index()
    index.collections = {c.name: c for c in image.collections}
    first = 0
    for j in image.journals:
        journal = index.journals[j.id] = JournalIndex(j.id, j.name)
        journal.begin, journal.head = j.begin, j.head
        if j.frames:
            end = first + j.frames
            journal.offsets = array("Q", image.offsets[first * 8 : end * 8])
            journal.positions = array("Q", image.positions[first * 8 : end * 8])
            journal.clocks = array("Q", image.clocks[first * 8 : end * 8])
            journal.rows = array("I", image.rows[first * 4 : end * 4])
            first = end
    return index


class SnapshotFiles:
    """The snapshots of one workspace."""

    def __init__(self, root: Path) -> None:
        self._root = root
        make_directory(root)
        for unfinished in root.glob(f"*{UNFINISHED}"):
            unfinished.unlink()

    def positions(self) -> list[int]:
        """Return the positions of the snapshots, oldest first."""
        names = map(_NAME.fullmatch, os.listdir(self._root))
        return sorted(int(name[1]) for name in names if name)

    def covered(self) -> int:
        """Return the position below which every kept snapshot replaces the log."""
        positions = self.positions()
        return positions[0] if len(positions) >= _KEPT else 0

    def save(self, position: int, data: bytes) -> None:
        write_durably(self._path(position), data)
        for old in self.positions()[:-_KEPT]:
            self._path(old).unlink()

    def load(self, log_is_whole: bool) -> tuple[int, OwnerState, Index]:
        """Return the newest readable snapshot; a log that has lost no segment needs none.

        Removes snapshots that cannot be read, once they are not needed: they must not count as
        kept.
        """
        problems: dict[Path, Exception] = {}
        found = None
        for path in map(self._path, reversed(self.positions())):
            try:
                found = restore(path.read_bytes())
                break
            except (DataError, msgspec.DecodeError) as error:
                problems[path] = error
        if found is None and not log_is_whole:
            shown = "; ".join(f"{path}: {error}" for path, error in problems.items())
            raise DataError(
                f"{self._root}: no snapshot of the index can be read ({shown})",
                do="restore one of these files from a backup",
            )
        for path in problems:
            path.unlink()
        return found or (0, OwnerState(), Index())

    def _path(self, position: int) -> Path:
        return self._root / f"{position:020d}.snapshot"
