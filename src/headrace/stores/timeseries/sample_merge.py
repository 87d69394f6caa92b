"""Brings samples of the same series together: by time, and of each time only the last. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.errors import QueryError
from headrace.stores.timeseries.series import Labels, SelectedSeries

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def check_samples_max(samples: int, samples_max: int) -> None:
    """Raise QueryError if a query would take more samples than it may."""
    if samples > samples_max:
        raise QueryError(
            f"the query needs {samples} samples or more, and at most {samples_max} are allowed",
            do="ask for less time or fewer series, or raise the limit",
        )


def no_series() -> SelectedSeries:
    return SelectedSeries([], np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))


def merge_samples(parts: Sequence[SelectedSeries]) -> SelectedSeries:
    """Return the series of all parts, sorted by labels. At the same time, the later part counts.

    Within a part, too, the last of the samples at the same time counts, and any order is allowed.
    """
    names = sorted({labels for part in parts for labels in part.labels})
    rank = {labels: position for position, labels in enumerate(names)}
    ranks = [_sample_ranks(part, rank) for part in parts]
    if not ranks:
        return no_series()
    order, starts = sort_samples(
        np.concatenate(ranks), np.concatenate([part.timestamps for part in parts])
    )
    times = np.concatenate([part.timestamps for part in parts])[order]
    values = np.concatenate([part.values for part in parts])[order]
    sorted_ranks = np.concatenate(ranks)[order]
    present = sorted_ranks[starts]
    offsets = np.append(starts, len(times)).astype(np.int64)
    return SelectedSeries([names[each] for each in present], offsets, times, values)


def sort_samples(ranks: Ints, timestamps: Ints) -> tuple[Ints, Ints]:
    """Return which samples count, by series and time, and where each series starts among them.

    `ranks` are small numbers ≥ 0 that name the series. Of samples of a series at the same time
    the last one counts.
    """
    if not len(ranks):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first = int(timestamps.min())
    span = int(timestamps.max()) - first + 1
    if (int(ranks.max()) + 1) * span < 1 << 62:
        keys = ranks * span + (timestamps - first)
        if np.all(keys[1:] > keys[:-1]):
            order = np.arange(len(keys), dtype=np.int64)
        else:
            order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
            keys = keys[order]
            is_last = np.append(keys[1:] != keys[:-1], True)
            order = order if is_last.all() else order[is_last]
    else:
        order = np.lexsort((timestamps, ranks)).astype(np.int64, copy=False)
        times, names = timestamps[order], ranks[order]
        is_last = np.append((times[1:] != times[:-1]) | (names[1:] != names[:-1]), True)
        order = order[is_last]
    sorted_ranks = ranks[order]
    starts = np.flatnonzero(np.diff(sorted_ranks, prepend=-1)).astype(np.int64, copy=False)
    return order, starts


def _sample_ranks(part: SelectedSeries, rank: dict[Labels, int]) -> Ints:
    ranks = np.fromiter((rank[labels] for labels in part.labels), np.int64, len(part.labels))
    return np.repeat(ranks, np.diff(part.offsets))
