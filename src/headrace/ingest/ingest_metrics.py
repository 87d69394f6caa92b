"""What a coordinator tells about itself. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from headrace.ingest.contract import Epoch
from headrace.ingest.state import CoordinatorPhase


@dataclass(frozen=True, slots=True)
class IngestMetrics:
    """Figures of one moment; totals since the coordinator started."""

    phase: CoordinatorPhase
    epoch: Epoch
    """The last epoch that a write got: so many writes were taken."""
    flushed_epoch: Epoch
    durable_epoch: Epoch
    queued_writes: int
    """Writes that are not merged yet."""
    queued_bytes: int
    pending_bytes: int
    """What is merged, and waits for the next flush."""
    frozen_bytes: int
    """What is being flushed, or waits to be durable."""
    refused_writes: int
    """Calls that raised QueueFullError, or had to wait for room."""
    waiters: int
    """Calls that wait until an epoch is durable."""
    undurable_s: float
    """For how long the oldest write that is not durable has been merged; 0 if all are durable."""
    request_flushes: int
    """Flushes that began because somebody asked for one."""
    timer_flushes: int
    size_flushes: int
    failures: int
    flushed_bytes: int
    flush_s: float
    """Time that all flushes took, without the syncs."""
    last_flush_s: float
    syncs: int
    """Waits for durability. One may serve several flushes."""
    sync_s: float
    last_sync_s: float

    @property
    def flushes(self) -> int:
        """Flushes that began."""
        return self.request_flushes + self.timer_flushes + self.size_flushes

    def figures(self) -> dict[str, int | float | str]:
        """Return all by name, as JSON and Prometheus take them."""
        return {**asdict(self), "phase": self.phase.value, "flushes": self.flushes}
