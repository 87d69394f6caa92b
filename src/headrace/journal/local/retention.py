"""Decides where a journal should begin, and which segments are worth rewriting. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.clock import Clock, from_unix_ns
from headrace.ids import JournalId, Offset
from headrace.journal.local.index import Index, JournalIndex
from headrace.journal.local.records import CollectionPut
from headrace.log import Segment


def overdue(
    index: Index, limited: Mapping[str, CollectionPut], now_ns: int
) -> list[tuple[JournalId, Offset]]:
    """Return the journals that hold more than their collections keep, with their new begins."""
    oldest = {name: _oldest_kept(collection, now_ns) for name, collection in limited.items()}
    return [
        (journal.id, begin)
        for journal in index.journals.values()
        if journal.collection in limited
        and (
            begin := begin_after_retention(
                journal, limited[journal.collection].retention_bytes, oldest[journal.collection]
            )
        )
        > journal.begin
    ]


def begin_after_retention(
    journal: JournalIndex, bytes_max: int | None, oldest_kept: Clock
) -> Offset:
    """Return where the journal begins after retention removes whole frames, oldest first."""
    frames = bisect_left(journal.clocks, oldest_kept)
    if bytes_max is not None:
        # Remove a frame only if enough stays without it.
        frames = max(frames, bisect_right(journal.offsets, journal.head - bytes_max) - 1)
    if frames == 0:
        return journal.begin
    return Offset(journal.offsets[frames]) if frames < len(journal) else journal.head


def _oldest_kept(collection: CollectionPut, now_ns: int) -> Clock:
    if collection.retention_s is None:
        return Clock(0)
    return from_unix_ns(max(0, now_ns - int(collection.retention_s * 1e9)))


def worth_rewriting(
    segments: Sequence[Segment], index: Index, covered: int, live_share: float
) -> list[Segment]:
    """Return the segments below `covered` of which journals hold less than `live_share`."""
    if not segments or segments[0].end > covered:
        return []
    live = index.live_bytes(np.array([segment.base for segment in segments], np.uint64))
    return [
        segment
        for segment, held in zip(segments, live.tolist(), strict=True)
        if segment.end <= covered and held < live_share * (segment.end - segment.base)
    ]
