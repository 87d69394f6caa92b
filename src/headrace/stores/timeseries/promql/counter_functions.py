"""rate, increase and other functions of the first and last samples of a window. Pure."""

from __future__ import annotations

import numpy as np

from headrace.stores.timeseries.promql.step_matrix import Flags, Floats, Integers
from headrace.stores.timeseries.promql.windows import SampleWindows

WindowValues = tuple[Floats, Flags]
"""The value of each window, and which windows have one."""


def window_reduce(ufunc: np.ufunc, values: Floats, begins: Integers, ends: Integers) -> Floats:
    """Reduce values[begin:end] of each window, of which none may be empty."""
    if not begins.size:
        return np.empty(0)
    edges = np.empty(2 * begins.size, dtype=np.int64)
    edges[0::2] = begins
    edges[1::2] = ends
    if ends.max() >= values.size:
        values = np.append(values, 0.0)
    return np.asarray(ufunc.reduceat(values, edges)[::2], dtype=np.float64)


def rate(windows: SampleWindows) -> WindowValues:
    return _extrapolated(windows, is_counter=True, is_rate=True)


def increase(windows: SampleWindows) -> WindowValues:
    return _extrapolated(windows, is_counter=True, is_rate=False)


def delta(windows: SampleWindows) -> WindowValues:
    return _extrapolated(windows, is_counter=False, is_rate=False)


def _extrapolated(windows: SampleWindows, is_counter: bool, is_rate: bool) -> WindowValues:
    """Extend the growth between the first and the last sample to the edges of the window."""
    falls = _falls(windows.values) if is_counter else None
    growth = np.empty(windows.begins.shape)
    for rows in windows.row_blocks():
        growth[rows] = _block_growth(windows.rows(rows), falls, is_rate)
    return growth, windows.counts >= 2


def _block_growth(windows: SampleWindows, falls: Integers | None, is_rate: bool) -> Floats:
    """Return the extrapolated growth of each window; for a counter, where its values fall."""
    times, values = windows.timestamps, windows.values
    first = np.minimum(windows.begins, values.size - 1)
    last = np.maximum(windows.ends - 1, 0)
    first_values = values[first]
    growth = values[last] - first_values
    if falls is not None:
        _add_resets(windows, falls, growth)
    first_times, last_times = times[first], times[last]
    sampled = (last_times - first_times) / 1000
    average = sampled / (windows.counts - 1)
    to_start = (first_times - (windows.until_ms - windows.range_ms)) / 1000
    to_end = (windows.until_ms - last_times) / 1000
    if falls is not None:
        # A counter never was below zero: do not extend it to before it began.
        to_zero = sampled * (first_values / growth)
        grows = (growth > 0) & (first_values >= 0) & (to_zero < to_start)
        np.copyto(to_start, to_zero, where=grows)
    threshold = average * 1.1
    half = average / 2
    extended = sampled + np.where(to_start < threshold, to_start, half)
    extended += np.where(to_end < threshold, to_end, half)
    factor = extended / sampled
    if is_rate:
        factor /= windows.range_ms / 1000
    growth *= factor
    return growth


def _falls(values: Floats) -> Integers:
    """Return the places of samples that are less than the one before."""
    return np.flatnonzero(values[1:] < values[:-1]) + 1


def _add_resets(windows: SampleWindows, falls: Integers, growth: Floats) -> None:
    """Add what was lost each time that a counter began again."""
    if not falls.size:
        return
    # Falls lie after the first sample of a window, up to its last.
    before = np.searchsorted(falls, windows.begins, side="right")
    after = np.maximum(np.searchsorted(falls, windows.ends), before)
    affected = after > before
    lost = window_reduce(np.add, windows.values[falls - 1], before[affected], after[affected])
    growth[affected] += lost


def irate(windows: SampleWindows) -> WindowValues:
    return _last_two(windows, is_rate=True)


def idelta(windows: SampleWindows) -> WindowValues:
    return _last_two(windows, is_rate=False)


def _last_two(windows: SampleWindows, is_rate: bool) -> WindowValues:
    last = np.maximum(windows.ends - 1, 0)
    previous = np.maximum(windows.ends - 2, 0)
    newest, older = windows.values[last], windows.values[previous]
    change = newest - older
    if is_rate:
        change = np.where(newest < older, newest, change)
        change /= (windows.timestamps[last] - windows.timestamps[previous]) / 1000
    return change, windows.counts >= 2


def resets(windows: SampleWindows) -> WindowValues:
    values = windows.values
    return _events(windows, values[1:] < values[:-1])


def changes(windows: SampleWindows) -> WindowValues:
    newer, older = windows.values[1:], windows.values[:-1]
    return _events(windows, (newer != older) & ~(np.isnan(newer) & np.isnan(older)))


def _events(windows: SampleWindows, event_after: Flags) -> WindowValues:
    """Count the places in each window where something happens between a sample and the next."""
    seen = np.concatenate(([0], np.cumsum(event_after)))
    present = windows.counts > 0
    first = np.minimum(windows.begins, seen.size - 1)
    last = np.maximum(windows.ends - 1, 0)
    return (seen[last] - seen[first]).astype(np.float64), present
