"""Reads the text of a query: `promql-parser` knows the grammar, expressions are what we keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import promql_parser as grammar

from headrace.errors import QueryError
from headrace.stores.timeseries.labels import METRIC
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
    SeriesMatch,
    SubqueryNode,
    TextNode,
    UnaryMinus,
)
from headrace.stores.timeseries.promql.syntax_position import line_and_column, parse_failure
from headrace.stores.timeseries.series import LabelMatcher, MatchKind

grammar.register_extra_functions(
    [
        # The name that `double_exponential_smoothing` has up to Prometheus 2.
        grammar.Function(
            "holt_winters",
            [grammar.ValueType.Matrix, grammar.ValueType.Scalar, grammar.ValueType.Scalar],
            grammar.ValueType.Vector,
        )
    ]
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MANY = {"ManyToOne": "left", "OneToMany": "right"}
_KINDS = {
    "Equal": MatchKind.EQUAL,
    "NotEqual": MatchKind.UNEQUAL,
    "Re": MatchKind.MATCHES,
    "NotRe": MatchKind.UNLIKE,
}


def parse_query(text: str) -> Expression:
    """Return the expression. Raises QueryError, with the position, if it is not PromQL."""
    try:
        parsed = grammar.parse(text)
    except ValueError as error:
        offset, why = parse_failure(text) or (0, str(error))
        raise QueryError(
            f"{line_and_column(text, offset)}: parse error: {why}", do="correct the query there"
        ) from error
    return _expression(parsed)


def _expression(node: grammar.Expr) -> Expression:
    match node:
        case grammar.NumberLiteral():
            return NumberNode(node.val)
        case grammar.StringLiteral():
            return TextNode(node.val)
        case grammar.ParenExpr():
            return _expression(node.expr)
        case grammar.UnaryExpr():
            return UnaryMinus(_expression(node.expr))
        case grammar.VectorSelector():
            return InstantSelector(_matchers(node), _ms(node.offset), _anchor(node.at))
        case grammar.MatrixSelector():
            inner = node.vector_selector
            return RangeSelector(
                _matchers(inner), _ms(node.range), _ms(inner.offset), _anchor(inner.at)
            )
        case grammar.SubqueryExpr():
            inside = _expression(node.expr)
            span, step = _ms(node.range), _ms(node.step)
            return SubqueryNode(inside, span, step, _ms(node.offset), _anchor(node.at))
        case grammar.Call():
            return FunctionCall(node.func.name, tuple(_expression(each) for each in node.args))
        case grammar.AggregateExpr():
            return _aggregate(node)
        case grammar.BinaryExpr():
            return _binary(node)
    raise QueryError(f"{type(node).__name__} is not supported", do="write the query without it")


def _aggregate(node: grammar.AggregateExpr) -> AggregateCall:
    labels: tuple[str, ...] = ()
    without = False
    if node.modifier is not None:
        labels = tuple(node.modifier.labels)
        without = node.modifier.type == grammar.AggModifierType.Without
    parameter = None if node.param is None else _expression(node.param)
    return AggregateCall(str(node.op), _expression(node.expr), parameter, labels, without)


def _binary(node: grammar.BinaryExpr) -> BinaryOperation:
    left, right = _expression(node.lhs), _expression(node.rhs)
    modifier = node.modifier
    if modifier is None:
        return BinaryOperation(str(node.op), left, right, False, SeriesMatch())
    fill = modifier.fill_values
    if fill is not None and (fill.lhs is not None or fill.rhs is not None):
        raise QueryError("fill is not supported", do="write the query without it")
    matching = modifier.matching
    match = SeriesMatch(
        labels=() if matching is None else tuple(matching.labels),
        on=matching is not None and matching.type == grammar.LabelModifierType.Include,
        many=_MANY.get(str(modifier.card).rpartition(".")[2], ""),
        included=tuple(modifier.group_labels or ()),
    )
    return BinaryOperation(str(node.op), left, right, modifier.return_bool, match)


def _matchers(node: grammar.VectorSelector) -> tuple[LabelMatcher, ...]:
    if node.matchers.or_matchers:
        raise QueryError(
            "`or` between matchers is not supported", do="put `or` between two selectors"
        )
    found = [
        LabelMatcher(each.name, _KINDS[str(each.op).rpartition(".")[2]], each.value)
        for each in node.matchers.matchers
    ]
    if node.name is not None:
        found.insert(0, LabelMatcher(METRIC, MatchKind.EQUAL, node.name))
    return tuple(found)


def _ms(duration: timedelta | None) -> int:
    return 0 if duration is None else duration // _MILLISECOND


def _anchor(at: grammar.AtModifier | None) -> Anchor:
    if at is None:
        return None
    if at.type == grammar.AtModifierType.Start:
        return EvaluationEdge.START
    if at.type == grammar.AtModifierType.End:
        return EvaluationEdge.END
    assert at.at is not None
    return (at.at - _EPOCH) // _MILLISECOND
