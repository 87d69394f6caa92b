"""What happens in the histories of a simulated coordinator, and who waits there. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.ingest.contract import Epoch
from headrace.ingest.effects import FlushTrigger


class IngestKind(StrEnum):
    WRITTEN = "a write was taken"
    BATCH_WRITTEN = "several writes were taken at once"
    REFUSED = "a write found no room, and was handed back"
    OVERSIZED = "a write above the limit was taken alone"
    STOOD_IN_LINE = "a writer waited for room"
    GOT_ROOM = "a writer who had waited wrote"
    LEFT_LINE = "a writer waited for room no longer"
    REFUSED_FOR_GOOD = "a write came after a failure, or after closing"
    ASKED = "somebody waited for an epoch"
    GAVE_UP = "somebody waited no longer"
    ANSWERED = "a waiter heard that its epoch is durable"
    ANSWERED_AT_ONCE = "an epoch was durable before somebody asked"
    TOLD_OF_FAILURE = "a waiter heard that its epoch may never be durable"
    REQUEST_FLUSH = "a flush began because somebody asked"
    TIMER_FLUSH = "a flush began because time was over"
    SIZE_FLUSH = "a flush began because much was pending"
    FLUSHED = "a flush was published"
    FLUSH_FAILED = "a flush failed, and nothing of it was stored"
    FLUSH_IN_DOUBT = "a flush failed, and yet it was stored"
    SYNCED = "a flush became durable"
    SYNC_SHARED = "several flushes became durable by one sync"
    SYNC_FAILED = "a sync failed"
    VIEWED = "a reader asked for a view"
    CRASHED = "the process died"
    CRASHED_IN_FLUSH = "the process died during a flush"
    REPLACED = "a coordinator that had failed was replaced"
    CLOSED = "a coordinator was closed, and all was durable"


FLUSH_KINDS = {
    FlushTrigger.REQUEST: IngestKind.REQUEST_FLUSH,
    FlushTrigger.TIMER: IngestKind.TIMER_FLUSH,
    FlushTrigger.SIZE: IngestKind.SIZE_FLUSH,
}


@dataclass(eq=False)
class EpochWaiter:
    """Somebody who waits until an epoch is durable."""

    epoch: Epoch
    has_given_up: bool = False
    is_answered: bool = False

    @property
    def is_waiting(self) -> bool:
        return not (self.is_answered or self.has_given_up)
