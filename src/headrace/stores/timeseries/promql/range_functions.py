"""Functions of the samples in a window. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.stores.timeseries.promql.counter_functions import (
    WindowValues,
    changes,
    delta,
    idelta,
    increase,
    irate,
    rate,
    resets,
    window_reduce,
)
from headrace.stores.timeseries.promql.sample_statistics import (
    deriv,
    mad,
    predict_linear,
    quantile,
    smoothed,
    stddev,
    stdvar,
)
from headrace.stores.timeseries.promql.step_matrix import Floats
from headrace.stores.timeseries.promql.windows import SampleWindows

_CANCELLED = 1e-6
"""A sum this small beside its terms is added again with more precision, one term after another."""


def _sum(windows: SampleWindows) -> WindowValues:
    present = windows.counts > 0
    begins, ends = windows.begins[present], windows.ends[present]
    sums = window_reduce(np.add, windows.values, begins, ends)
    sizes = window_reduce(np.add, np.abs(windows.values), begins, ends)
    values = np.zeros(present.shape)
    values[present] = sums
    doubtful = np.zeros(present.shape, dtype=np.bool_)
    doubtful[present] = (np.abs(sums) < _CANCELLED * sizes) | (np.isnan(sums) & np.isinf(sizes))
    _sum_exactly(windows, doubtful, values)
    return values, present


def _sum_exactly(
    windows: SampleWindows, chosen: np.ndarray, values: Floats, factor: float = 1.0
) -> None:
    """Sum the samples times a factor with Neumaier's compensation."""
    flat = values.reshape(-1)
    for which, places, inside in windows.blocks(chosen):
        terms = np.where(inside, windows.values[places] * factor, 0.0)
        total, lost = np.zeros(len(which)), np.zeros(len(which))
        for term in terms.T:
            longer = total + term
            larger = np.abs(total) >= np.abs(term)
            lost += np.where(larger, (total - longer) + term, (term - longer) + total)
            total = longer
        flat[which] = np.where(np.isinf(total), total, total + lost)


def _avg(windows: SampleWindows) -> WindowValues:
    sums, present = _sum(windows)
    counts = np.maximum(windows.counts, 1)
    values = sums / counts
    overflown = present & ~np.isfinite(sums)
    if overflown.any():
        parts = np.zeros(sums.shape)
        _sum_exactly(windows, overflown, parts, 2.0**-64)
        values = np.where(overflown, parts / counts * 2.0**64, values)
    return values, present


def _extreme(ufunc: np.ufunc) -> Callable[[SampleWindows], WindowValues]:
    def reduce(windows: SampleWindows) -> WindowValues:
        present = windows.counts > 0
        values = np.zeros(present.shape)
        begins, ends = windows.begins[present], windows.ends[present]
        values[present] = window_reduce(ufunc, windows.values, begins, ends)
        return values, present

    return reduce


def _count(windows: SampleWindows) -> WindowValues:
    return windows.counts.astype(np.float64), windows.counts > 0


def _present(windows: SampleWindows) -> WindowValues:
    return np.ones(windows.counts.shape), windows.counts > 0


def _last(windows: SampleWindows) -> WindowValues:
    return windows.values[np.maximum(windows.ends - 1, 0)], windows.counts > 0


RANGE_FUNCTIONS: dict[str, Callable[..., WindowValues]] = {
    "rate": rate,
    "irate": irate,
    "increase": increase,
    "delta": delta,
    "idelta": idelta,
    "resets": resets,
    "changes": changes,
    "deriv": deriv,
    "predict_linear": predict_linear,
    "double_exponential_smoothing": smoothed,
    "holt_winters": smoothed,
    "sum_over_time": _sum,
    "avg_over_time": _avg,
    "min_over_time": _extreme(np.fmin),
    "max_over_time": _extreme(np.fmax),
    "count_over_time": _count,
    "present_over_time": _present,
    "absent_over_time": _present,
    "last_over_time": _last,
    "stddev_over_time": stddev,
    "stdvar_over_time": stdvar,
    "quantile_over_time": quantile,
    "mad_over_time": mad,
}
"""Each takes windows, and then for each step the values of its other arguments, in their order."""
