"""Operators between scalars and vectors, and which series they pair. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.errors import QueryError
from headrace.stores.timeseries.labels import METRIC
from headrace.stores.timeseries.promql.expression import BinaryOperation, SeriesMatch
from headrace.stores.timeseries.promql.step_matrix import (
    Flags,
    Floats,
    StepMatrix,
    empty_matrix,
    without_name,
)
from headrace.stores.timeseries.series import Labels


def _power(left: Floats, right: Floats) -> Floats:
    # numpy takes the square root for an exponent of 0.5, and that of -Inf is NaN.
    return np.where(np.isneginf(left) & (right == 0.5), np.inf, np.power(left, right))


_ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": _power,
    "atan2": np.arctan2,
}
_NAMED = frozenset({"atan2"})
"""Arithmetic after which series keep the name of their metric."""

_COMPARISONS: dict[str, Callable[[Floats, Floats], Flags]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def scalar_operation(operator: str, left: Floats, right: Floats) -> Floats:
    with np.errstate(all="ignore"):
        if operator in _ARITHMETIC:
            return _ARITHMETIC[operator](left, right)
        return _COMPARISONS[operator](left, right).astype(np.float64)


def combine_scalar(
    node: BinaryOperation, vector: StepMatrix, scalar: Floats, *, scalar_left: bool
) -> StepMatrix:
    left, right = (scalar, vector.values) if scalar_left else (vector.values, scalar)
    with np.errstate(all="ignore"):
        if node.operator in _ARITHMETIC:
            values = _ARITHMETIC[node.operator](left, right)
            labels = vector.labels if node.operator in _NAMED else without_name(vector.labels)
            return StepMatrix(labels, values, vector.present).merged()
        holds = _COMPARISONS[node.operator](left, right)
    if node.as_bool:
        values = holds.astype(np.float64)
        return StepMatrix(without_name(vector.labels), values, vector.present).merged()
    return StepMatrix(vector.labels, vector.values, vector.present & holds).pruned()


def combine(node: BinaryOperation, left: StepMatrix, right: StepMatrix) -> StepMatrix:
    if node.operator in {"and", "or", "unless"}:
        return _combine_sets(node, left, right)
    if not left.labels or not right.labels:
        return empty_matrix(left.present.shape[1])
    # `many` and `one` are the sides; one to one, the left is `many` and may still have only one.
    swapped = node.match.many == "right"
    many, one = (right, left) if swapped else (left, right)
    key = _match_key(node.match)
    ids: dict[Labels, int] = {}
    many_ids = np.array([ids.setdefault(key(each), len(ids)) for each in many.labels])
    one_ids = np.array([ids.setdefault(key(each), len(ids)) for each in one.labels])
    some = np.asarray(many.present.any(axis=0))
    _refuse_duplicates(node.match, one, one_ids, some, len(ids))
    many_rows, one_rows = _pairs(many_ids, one_ids)
    if not many_rows.size:
        return empty_matrix(left.present.shape[1])
    values, present = _pair_values(
        node,
        (one if swapped else many).values[one_rows if swapped else many_rows],
        (many if swapped else one).values[many_rows if swapped else one_rows],
        many.present[many_rows] & one.present[one_rows],
    )
    result_labels = _result_labels(node)
    labels = [
        result_labels(many.labels[i], one.labels[j])
        for i, j in zip(many_rows.tolist(), one_rows.tolist(), strict=True)
    ]
    _refuse_ambiguity(node.match, labels, many_ids[many_rows], present)
    return StepMatrix(labels, values, present).pruned().merged()


def _pair_values(
    node: BinaryOperation, left: Floats, right: Floats, present: Flags
) -> tuple[Floats, Flags]:
    with np.errstate(all="ignore"):
        if node.operator in _ARITHMETIC:
            return _ARITHMETIC[node.operator](left, right), present
        holds = _COMPARISONS[node.operator](left, right)
    if node.as_bool:
        return holds.astype(np.float64), present
    return left, present & holds


def _match_key(match: SeriesMatch) -> Callable[[Labels], Labels]:
    names = frozenset(match.labels)
    if match.on:
        return lambda labels: tuple(pair for pair in labels if pair[0] in names)
    ignored = names | {METRIC}
    return lambda labels: tuple(pair for pair in labels if pair[0] not in ignored)


def _pairs(many: np.ndarray, one: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of rows with equal ids, in the order of `many`."""
    order = np.argsort(one, kind="stable")
    begins = np.searchsorted(one[order], many, side="left")
    counts = np.searchsorted(one[order], many, side="right") - begins
    many_rows = np.repeat(np.arange(len(many)), counts)
    within = np.arange(len(many_rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return many_rows, order[np.repeat(begins, counts) + within]


def _result_labels(node: BinaryOperation) -> Callable[[Labels, Labels], Labels]:
    match = node.match
    drops_name = (node.operator in _ARITHMETIC and node.operator not in _NAMED) or node.as_bool
    names = frozenset(match.labels)
    included = frozenset(match.included)

    def labels(many: Labels, one: Labels) -> Labels:
        if not match.many:
            many = tuple(pair for pair in many if (pair[0] in names) == match.on)
        if included:
            kept = [pair for pair in many if pair[0] not in included]
            many = tuple(sorted(kept + [pair for pair in one if pair[0] in included]))
        if drops_name and not (METRIC in included and not node.as_bool):
            many = tuple(pair for pair in many if pair[0] != METRIC)
        return many

    return labels


def _refuse_duplicates(
    match: SeriesMatch, one: StepMatrix, ids: np.ndarray, some: Flags, groups: int
) -> None:
    """Refuse two series on the side of one that match the same series, at the same step."""
    if len(np.unique(ids)) == len(ids):
        return
    seen = np.zeros((groups, one.present.shape[1]), dtype=np.int64)
    np.add.at(seen, ids, one.present & some)
    twice = np.argwhere(seen > 1)
    if not twice.size:
        return
    group, step = twice[0]
    rows = np.flatnonzero((ids == group) & one.present[:, step])[:2].tolist()
    side = "left" if match.many == "right" else "right"
    names = ", ".join(format_labels(one.labels[row]) for row in rows)
    shared = _match_key(match)(one.labels[rows[0]])
    raise QueryError(
        f"found duplicate series for the match group {format_labels(shared)} on the {side} "
        f"hand-side of the operation: [{names}];many-to-many matching not allowed: matching "
        "labels must be unique on one side",
        do="match on more labels",
    )


def _refuse_ambiguity(
    match: SeriesMatch, labels: list[Labels], groups: np.ndarray, present: Flags
) -> None:
    """Refuse two results of one match group at one step, if nothing tells them apart."""
    keys: dict[object, int] = {}
    group_of = groups.tolist()
    if match.many:
        ids = [
            keys.setdefault((group, each), len(keys))
            for group, each in zip(group_of, labels, strict=True)
        ]
    else:
        ids = [keys.setdefault(group, len(keys)) for group in group_of]
    if len(keys) == len(ids):
        return
    seen = np.zeros((len(keys), present.shape[1]), dtype=np.int64)
    np.add.at(seen, np.array(ids), present)
    if not (seen > 1).any():
        return
    if match.many:
        raise QueryError(
            "multiple matches for labels: grouping labels must ensure unique matches",
            do="keep a label that tells the results apart",
        )
    raise QueryError(
        "multiple matches for labels: many-to-one matching must be explicit "
        "(group_left/group_right)",
        do="add group_left or group_right, or match on more labels",
    )


def _combine_sets(node: BinaryOperation, left: StepMatrix, right: StepMatrix) -> StepMatrix:
    key = _match_key(node.match)
    ids: dict[Labels, int] = {}
    left_ids = np.array([ids.setdefault(key(each), len(ids)) for each in left.labels], np.int64)
    right_ids = np.array([ids.setdefault(key(each), len(ids)) for each in right.labels], np.int64)
    if node.operator == "or":
        free = ~_any_of(left, left_ids, len(ids))[right_ids]
        rest = StepMatrix(right.labels, right.values, right.present & free)
        both = StepMatrix(
            [*left.labels, *rest.labels],
            np.concatenate([left.values, rest.values]),
            np.concatenate([left.present, rest.present]),
        )
        return both.pruned().merged()
    matched = _any_of(right, right_ids, len(ids))[left_ids]
    kept = matched if node.operator == "and" else ~matched
    return StepMatrix(left.labels, left.values, left.present & kept).pruned()


def _any_of(matrix: StepMatrix, ids: np.ndarray, groups: int) -> Flags:
    found = np.zeros((groups, matrix.present.shape[1]), dtype=np.bool_)
    np.logical_or.at(found, ids, matrix.present)
    return found


def format_labels(labels: Labels) -> str:
    """Print labels as PromQL writes them."""
    inside = ", ".join(f'{name}="{_quoted(value)}"' for name, value in labels)
    return "{" + inside + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
