"""Evaluates a query at all of its steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.errors import QueryError
from headrace.stores.timeseries.labels import METRIC
from headrace.stores.timeseries.promql.aggregation_operators import aggregate
from headrace.stores.timeseries.promql.binary_operators import (
    combine,
    combine_scalar,
    scalar_operation,
)
from headrace.stores.timeseries.promql.expression import (
    AggregateCall,
    BinaryOperation,
    Expression,
    FunctionCall,
    InstantSelector,
    NumberNode,
    RangeSelector,
    SubqueryNode,
    TextNode,
    UnaryMinus,
    is_scalar,
)
from headrace.stores.timeseries.promql.histograms import histogram_quantile
from headrace.stores.timeseries.promql.label_functions import label_join, label_replace
from headrace.stores.timeseries.promql.query_limits import QueryBudget
from headrace.stores.timeseries.promql.range_functions import RANGE_FUNCTIONS
from headrace.stores.timeseries.promql.selection import SelectorReader
from headrace.stores.timeseries.promql.step_matrix import (
    Floats,
    StepMatrix,
    Steps,
    empty_matrix,
    without_name,
)
from headrace.stores.timeseries.promql.value_functions import (
    CALENDAR_FUNCTIONS,
    VALUE_FUNCTIONS,
    calendar_value,
)
from headrace.stores.timeseries.promql.windows import SampleWindows, make_windows
from headrace.stores.timeseries.series import (
    LabelMatcher,
    Labels,
    MatchKind,
    SampleSource,
    SelectedSeries,
)


class Evaluation:
    """One evaluation of one query."""

    def __init__(
        self, source: SampleSource, budget: QueryBudget, start_ms: int, end_ms: int
    ) -> None:
        self._budget = budget
        self.reader = SelectorReader(source, budget, start_ms, end_ms)

    def vector(self, node: Expression, steps: Steps) -> StepMatrix:
        """Return the values of an instant vector at the steps."""
        self._budget.check_time()
        match node:
            case InstantSelector():
                return self.reader.newest(node, steps)[0].pruned()
            case FunctionCall():
                return self._call(node, steps)
            case AggregateCall():
                return self._aggregate(node, steps)
            case BinaryOperation():
                return self._binary(node, steps)
            case UnaryMinus():
                inner = self.vector(node.inner, steps).nameless()
                return StepMatrix(inner.labels, -inner.values, inner.present).distinct()
        raise _unexpected(node, "an instant vector")

    def scalar(self, node: Expression, steps: Steps) -> Floats:
        """Return the value of a scalar at each step."""
        match node:
            case NumberNode():
                return np.full(steps.count, node.value)
            case UnaryMinus():
                return -self.scalar(node.inner, steps)
            case BinaryOperation():
                left, right = self.scalar(node.left, steps), self.scalar(node.right, steps)
                return scalar_operation(node.operator, left, right)
            case FunctionCall(name="time"):
                return steps.times / 1000
            case FunctionCall(name="pi"):
                return np.full(steps.count, np.pi)
            case FunctionCall(name="scalar"):
                inner = self.vector(node.arguments[0], steps)
                alone = np.count_nonzero(inner.present, axis=0) == 1
                total = np.where(inner.present & alone, inner.values, 0.0).sum(axis=0)
                return np.where(alone, total, np.nan)
        raise _unexpected(node, "a scalar")

    def samples(self, node: Expression, steps: Steps) -> SelectedSeries:
        """Return the samples of a range vector at the only step."""
        if isinstance(node, RangeSelector):
            moments = self.reader.reference(steps, node.offset_ms, node.at)
            return self.reader.samples(node, moments)
        if isinstance(node, SubqueryNode):
            return self._subquery(node, self.reader.reference(steps, node.offset_ms, node.at))
        raise _unexpected(node, "a range vector")

    def _windows(self, node: Expression, steps: Steps) -> tuple[Sequence[Labels], SampleWindows]:
        if isinstance(node, RangeSelector):
            return self.reader.windows(node, steps)
        if isinstance(node, SubqueryNode):
            moments = self.reader.reference(steps, node.offset_ms, node.at)
            series = self._subquery(node, moments)
            self._budget.hold(len(series.labels), steps.count)
            return series.labels, make_windows(series, moments, node.range_ms, steps.times)
        raise _unexpected(node, "a range vector")

    def _subquery(self, node: SubqueryNode, moments: Steps) -> SelectedSeries:
        step = node.step_ms or self._budget.limits.subquery_step_ms
        start = -(-(moments.start_ms - node.range_ms) // step) * step
        count = (moments.end_ms - start) // step + 1
        if count <= 0:
            return empty_matrix(0).samples(Steps(0, 1, 0))
        self._budget.hold(1, count)
        inner = Steps(start, step, count)
        series = self.vector(node.inner, inner).samples(inner)
        self._budget.read(series.values.size)
        return series

    def _aggregate(self, node: AggregateCall, steps: Steps) -> StepMatrix:
        inner = self.vector(node.inner, steps)
        match node.parameter:
            case None:
                return aggregate(node, inner, None, self._budget)
            case TextNode(value):
                return aggregate(node, inner, value, self._budget)
        return aggregate(node, inner, self.scalar(node.parameter, steps), self._budget)

    def _binary(self, node: BinaryOperation, steps: Steps) -> StepMatrix:
        if is_scalar(node.left):
            scalar, right = self.scalar(node.left, steps), self.vector(node.right, steps)
            return combine_scalar(node, right, scalar, scalar_left=True)
        left = self.vector(node.left, steps)
        if is_scalar(node.right):
            return combine_scalar(node, left, self.scalar(node.right, steps), scalar_left=False)
        return combine(node, left, self.vector(node.right, steps))

    def _call(self, node: FunctionCall, steps: Steps) -> StepMatrix:
        name, arguments = node.name, node.arguments
        if name in RANGE_FUNCTIONS:
            return self._range_call(node, steps)
        if name in VALUE_FUNCTIONS:
            return self._value_call(node, steps)
        if name in CALENDAR_FUNCTIONS:
            if not arguments:
                return _one_series((), calendar_value(name, steps.times / 1000))
            inner = self.vector(arguments[0], steps).nameless()
            values = calendar_value(name, inner.values)
            return StepMatrix(inner.labels, values, inner.present).merged()
        match name:
            case "vector":
                return _one_series((), self.scalar(arguments[0], steps))
            case "timestamp":
                return self._timestamp(arguments[0], steps)
            case "absent":
                inner = self.vector(arguments[0], steps)
                return _absence(arguments[0], inner, steps)
            case "sort" | "sort_desc":
                return _sorted(self.vector(arguments[0], steps), descending=name == "sort_desc")
            case "histogram_quantile":
                rank = self.scalar(arguments[0], steps)
                return histogram_quantile(rank, self.vector(arguments[1], steps), self._budget)
            case "label_replace":
                texts = [_text(each) for each in arguments[1:]]
                return label_replace(self.vector(arguments[0], steps), *texts)
            case "label_join":
                texts = [_text(each) for each in arguments[1:]]
                return label_join(self.vector(arguments[0], steps), *texts)
        raise QueryError(
            f"the function {name} is not supported",
            do="see PromQL in docs/stores.md for those that are",
        )

    def _value_call(self, node: FunctionCall, steps: Steps) -> StepMatrix:
        inner = self.vector(node.arguments[0], steps).nameless()
        others = [self.scalar(each, steps) for each in node.arguments[1:]]
        present = inner.present
        if node.name == "clamp":
            present = present & ~(others[1] < others[0])
        with np.errstate(all="ignore"):
            values = VALUE_FUNCTIONS[node.name](inner.values, *others)
        return StepMatrix(inner.labels, values, present).merged().pruned()

    def _range_call(self, node: FunctionCall, steps: Steps) -> StepMatrix:
        labels: Sequence[Labels] = ()
        arguments: list[Floats | SampleWindows] = []
        ranged: Expression | None = None
        for each in node.arguments:
            if isinstance(each, RangeSelector | SubqueryNode):
                ranged = each
                labels, windows = self._windows(each, steps)
                arguments.append(replace(windows, check_time=self._budget.check_time))
            else:
                arguments.append(self.scalar(each, steps))
        assert ranged is not None
        if not labels:
            found = empty_matrix(steps.count)
        else:
            with np.errstate(all="ignore"):
                values, present = RANGE_FUNCTIONS[node.name](*arguments)
            named = node.name == "last_over_time"
            found = StepMatrix(labels if named else without_name(labels), values, present)
        self._budget.check_time()
        if node.name == "absent_over_time":
            return _absence(ranged, found, steps)
        return found.distinct()

    def _timestamp(self, argument: Expression, steps: Steps) -> StepMatrix:
        if isinstance(argument, InstantSelector):
            return self.reader.newest(argument, steps)[1].nameless().merged().pruned()
        inner = self.vector(argument, steps).nameless()
        times = np.broadcast_to(steps.times / 1000, inner.values.shape)
        return StepMatrix(inner.labels, times, inner.present).merged()


def _one_series(labels: Labels, values: Floats) -> StepMatrix:
    return StepMatrix([labels], values[None, :], np.ones((1, values.size), dtype=np.bool_))


def _absence(argument: Expression, found: StepMatrix, steps: Steps) -> StepMatrix:
    """Return 1 at the steps where nothing was found, with the labels that were asked for."""
    matchers: tuple[LabelMatcher, ...] = ()
    if isinstance(argument, InstantSelector | RangeSelector):
        matchers = argument.matchers
    wanted: dict[str, str] = {}
    seen: set[str] = set()
    for each in matchers:
        if each.name == METRIC:
            continue
        wanted.pop(each.name, None)
        if each.kind is MatchKind.EQUAL and each.name not in seen:
            seen.add(each.name)
            if each.value:
                wanted[each.name] = each.value
    labels = tuple(sorted(wanted.items()))
    missing = ~np.asarray(found.present.any(axis=0))[None, :]
    return StepMatrix([labels], np.ones((1, steps.count)), missing).pruned()


def _sorted(matrix: StepMatrix, *, descending: bool) -> StepMatrix:
    """Sort by the value at the only step, NaN last. Ranges are sorted by their labels anyway."""
    if matrix.present.shape[1] != 1:
        return matrix
    values = matrix.values[:, 0]
    return matrix.rows(np.argsort(-values if descending else values, kind="stable"))


def _text(node: Expression) -> str:
    if isinstance(node, TextNode):
        return node.value
    raise _unexpected(node, "a string")


def _unexpected(node: Expression, wanted: str) -> QueryError:
    return QueryError(f"a {type(node).__name__} is not {wanted}", do="mend the query")
