"""Quantiles of histograms whose buckets are series with the label `le`. Pure."""

from __future__ import annotations

import re

import numpy as np

from headrace.stores.timeseries.labels import METRIC
from headrace.stores.timeseries.promql.query_limits import QueryBudget
from headrace.stores.timeseries.promql.step_matrix import (
    Flags,
    Floats,
    StepMatrix,
    empty_matrix,
)
from headrace.stores.timeseries.series import Labels

_NUMBER = re.compile(
    r"[+-]?(\d+(_?\d)*\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|infinity)", re.I
)


def histogram_quantile(rank: Floats, buckets: StepMatrix, budget: QueryBudget) -> StepMatrix:
    """Return a quantile of each histogram, as if values were spread evenly within a bucket."""
    rows: list[int] = []
    bounds: list[float] = []
    ids: dict[Labels, int] = {}
    groups: list[int] = []
    for row, labels in enumerate(buckets.labels):
        bound = _bound(dict(labels).get("le", ""))
        if bound is not None:
            kept = tuple(pair for pair in labels if pair[0] not in {"le", METRIC})
            rows.append(row)
            bounds.append(bound)
            groups.append(ids.setdefault(kept, len(ids)))
    if not rows:
        return empty_matrix(buckets.present.shape[1])
    counts, present, uppers = _bucket_grid(buckets, rows, groups, bounds, budget)
    with np.errstate(all="ignore"):
        values = _quantile(rank, counts, present, uppers)
    return StepMatrix(list(ids), values, np.asarray(present.any(axis=1))).pruned()


def _bound(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _bucket_grid(
    buckets: StepMatrix,
    rows: list[int],
    groups: list[int],
    bounds: list[float],
    budget: QueryBudget,
) -> tuple[Floats, Flags, Floats]:
    """Lay out counts and presence by (group, bucket, step), and upper bounds by (group, bucket).

    Buckets ascend; those with equal bounds are added up.
    """
    order = np.lexsort((bounds, groups))
    group_of, bound_of = np.array(groups)[order], np.array(bounds)[order]
    row_of = np.array(rows)[order]
    fresh_group = np.concatenate(([True], group_of[1:] != group_of[:-1]))
    fresh = fresh_group | np.concatenate(([True], bound_of[1:] != bound_of[:-1]))
    ordinal = np.cumsum(fresh) - 1
    place = ordinal - ordinal[fresh_group][np.cumsum(fresh_group) - 1]
    shape = (int(group_of[-1]) + 1, int(place.max()) + 1)
    budget.hold(shape[0] * shape[1], buckets.present.shape[1])
    uppers = np.full(shape, np.nan)
    uppers[group_of, place] = bound_of
    steps = buckets.present.shape[1]
    counts = np.zeros((*shape, steps))
    present = np.zeros((*shape, steps), dtype=np.bool_)
    own = buckets.present[row_of]
    np.add.at(counts, (group_of, place), np.where(own, buckets.values[row_of], 0.0))
    np.logical_or.at(present, (group_of, place), own)
    return counts, present, uppers


def _quantile(rank: Floats, counts: Floats, present: Flags, uppers: Floats) -> Floats:
    upper = np.where(present, uppers[:, :, None], -np.inf)
    highest = upper.max(axis=1)
    # Counts never fall from bucket to bucket; one that is not there repeats the one before.
    rising = np.maximum.accumulate(np.where(present, counts, -np.inf), axis=1)
    total = rising[:, -1]
    wanted = rank * total
    finite = present & np.isfinite(uppers)[:, :, None]
    reaches = finite & (rising >= wanted[:, None, :])
    inside = reaches.any(axis=1)
    bucket = reaches.argmax(axis=1)
    before_upper = np.concatenate(
        [np.full_like(upper[:, :1], -np.inf), np.maximum.accumulate(upper, axis=1)[:, :-1]], axis=1
    )
    before_count = np.concatenate([np.full_like(rising[:, :1], -np.inf), rising[:, :-1]], axis=1)
    end, begin = _at(upper, bucket), _at(before_upper, bucket)
    first = np.isneginf(begin)
    count_before = np.where(first, 0.0, _at(before_count, bucket))
    begin = np.where(first, 0.0, begin)
    share = (wanted - count_before) / (_at(rising, bucket) - count_before)
    value = begin + (end - begin) * share
    value = np.where(first & (end <= 0), end, value)
    last_finite = np.where(finite, uppers[:, :, None], -np.inf).max(axis=1)
    value = np.where(inside, value, last_finite)
    known = np.isposinf(highest) & (present.sum(axis=1) >= 2) & (total != 0)
    value = np.where(known, value, np.nan)
    value = np.where(rank < 0, -np.inf, np.where(rank > 1, np.inf, value))
    return np.where(np.isnan(rank), np.nan, value)


def _at(grid: Floats, bucket: np.ndarray) -> Floats:
    return np.asarray(np.take_along_axis(grid, bucket[:, None, :], axis=1)[:, 0])
