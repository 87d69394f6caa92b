"""Values of series at the steps of a query: one row a series, one column a step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.errors import QueryError
from headrace.stores.timeseries.labels import METRIC
from headrace.stores.timeseries.series import Labels, SelectedSeries

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Steps:
    """The moments at which a query is evaluated."""

    start_ms: int
    step_ms: int
    count: int

    @property
    def times(self) -> Integers:
        return self.start_ms + self.step_ms * np.arange(self.count, dtype=np.int64)

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.step_ms * (self.count - 1)


@dataclass(frozen=True, slots=True)
class StepMatrix:
    """`values[i, k]` is the value of series i at step k, if `present[i, k]`."""

    labels: Sequence[Labels]
    values: Floats
    present: Flags

    def rows(self, chosen: npt.NDArray[np.intp]) -> StepMatrix:
        labels = [self.labels[row] for row in chosen.tolist()]
        return StepMatrix(labels, self.values[chosen], self.present[chosen])

    def pruned(self) -> StepMatrix:
        """Leave out series that have no value at any step."""
        alive = self.present.any(axis=1)
        return self if alive.all() else self.rows(np.flatnonzero(alive))

    def merged(self) -> StepMatrix:
        """Make rows with equal labels one. Raises QueryError if two have a value at one step."""
        ids: dict[Labels, int] = {}
        groups = [ids.setdefault(labels, len(ids)) for labels in self.labels]
        if len(ids) == len(groups):
            return self
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(np.asarray(groups)[order], np.arange(len(ids)))
        counts = np.add.reduceat(self.present[order].astype(np.int64), starts, axis=0)
        if (counts > 1).any():
            raise same_labels()
        values = np.add.reduceat(np.where(self.present, self.values, 0.0)[order], starts, axis=0)
        return StepMatrix(list(ids), values, counts > 0)

    def distinct(self) -> StepMatrix:
        """Leave out series without a value. Raises QueryError if two series have equal labels."""
        matrix = self.pruned()
        if len(set(matrix.labels)) < len(matrix.labels):
            raise same_labels()
        return matrix

    def nameless(self) -> StepMatrix:
        return StepMatrix(without_name(self.labels), self.values, self.present)

    def samples(self, steps: Steps) -> SelectedSeries:
        """Return the values that are there, series by series."""
        offsets = np.zeros(len(self.labels) + 1, dtype=np.int64)
        np.cumsum(np.count_nonzero(self.present, axis=1), out=offsets[1:])
        times = np.broadcast_to(steps.times, self.present.shape)
        return SelectedSeries(self.labels, offsets, times[self.present], self.values[self.present])


def same_labels() -> QueryError:
    return QueryError(
        "vector cannot contain metrics with the same labelset",
        do="keep a label that tells them apart",
    )


def without_name(labels: Sequence[Labels]) -> list[Labels]:
    return [_without_name(each) for each in labels]


def _without_name(labels: Labels) -> Labels:
    if labels and labels[0][0] == METRIC:
        return labels[1:]
    return tuple(pair for pair in labels if pair[0] != METRIC)


def empty_matrix(count: int) -> StepMatrix:
    return StepMatrix([], np.empty((0, count)), np.empty((0, count), dtype=np.bool_))
