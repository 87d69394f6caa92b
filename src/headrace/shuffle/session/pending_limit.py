"""How many transactions may be pending, and which journals wait while too many are. Pure.

Transactions are pending because a journal that they wait for is behind. So Slices hold back the
journals that are ahead, and go on with those that transactions wait for. There is always one of
them, and once a Slice has read that far its transactions are complete. If none of them has more to
read, because no journal has the ACKs, no journal waits: the horizon applies only if clocks go on.
The hard limit ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.errors import QueueFullError, StorageError
from headrace.ids import Producer, format_producer
from headrace.shuffle.session.pending_transactions import AckLookup, PendingTransactions, PlaceOf

PENDING_MAX = 1 << 16
_HARD_SHARE = 4
_BEHIND_MAX = 256
"""At most this many journals catch up at a time."""


class PendingLimit:
    """Above `pending_max` transactions, and until half of them are left, journals wait."""

    def __init__(
        self, transactions: PendingTransactions, pending_max: int, hard_max: int | None
    ) -> None:
        self._pending = transactions
        self._max = pending_max
        self._hard_max = hard_max or _HARD_SHARE * pending_max
        self._is_reached = False

    def check(self, find: AckLookup, waiting: Callable[[], Iterator[tuple[Producer, str]]]) -> None:
        """Count the transactions that `settle` left. Raises if they are above the hard limit.

        `waiting` yields producers, each with the journal that it waits for.
        """
        count = len(self._pending)
        self._is_reached = count > (self._max // 2 if self._is_reached else self._max)
        if count <= self._hard_max:
            return
        producer, journal = next(waiting())
        what = (
            f"{count} transactions are pending: producer {format_producer(producer)} waits for"
            f" an ACK in {journal}"
        )
        if self._pending.places_behind(find, 1):
            raise QueueFullError(what, do="retry once that journal can be read")
        raise StorageError(
            what,
            do="find out why it is missing, or set a shorter horizon_s: a retry will not help",
        )

    def behind(
        self, find: AckLookup, place_of: PlaceOf, lane_of: Callable[[int], int]
    ) -> dict[int, tuple[int, ...]]:
        """Return, by lane, the places that go on while others wait; nothing while none waits."""
        by_lane: dict[int, list[int]] = {}
        for hinted in self._pending.places_behind(find, _BEHIND_MAX) if self._is_reached else ():
            place = place_of(*hinted)
            assert place is not None, "a journal that has more to read is read"
            by_lane.setdefault(lane_of(place), []).append(place)
        return {lane: tuple(sorted(places)) for lane, places in sorted(by_lane.items())}
