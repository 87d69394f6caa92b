"""Functions for which a window needs all of its samples side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.errors import QueryError
from headrace.stores.timeseries.promql.counter_functions import WindowValues
from headrace.stores.timeseries.promql.step_matrix import Flags, Floats, Integers
from headrace.stores.timeseries.promql.windows import SampleWindows

BlockFunction = Callable[[Integers, Integers, Flags], Floats]
"""Takes which windows, the places of their samples, and which places count; one value each."""


def _by_blocks(windows: SampleWindows, present: Flags, function: BlockFunction) -> WindowValues:
    values = np.zeros(present.size)
    for which, places, inside in windows.blocks(present):
        values[which] = function(which, places, inside)
    return values.reshape(present.shape), present


def stdvar(windows: SampleWindows) -> WindowValues:
    def variance(which: Integers, places: Integers, inside: Flags) -> Floats:
        values = windows.values[places]
        count = inside.sum(axis=1)
        # Distances from the first sample are exactly zero where all samples are equal.
        shifted = np.where(inside, values - values[:, :1], 0.0)
        mean = shifted.sum(axis=1) / count
        squares = np.where(inside, (shifted - mean[:, None]) ** 2, 0.0)
        variances = np.asarray(squares.sum(axis=1) / count)
        # Prometheus adds with a compensation, which is no number once squares are too large.
        return np.where(np.isinf(variances), np.nan, variances)

    return _by_blocks(windows, windows.counts > 0, variance)


def stddev(windows: SampleWindows) -> WindowValues:
    values, present = stdvar(windows)
    return np.sqrt(values), present


def quantile(rank: Floats, windows: SampleWindows) -> WindowValues:
    def at_rank(which: Integers, places: Integers, inside: Flags) -> Floats:
        ranks = rank[which % windows.counts.shape[1]]
        return quantiles(np.where(inside, windows.values[places], np.nan), inside, ranks)

    return _by_blocks(windows, windows.counts > 0, at_rank)


def quantiles(values: Floats, inside: Flags, rank: Floats) -> Floats:
    """Return the quantile of each row. NaN counts as less than all numbers."""
    count = inside.sum(axis=1)
    nans = (inside & np.isnan(values)).sum(axis=1)
    ascending = np.sort(np.where(inside, values, np.nan), axis=1)
    place = rank * (count - 1)
    whole = np.floor(np.where(np.isfinite(place), place, 0.0))
    lower = np.clip(whole, 0, count - 1).astype(np.int64)
    upper = np.minimum(lower + 1, count - 1)
    weight = place - np.floor(place)
    rows = np.arange(len(values))

    def value_at(index: Integers) -> Floats:
        found = ascending[rows, np.maximum(index - nans, 0)]
        return np.where(index < nans, np.nan, found)

    result = value_at(lower) * (1 - weight) + value_at(upper) * weight
    result = np.where(rank < 0, -np.inf, np.where(rank > 1, np.inf, result))
    return np.where(np.isnan(rank), np.nan, result)


def mad(windows: SampleWindows) -> WindowValues:
    def deviation(which: Integers, places: Integers, inside: Flags) -> Floats:
        values = windows.values[places]
        half = np.full(len(which), 0.5)
        middle = quantiles(values, inside, half)
        return quantiles(np.abs(values - middle[:, None]), inside, half)

    return _by_blocks(windows, windows.counts > 0, deviation)


def deriv(windows: SampleWindows) -> WindowValues:
    def slopes(which: Integers, places: Integers, inside: Flags) -> Floats:
        times = windows.timestamps[places]
        return _line(times - times[:, :1], windows.values[places], inside)[0]

    return _by_blocks(windows, windows.counts >= 2, slopes)


def predict_linear(windows: SampleWindows, seconds: Floats) -> WindowValues:
    def predictions(which: Integers, places: Integers, inside: Flags) -> Floats:
        step = which % windows.counts.shape[1]
        elapsed = windows.timestamps[places] - windows.evaluated_ms[step, None]
        slope, height = _line(elapsed, windows.values[places], inside)
        return np.asarray(slope * seconds[step] + height)

    return _by_blocks(windows, windows.counts >= 2, predictions)


def _line(elapsed_ms: Integers, values: Floats, inside: Flags) -> tuple[Floats, Floats]:
    """Return slope and height at zero of the line that fits each row best."""
    count = inside.sum(axis=1)
    x = np.where(inside, elapsed_ms / 1000, 0.0)
    y = np.where(inside, values, 0.0)
    sum_x, sum_y = x.sum(axis=1), y.sum(axis=1)
    covariance = (x * y).sum(axis=1) - sum_x * sum_y / count
    variance = (x * x).sum(axis=1) - sum_x * sum_x / count
    slope = covariance / variance
    height = sum_y / count - slope * sum_x / count
    constant = (~inside | (values == values[:, :1])).all(axis=1)
    level = np.where(np.isinf(values[:, 0]), np.nan, values[:, 0])
    flat = np.where(np.isnan(level), np.nan, 0.0)
    return np.where(constant, flat, slope), np.where(constant, level, height)


def smoothed(windows: SampleWindows, smoothing: Floats, trend: Floats) -> WindowValues:
    """Return the last value of Holt's double exponential smoothing of each window."""
    for name, factor in (("smoothing", smoothing), ("trend", trend)):
        wrong = (factor <= 0) | (factor >= 1)
        if wrong.any():
            raise QueryError(
                f"invalid {name} factor {factor[wrong][0]:g}", do="use one between 0 and 1"
            )

    def last_level(which: Integers, places: Integers, inside: Flags) -> Floats:
        step = which % windows.counts.shape[1]
        keep, turn = smoothing[step], trend[step]
        values = windows.values[places]
        before = level = values[:, 0]
        slope = values[:, 1] - level
        for column in range(1, values.shape[1]):
            if column > 1:
                newer_slope = turn * (level - before) + (1 - turn) * slope
                slope = np.where(inside[:, column], newer_slope, slope)
            newer = keep * values[:, column] + (1 - keep) * (level + slope)
            before, level = level, np.where(inside[:, column], newer, level)
        return level

    return _by_blocks(windows, windows.counts >= 2, last_level)
