"""Reads what the selectors of a query name from its source, each thing once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.stores.timeseries.promql.expression import (
    Anchor,
    EvaluationEdge,
    InstantSelector,
    RangeSelector,
)
from headrace.stores.timeseries.promql.query_limits import QueryBudget
from headrace.stores.timeseries.promql.step_matrix import StepMatrix, Steps
from headrace.stores.timeseries.promql.windows import (
    SampleWindows,
    is_stale,
    live_samples,
    make_windows,
    samples_until,
)
from headrace.stores.timeseries.series import (
    LabelMatcher,
    Labels,
    SampleSource,
    SelectedSeries,
)


class SelectorReader:
    """Reads for one query, of which `@ start()` and `@ end()` mean the start and the end."""

    def __init__(
        self, source: SampleSource, budget: QueryBudget, start_ms: int, end_ms: int
    ) -> None:
        self._source = source
        self._budget = budget
        self._edges = {EvaluationEdge.START: start_ms, EvaluationEdge.END: end_ms}
        self._found: dict[tuple[tuple[LabelMatcher, ...], int, int], SelectedSeries] = {}

    def reference(self, steps: Steps, offset_ms: int, at: Anchor) -> Steps:
        """Return the moments that a selector means at these steps: only one if it has an `@`."""
        if at is None:
            return Steps(steps.start_ms - offset_ms, steps.step_ms, steps.count)
        if isinstance(at, EvaluationEdge):
            at = self._edges[at]
        return Steps(at - offset_ms, 1, 1)

    def newest(self, node: InstantSelector, steps: Steps) -> tuple[StepMatrix, StepMatrix]:
        """Return the newest sample of each series at each step, and its time in seconds."""
        lookback = self._budget.limits.lookback_ms
        moments = self.reference(steps, node.offset_ms, node.at)
        series = self._read(node.matchers, moments.start_ms - lookback, moments.end_ms)
        self._budget.hold(len(series.labels), steps.count)
        ends = samples_until(series, moments)
        there = ends > series.offsets[:-1, None]
        last = np.maximum(ends - 1, 0)
        if not series.values.size:
            nothing = np.zeros((0, steps.count))
            empty = StepMatrix([], nothing, nothing > 0)
            return empty, empty
        times, values = series.timestamps[last], series.values[last]
        there &= times >= moments.times - lookback
        there &= ~is_stale(values)
        shape = (len(series.labels), steps.count)
        present = np.broadcast_to(there, shape)
        return (
            StepMatrix(series.labels, np.broadcast_to(values, shape), present),
            StepMatrix(series.labels, np.broadcast_to(times / 1000, shape), present),
        )

    def windows(self, node: RangeSelector, steps: Steps) -> tuple[Sequence[Labels], SampleWindows]:
        moments = self.reference(steps, node.offset_ms, node.at)
        series = self.samples(node, moments)
        self._budget.hold(len(series.labels), steps.count)
        return series.labels, make_windows(series, moments, node.range_ms, steps.times)

    def samples(self, node: RangeSelector, moments: Steps) -> SelectedSeries:
        """Return all samples that a window sees at one of these moments, without markers."""
        start = moments.start_ms - node.range_ms
        return live_samples(self._read(node.matchers, start, moments.end_ms))

    def _read(self, matchers: tuple[LabelMatcher, ...], start: int, end: int) -> SelectedSeries:
        key = (matchers, start, end)
        if key not in self._found:
            left = self._budget.samples_left
            found = self._source.select(matchers, start, end, left)
            self._budget.read(found.values.size)
            self._found[key] = found
        self._budget.check_time()
        return self._found[key]
