"""Histories of a workspace's log: what the simulator emitted, rewritten in part."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from headrace.journal.local import records
from headrace.journal.local.index import Index
from headrace.journal.local.records import Docs, Record
from headrace.journal.local.state import OwnerState
from tests.journal.local.simulator import Simulator, durable


class Placed(NamedTuple):
    position: int
    record: Record
    body_bytes: int

    @property
    def end(self) -> int:
        return self.position + len(records.encode(self.record)) + self.body_bytes


class Replay:
    """The state and index after a log, or after its beginning."""

    def __init__(self, state: OwnerState | None = None, index: Index | None = None) -> None:
        self.state = state or OwnerState()
        self.index = index or Index()

    def take(self, log: list[Placed]) -> Replay:
        for position, record, body_bytes in log:
            self.state.apply(record, body_bytes)
            self.index.apply(record, position, body_bytes)
        return self

    def image(self) -> dict[str, Any]:
        journals = {
            id: (j.name, j.collection, j.begin, j.head, *map(list, (j.offsets, j.positions)),
                 *map(list, (j.clocks, j.rows)))
            for id, j in self.index.journals.items()
        }  # fmt: skip
        return {
            "state": durable(self.state),
            "journals": journals,
            "collections": self.index.collections,
            "last_holder": self.state.last_holder,
        }


def history(seed: int, steps: int = 100) -> list[Placed]:
    """Return a random log; some records are moved to its end, as rewriting does."""
    rng = Random(seed)
    simulator = Simulator(seed)
    simulator.run(steps)
    log: list[Placed] = []
    for record, body_bytes, _ in simulator.log:
        _place(log, record, body_bytes)
        if len(log) % 20 == 0:
            index = Replay().take(log).index
            for old in rng.sample(log, 5):
                if isinstance(old.record, records.Docs | records.AckTable):
                    data = memoryview(records.encode(old.record) + bytes(old.body_bytes))
                    moved, _, body = records.moved_copy(data, index.holds)
                    _place(log, moved, len(body) if isinstance(moved, Docs) else 0)
    return log


def _place(log: list[Placed], record: Record, body_bytes: int) -> None:
    log.append(Placed(log[-1].end if log else 32, record, body_bytes))
