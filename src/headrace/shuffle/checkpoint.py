"""Checkpoints: a frontier, and what its tags stand for.

A delta is a checkpoint too: it has the places that moved, the tags that no checkpoint before it
used, and the tags whose journals are gone. A task never uses a tag twice, so a checkpoint keeps how
many there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import xxhash

from headrace.decoders import decode_msgpack
from headrace.errors import DataError, UsageError
from headrace.frontier import BindingTag, Frontier, JournalTag, reduce
from headrace.ids import JournalId

_DIGEST_BYTES = 8


class JournalRef(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation of a journal."""

    id: JournalId
    name: str


class _Tags(msgspec.Struct, array_like=True):
    journals: dict[int, JournalRef]
    bindings: dict[int, str]
    frontier: bytes
    gone: list[int]
    tags_used: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a task is, or a delta: how far it moved since the checkpoint before."""

    frontier: Frontier = field(default_factory=Frontier.empty)
    journals: Mapping[JournalTag, JournalRef] = field(default_factory=dict)
    bindings: Mapping[BindingTag, str] = field(default_factory=dict)
    gone: frozenset[JournalTag] = frozenset()
    """Only in a delta: journals that the merged checkpoint no longer has."""
    tags_used: int = 0
    """Every journal tag so far is below this number."""

    def merge(self, delta: Checkpoint) -> Checkpoint:
        """Return this checkpoint with the delta added, without what a restart does not need.

        Raises UsageError if a tag stands for one thing here and for another in the delta.
        """
        frontier = reduce(self.frontier, delta.frontier).prune()
        journals = _union(self.journals, delta.journals, "journal")
        if delta.gone:
            journals = {tag: ref for tag, ref in journals.items() if tag not in delta.gone}
            frontier = frontier.project(journals=journals)
        return Checkpoint(
            frontier,
            journals,
            _union(self.bindings, delta.bindings, "binding"),
            tags_used=max(self.tags_used, delta.tags_used),
        )

    def encode(self) -> bytes:
        """Return bytes that are equal for equal checkpoints."""
        tags = _Tags(
            dict(sorted(self.journals.items())),
            dict(sorted(self.bindings.items())),
            self.frontier.encode(),
            sorted(self.gone),
            self.tags_used,
        )
        payload = msgspec.msgpack.encode(tags)
        return bytes(xxhash.xxh3_64_digest(payload)) + payload

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Return the checkpoint that `encode` made into `data`.

        Raises DataError if the bytes are damaged.
        """
        payload = memoryview(data)[_DIGEST_BYTES:]
        if xxhash.xxh3_64_digest(payload) != data[:_DIGEST_BYTES]:
            raise _damaged(f"the checksum of its {len(data)} bytes is wrong")
        try:
            tags = decode_msgpack(payload, _Tags)
        except msgspec.MsgspecError as error:
            raise _damaged(str(error)) from error
        return cls(
            Frontier.decode(tags.frontier),
            {JournalTag(tag): ref for tag, ref in tags.journals.items()},
            {BindingTag(tag): name for tag, name in tags.bindings.items()},
            frozenset(JournalTag(tag) for tag in tags.gone),
            tags.tags_used,
        )


class NextCheckpoint(NamedTuple):
    """The next checkpoint of a Session, which numbers them from 1.

    Merge `delta` into the checkpoint before it.
    """

    number: int
    delta: Checkpoint


def _damaged(why: str) -> DataError:
    return DataError(
        f"a checkpoint is damaged: {why}", do="restore it, or go back to an older checkpoint"
    )


def _union(mine: Mapping, theirs: Mapping, what: str) -> Mapping:  # type: ignore[type-arg]
    for tag in mine.keys() & theirs.keys():
        if mine[tag] != theirs[tag]:
            raise UsageError(
                f"{what} tag {tag} stands for {mine[tag]} and for {theirs[tag]}",
                do="merge each delta of a task into the checkpoint that it follows",
            )
    return {**mine, **theirs} if theirs else mine
