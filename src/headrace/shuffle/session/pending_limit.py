"""How many transactions may be pending, and which journals wait while too many are. Pure.

Transactions are pending because some journal that they wait for is behind. So the journals that are
ahead wait, and those that transactions wait for go on: there is always one of them, and once it is
read that far its transactions are complete. If none has anything to read, because the ACKs stand
nowhere, nobody waits: clocks must go on for the horizon to apply. The hard limit ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.errors import QueueFullError, StorageError
from headrace.ids import JournalId, Producer, format_producer
from headrace.shuffle.session.pending_transactions import Find, PendingTransactions, PlaceOf

PENDING_MAX = 1 << 16
_HARD_SHARE = 4
_BEHIND_MAX = 256
"""At most this many journals catch up at a time."""


class PendingLimit:
    """From `pending_max` on, and until half of that is reached, those that are ahead wait."""

    def __init__(self, groups: PendingTransactions, pending_max: int, hard_max: int | None) -> None:
        self._groups = groups
        self._max = pending_max
        self._hard_max = hard_max or _HARD_SHARE * pending_max
        self._is_reached = False

    def check(self, find: Find, waiting: Callable[[], Iterator[tuple[Producer, str]]]) -> None:
        """After groups were settled; raises if there are too many. `waiting` names producers, each
        with the journal that it waits for."""
        pending = len(self._groups)
        self._is_reached = pending > (self._max // 2 if self._is_reached else self._max)
        if pending <= self._hard_max:
            return
        producer, journal = next(waiting())
        what = (
            f"{pending} transactions are pending: producer {format_producer(producer)} waits for"
            f" an ACK in {journal}"
        )
        if self._groups.behind(find, 1):
            raise QueueFullError(what, do="a retry helps, if that journal can be read by then")
        raise StorageError(
            what, do="a retry will not help: see why it is missing, or set a shorter horizon_s"
        )

    def behind(
        self, find: Find, place_of: PlaceOf, lane_of: Callable[[int], int]
    ) -> dict[int, tuple[int, ...]]:
        """By lane, the places that go on while others wait; empty while none waits."""
        by_lane: dict[int, list[int]] = {}
        for journal, binding in self._groups.behind(find, _BEHIND_MAX) if self._is_reached else ():
            at = place_of(JournalId(journal), binding)
            assert at is not None, "a journal that has more to read is read"
            by_lane.setdefault(lane_of(at), []).append(at)
        return {lane: tuple(sorted(places)) for lane, places in sorted(by_lane.items())}
