"""Flushes that are under way, one for each lane. Pure.

A lane is not held up by the Flush of another: that may wait, at some Queue, until what other Slices
have in the lanes before it is written.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import REPORT, ProtocolError
from headrace.shuffle.progress_delta import Delta


class _Flush(NamedTuple):
    lane: int
    delta: Delta
    unanswered: set[int]


class Flushing:
    def __init__(self, members: int) -> None:
        self._members = members
        self._numbers = 0
        self._flushes: dict[int, _Flush] = {}
        self._busy: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._flushes)

    def is_busy(self, lane: int) -> bool:
        return lane in self._busy

    def start(self, lane: int, delta: Delta) -> int:
        """The number of a new Flush; when it is answered by everybody, the delta is reported."""
        self._numbers += 1
        self._flushes[self._numbers] = _Flush(lane, delta, set(range(self._members)))
        self._busy.add(lane)
        return self._numbers

    def answered(self, member: int, number: int) -> Delta | None:
        """By one Queue; what to report if it was the last."""
        found = self._flushes.get(number)
        if found is None or member not in found.unanswered:
            raise ProtocolError(
                f"member {member} answered Flush {number}, not asked for", do=REPORT
            )
        found.unanswered.discard(member)
        if found.unanswered:
            return None
        del self._flushes[number]
        self._busy.discard(found.lane)
        return found.delta
