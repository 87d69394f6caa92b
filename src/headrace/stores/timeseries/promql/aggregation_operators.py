"""sum, topk and the other operators that make few series of many. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.errors import QueryError
from headrace.stores.timeseries.labels import METRIC
from headrace.stores.timeseries.promql.expression import AggregateCall
from headrace.stores.timeseries.promql.label_functions import check_label_name
from headrace.stores.timeseries.promql.query_limits import QueryBudget
from headrace.stores.timeseries.promql.sample_statistics import quantiles
from headrace.stores.timeseries.promql.step_matrix import (
    Flags,
    Floats,
    StepMatrix,
    empty_matrix,
)
from headrace.stores.timeseries.series import Labels


class GroupedRows:
    """A matrix with its rows sorted by group; within a group they keep their order."""

    def __init__(self, matrix: StepMatrix, group_of: Sequence[int], groups: int) -> None:
        order = np.argsort(group_of, kind="stable")
        self.group_of = np.asarray(group_of, dtype=np.int64)[order]
        self.matrix = StepMatrix(
            [matrix.labels[row] for row in order.tolist()],
            matrix.values[order],
            matrix.present[order],
        )
        self.starts = np.searchsorted(self.group_of, np.arange(groups))
        self.counts = self.reduce(np.add, self.matrix.present.astype(np.int64))

    @property
    def values(self) -> Floats:
        return self.matrix.values

    @property
    def present(self) -> Flags:
        return self.matrix.present

    def reduce(self, ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
        return np.asarray(ufunc.reduceat(values, self.starts, axis=0))

    def filled(self, value: float) -> Floats:
        return np.where(self.present, self.values, value)


def _sum(rows: GroupedRows) -> Floats:
    return rows.reduce(np.add, rows.filled(0.0))


def _avg(rows: GroupedRows) -> Floats:
    sums = _sum(rows)
    means = np.asarray(sums / rows.counts)
    overflown = np.isinf(sums)
    if overflown.any():
        parts = rows.reduce(np.add, rows.filled(0.0) * 2.0**-64)
        means[overflown] = (parts / rows.counts * 2.0**64)[overflown]
    return means


def _stdvar(rows: GroupedRows) -> Floats:
    # Distances from one value of the group are exactly zero where all values are equal.
    first = rows.reduce(np.fmax, rows.filled(np.nan))[rows.group_of]
    distances = np.where(rows.present, rows.values - first, 0.0)
    means = (rows.reduce(np.add, distances) / rows.counts)[rows.group_of]
    squares = np.where(rows.present, (distances - means) ** 2, 0.0)
    variance = rows.reduce(np.add, squares) / rows.counts
    return np.where(rows.counts == 1, 0.0, variance)


def _stddev(rows: GroupedRows) -> Floats:
    return np.asarray(np.sqrt(_stdvar(rows)))


def _extreme(ufunc: np.ufunc) -> Callable[[GroupedRows], Floats]:
    return lambda rows: rows.reduce(ufunc, rows.filled(np.nan))


def _count(rows: GroupedRows) -> Floats:
    return rows.counts.astype(np.float64)


def _group(rows: GroupedRows) -> Floats:
    return np.ones(rows.counts.shape)


_PLAIN: dict[str, Callable[[GroupedRows], Floats]] = {
    "sum": _sum,
    "avg": _avg,
    "min": _extreme(np.fmin),
    "max": _extreme(np.fmax),
    "count": _count,
    "group": _group,
    "stddev": _stddev,
    "stdvar": _stdvar,
}
_NAMES = frozenset({*_PLAIN, "quantile", "count_values", "topk", "bottomk"})


def aggregate(
    node: AggregateCall, inner: StepMatrix, parameter: Floats | str | None, budget: QueryBudget
) -> StepMatrix:
    if node.name not in _NAMES:
        raise QueryError(
            f"the aggregation {node.name} is not supported",
            do="see PromQL in docs/stores.md for those that are",
        )
    if node.name == "count_values":
        assert isinstance(parameter, str)
        check_label_name(parameter, "label name in count_values()")
        inner = _with_value_label(inner, parameter, budget)
        if not node.without and parameter not in node.labels:
            node = AggregateCall("count", node.inner, None, (*node.labels, parameter), node.without)
        else:
            node = AggregateCall("count", node.inner, None, node.labels, node.without)
    if node.name in {"topk", "bottomk"} and isinstance(parameter, np.ndarray):
        _check_limits(parameter)
    ids: dict[Labels, int] = {}
    keep = _grouping(node)
    group_of = [ids.setdefault(keep(labels), len(ids)) for labels in inner.labels]
    if not ids:
        return empty_matrix(inner.present.shape[1])
    rows = GroupedRows(inner, group_of, len(ids))
    with np.errstate(all="ignore"):
        if node.name in _PLAIN:
            return StepMatrix(list(ids), _PLAIN[node.name](rows), rows.counts > 0)
        if node.name == "quantile" and isinstance(parameter, np.ndarray):
            return StepMatrix(list(ids), _quantile(rows, parameter, budget), rows.counts > 0)
    assert isinstance(parameter, np.ndarray)
    return _extremes(rows, parameter, largest=node.name == "topk")


def _grouping(node: AggregateCall) -> Callable[[Labels], Labels]:
    names = frozenset(node.labels)
    if node.without:
        names |= {METRIC}
        return lambda labels: tuple(pair for pair in labels if pair[0] not in names)
    if not names:
        return lambda labels: ()
    return lambda labels: tuple(pair for pair in labels if pair[0] in names)


def _quantile(rows: GroupedRows, rank: Floats, budget: QueryBudget) -> Floats:
    """Sort each group's values at each step beside each other."""
    steps = rank.size
    groups = len(rows.starts)
    place = np.arange(len(rows.group_of)) - rows.starts[rows.group_of]
    shape = (groups, int(place.max()) + 1, steps)
    budget.hold(shape[0] * shape[1], steps)
    values, inside = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    values[rows.group_of, place], inside[rows.group_of, place] = rows.values, rows.present
    flat = (groups * steps, shape[1])
    found = quantiles(
        values.transpose(0, 2, 1).reshape(flat),
        inside.transpose(0, 2, 1).reshape(flat),
        np.tile(rank, groups),
    )
    return found.reshape(groups, steps)


def _check_limits(limits: Floats) -> None:
    """Raise QueryError if a limit is no 64-bit integer: at any step, whatever is there."""
    wrong = ~((limits > -(2.0**63)) & (limits < 2.0**63))
    if wrong.any():
        raise QueryError(f"Scalar value {limits[wrong][0]:g} overflows int64", do="use a number")


def _extremes(rows: GroupedRows, limits: Floats, *, largest: bool) -> StepMatrix:
    """Keep the series with the largest or smallest values of each group at each step."""
    limits = np.trunc(limits)
    values = -rows.values if largest else rows.values
    # NaN comes last, and what is not there after it.
    places = np.lexsort(
        (
            values,
            np.isnan(values),
            ~rows.present,
            np.broadcast_to(rows.group_of[:, None], values.shape),
        ),
        axis=0,
    )
    rank = np.empty_like(places)
    ordinals = np.arange(len(places)) - rows.starts[rows.group_of]
    np.put_along_axis(rank, places, np.broadcast_to(ordinals[:, None], places.shape), axis=0)
    kept = StepMatrix(rows.matrix.labels, rows.values, rows.present & (rank < limits))
    if values.shape[1] == 1:
        kept = kept.rows(places[:, 0])
    return kept.pruned()


def _with_value_label(inner: StepMatrix, name: str, budget: QueryBudget) -> StepMatrix:
    """Make one row of each series and value, with the value as a label."""
    labels: list[Labels] = []
    sources: list[int] = []
    flags: list[Flags] = []
    for row, own in enumerate(inner.labels):
        others = tuple(pair for pair in own if pair[0] != name)
        bits = inner.values[row].view(np.int64)
        different = np.unique(bits[inner.present[row]])
        budget.hold(len(labels) + len(different), inner.present.shape[1])
        for found in different:
            text = format_value(float(np.int64(found).view(np.float64)))
            labels.append(tuple(sorted((*others, (name, text)))))
            sources.append(row)
            flags.append(inner.present[row] & (bits == found))
    if not labels:
        return empty_matrix(inner.present.shape[1])
    return StepMatrix(labels, inner.values[sources], np.array(flags))


def format_value(value: float) -> str:
    """Print a number without an exponent, with the fewest digits that mean it."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return np.format_float_positional(value, unique=True, trim="-")
