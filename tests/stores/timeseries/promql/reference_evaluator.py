"""Evaluates PromQL one step, one series and one sample after another, as its manual says.

This is slow and plain, and knows the main functions only. There are only Python's lists and dicts,
so that one can see that it is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np

from headrace.stores.timeseries.promql.expression import (
    AggregateCall,
    Anchor,
    BinaryOperation,
    EvaluationEdge,
    Expression,
    FunctionCall,
    InstantSelector,
    NumberNode,
    RangeSelector,
    SubqueryNode,
    UnaryMinus,
)
from headrace.stores.timeseries.series import LabelMatcher, Labels, MatchKind
from tests.stores.timeseries.promql.prometheus_server import Written
from tests.stores.timeseries.promql.reference_functions import (
    AGGREGATIONS,
    NAN,
    WINDOW_FUNCTIONS,
    Samples,
    quantile,
)
from tests.stores.timeseries.promql.sample_series import MINUTE, STALE

LOOKBACK_MS = 5 * MINUTE
Vector = dict[Labels, float]


class NoAnswerError(Exception):
    """A query that has no answer: two series would have the same labels, or match the same one."""


class ReferenceEvaluator:
    def __init__(self, series: Written, start_ms: int, end_ms: int) -> None:
        self._series = [(tuple(sorted(labels.items())), samples) for labels, samples in series]
        self._edges = {EvaluationEdge.START: start_ms, EvaluationEdge.END: end_ms}

    def evaluate(self, node: Expression, at: int) -> Any:
        """Return a Vector, or the number that a scalar is, at a moment."""
        match node:
            case NumberNode():
                return node.value
            case InstantSelector():
                return self._newest(node, at)
            case UnaryMinus():
                inner = self.evaluate(node.inner, at)
                return -inner if isinstance(inner, float) else _each(inner, lambda value: -value)
            case AggregateCall():
                parameter = node.parameter and self.evaluate(node.parameter, at)
                return _aggregate(node, parameter, self.evaluate(node.inner, at))
            case BinaryOperation():
                return _combine(node, self.evaluate(node.left, at), self.evaluate(node.right, at))
            case FunctionCall(name="time"):
                return at / 1000
            case FunctionCall(name="scalar"):
                values = list(self.evaluate(node.arguments[0], at).values())
                return values[0] if len(values) == 1 else NAN
            case FunctionCall():
                return self._window_call(node, at)
        raise NotImplementedError(str(node))

    def _moment(self, at: int, anchor: Anchor, offset_ms: int) -> int:
        if isinstance(anchor, EvaluationEdge):
            return self._edges[anchor] - offset_ms
        return (at if anchor is None else anchor) - offset_ms

    def _matching(self, matchers: Sequence[LabelMatcher]) -> list[tuple[Labels, Samples]]:
        def is_chosen(labels: Labels) -> bool:
            return all(_matches(each, dict(labels)) for each in matchers)

        return [each for each in self._series if is_chosen(each[0])]

    def _newest(self, node: InstantSelector, at: int) -> Vector:
        moment = self._moment(at, node.at, node.offset_ms)
        found = {}
        for labels, samples in self._matching(node.matchers):
            seen = [sample for sample in samples if moment - LOOKBACK_MS <= sample[0] <= moment]
            if seen and not _is_stale(seen[-1][1]):
                found[labels] = seen[-1][1]
        return found

    def _window_call(self, node: FunctionCall, at: int) -> Vector:
        window = node.arguments[-1]
        assert isinstance(window, RangeSelector | SubqueryNode)
        moment = self._moment(at, window.at, window.offset_ms)
        function = WINDOW_FUNCTIONS[node.name]
        found = [
            (labels, function(samples, moment - window.range_ms, moment))
            for labels, samples in self._samples(window, moment)
        ]
        named = node.name == "last_over_time"
        return _collect(
            (labels if named else _nameless(labels), value)
            for labels, value in found
            if value is not None
        )

    def _samples(
        self, node: RangeSelector | SubqueryNode, end: int
    ) -> list[tuple[Labels, Samples]]:
        """Return the samples of a window that ends at a moment, of all series that have some."""
        start = end - node.range_ms
        if isinstance(node, RangeSelector):
            found = [
                (labels, [each for each in samples if start <= each[0] <= end])
                for labels, samples in self._matching(node.matchers)
            ]
            live = [(each, [s for s in some if not _is_stale(s[1])]) for each, some in found]
            return [(labels, samples) for labels, samples in live if samples]
        step = node.step_ms or MINUTE
        series: dict[Labels, list[tuple[int, float]]] = {}
        first = -(-start // step) * step  # Steps are multiples of their length.
        for at in range(first, end + 1, step):
            for labels, value in self.evaluate(node.inner, at).items():
                series.setdefault(labels, []).append((at, value))
        return list(series.items())


def _is_stale(value: float) -> bool:
    return np.float64(value).tobytes() == np.float64(STALE).tobytes()


def _matches(matcher: LabelMatcher, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    match matcher.kind:
        case MatchKind.EQUAL:
            return value == matcher.value
        case MatchKind.UNEQUAL:
            return value != matcher.value
        case MatchKind.MATCHES:
            return re.fullmatch(matcher.value, value) is not None
    return re.fullmatch(matcher.value, value) is None


def _nameless(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "__name__")


def _each(vector: Vector, function: Callable[[float], float]) -> Vector:
    return _collect((_nameless(labels), function(value)) for labels, value in vector.items())


def _collect(pairs: Iterable[tuple[Labels, float]]) -> Vector:
    """Raises NoAnswerError if labels come twice."""
    found: Vector = {}
    for labels, value in pairs:
        if labels in found:
            raise NoAnswerError(f"two series have the labels {labels}")
        found[labels] = value
    return found


def _aggregate(node: AggregateCall, parameter: Any, inner: Vector) -> Vector:
    groups: dict[Labels, Vector] = {}
    for labels, value in inner.items():
        kept = _nameless(labels) if node.without else labels
        group = tuple(pair for pair in kept if (pair[0] in node.labels) != node.without)
        groups.setdefault(group, {})[labels] = value
    found: Vector = {}
    for group, members in groups.items():
        if node.name in ("topk", "bottomk"):
            sign = -1 if node.name == "topk" else 1
            ordered = sorted(members, key=lambda labels: sign * members[labels])
            found |= {labels: members[labels] for labels in ordered[: max(0, int(parameter))]}
        elif node.name == "quantile":
            found[group] = quantile(parameter, list(members.values()))
        else:
            found[group] = AGGREGATIONS[node.name](list(members.values()))
    return found


ARITHMETIC: dict[str, np.ufunc] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
}
COMPARISONS = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def _combine(node: BinaryOperation, left: Any, right: Any) -> Any:
    """Combine two vectors, a vector and a number, or two numbers."""
    if isinstance(left, dict) and isinstance(right, dict):
        sets = node.operator in ("and", "or", "unless")
        return (_combine_sets if sets else _combine_vectors)(node, left, right)
    if isinstance(left, float) and isinstance(right, float):
        return _operate(node, left, right)
    if isinstance(left, dict):
        found = [(labels, own, _operate(node, own, right)) for labels, own in left.items()]
    else:
        found = [(labels, own, _operate(node, left, own)) for labels, own in right.items()]
    if node.operator in COMPARISONS and not node.as_bool:
        return {labels: own for labels, own, result in found if result is not None}
    return _collect((_nameless(labels), result) for labels, _, result in found)


def _combine_sets(node: BinaryOperation, left: Vector, right: Vector) -> Vector:
    lefts = {_match_key(node, labels) for labels in left}
    rights = {_match_key(node, labels) for labels in right}
    if node.operator == "or":
        added = ((k, value) for k, value in right.items() if _match_key(node, k) not in lefts)
        return _collect([*left.items(), *added])
    wanted = node.operator == "and"
    return {k: value for k, value in left.items() if (_match_key(node, k) in rights) == wanted}


def _operate(node: BinaryOperation, left: float, right: float) -> Any:
    """Return the value of one pair, or None where a comparison leaves nothing."""
    if node.operator in ARITHMETIC:
        with np.errstate(all="ignore"):
            return float(ARITHMETIC[node.operator](left, right))
    holds = COMPARISONS[node.operator](left, right)
    if node.as_bool:
        return float(holds)
    return left if holds else None


def _match_key(node: BinaryOperation, labels: Labels) -> Labels:
    named = node.match.labels
    if node.match.on:
        return tuple(pair for pair in labels if pair[0] in named)
    return tuple(pair for pair in _nameless(labels) if pair[0] not in named)


def _combine_vectors(node: BinaryOperation, left: Vector, right: Vector) -> Vector:
    if not left or not right:
        return {}
    swapped = node.match.many == "right"
    many, one = (right, left) if swapped else (left, right)
    _collect((_match_key(node, labels), 0.0) for labels in one)
    partners = {_match_key(node, labels): labels for labels in one}
    found, used = [], []
    for labels in many:
        key = _match_key(node, labels)
        if key in partners:
            sides = (partners[key], labels) if swapped else (labels, partners[key])
            result = _operate(node, left[sides[0]], right[sides[1]])
            if result is not None:
                used.append((key, 0.0))
                found.append((_result_labels(node, labels, partners[key]), result))
    if not node.match.many:
        _collect(used)
    return _collect(found)


def _result_labels(node: BinaryOperation, many: Labels, one: Labels) -> Labels:
    match = node.match
    kept = dict(many)
    if node.operator in ARITHMETIC or node.as_bool:
        kept.pop("__name__", None)
    if not match.many:
        kept = {name: value for name, value in kept.items() if (name in match.labels) == match.on}
    for name in match.included:
        kept.pop(name, None)
    kept |= {name: value for name, value in one if name in match.included}
    return tuple(sorted(kept.items()))
