"""Reports that wait until the consumer asks for a checkpoint. Pure.

A report is about one lane: it has the progress of journals of one priority. The Session takes the
reports of a lane in the order in which they came, and those of an earlier lane before those of a
later one. So a document of high priority does not wait for a backlog of low priority that was
reported before it. That tears no transaction: a cohort, and so every transaction within it, lies
in one lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.shuffle.progress_delta import ProgressReport

_REPORT_ROWS = 8
"""A report takes as much memory, beside its rows, as this many rows."""


class ReportQueue:
    """Each lane may hold an equal share of `rows_max`."""

    def __init__(self, lanes: int, rows_max: int) -> None:
        self._reports: list[deque[ProgressReport]] = [deque() for _ in range(lanes)]
        self._rows = [0] * lanes
        self._lane_rows_max = rows_max // lanes
        self._full: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return any(self._reports)

    def __len__(self) -> int:
        return sum(map(len, self._reports))

    @property
    def full_lanes(self) -> frozenset[int]:
        """Lanes that exceeded their share, until half of it is free again."""
        return self._full

    @property
    def overfull_lane(self) -> int | None:
        """The first lane that exceeds its share now."""
        over = (lane for lane, rows in enumerate(self._rows) if rows > self._lane_rows_max)
        return next(over, None)

    @property
    def first_lane(self) -> int:
        """The first lane that has a report; there must be one."""
        return next(lane for lane, reports in enumerate(self._reports) if reports)

    def has(self, lane: int) -> bool:
        return bool(self._reports[lane])

    def first_documents(self) -> int:
        """How many documents the next report committed; there must be one."""
        return self._reports[self.first_lane][0].documents

    def put(self, lane: int, delta: ProgressReport) -> None:
        self._reports[lane].append(delta)
        self._rows[lane] += _REPORT_ROWS + delta.rows
        if self._rows[lane] > self._lane_rows_max:
            self._full |= {lane}

    def take(self, lane: int) -> ProgressReport:
        """Remove and return the next report of a lane, which must have one."""
        delta = self._reports[lane].popleft()
        self._rows[lane] -= _REPORT_ROWS + delta.rows
        if self._rows[lane] <= self._lane_rows_max // 2:
            self._full -= {lane}
        return delta

    def validate(self, lane_of: Callable[[int], int]) -> None:
        """Assert what holds between events; `lane_of` returns the lane of a place."""
        for lane, reports in enumerate(self._reports):
            rows = self._rows[lane]
            assert rows == sum(_REPORT_ROWS + delta.rows for delta in reports), f"lane {lane}: rows"
            assert rows <= self._lane_rows_max or lane in self._full, f"lane {lane} is overfull"
            assert rows > self._lane_rows_max // 2 or lane not in self._full, f"lane {lane} is full"
            places = {place for delta in reports for place in delta.places()}
            assert all(lane_of(place) == lane for place in places), f"lane {lane}: foreign places"
