"""Reads the text of a query: `promql-parser` knows the grammar, expressions are what we keep."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

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
from headrace.stores.timeseries.promql.query_text import (
    NESTING_MAX,
    QuerySyntaxError,
    QueryText,
    nested_too_deep,
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

_MILLISECOND = timedelta(milliseconds=1)
_DURATION_MS_MAX = ((1 << 63) - 1) // 1_000_000
"""Prometheus counts nanoseconds in 64 bits."""
_TIME_MS_MAX = 1 << 53
_OWN_ANCHOR = re.compile(
    r"^ {8}at: Some\(\n +At\(\n +SystemTime \{\n +tv_sec: (-?\d+),\n +tv_nsec: (\d+),", re.MULTILINE
)
"""The time in the printed form of a selector. Elsewhere the parser gives no time before 1970."""
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
        return _ExpressionReader(*_parse(text)).read()
    except QuerySyntaxError as error:
        raise QueryError(
            f"{line_and_column(text, error.offset)}: parse error: {error}",
            do="correct the query there",
        ) from error


def format_query(text: str) -> str:
    """Return a query that can be read as `promql-parser` prints it."""
    query, node = _parse(text)
    return query.restore(node.prettify())


def _parse(text: str) -> tuple[QueryText, grammar.Expr]:
    query = QueryText(text)
    try:
        return query, grammar.parse(query.template)
    except ValueError as error:
        raise QuerySyntaxError(*(parse_failure(query) or (0, str(error)))) from error


class _ExpressionReader:
    """Turns what the parser found into an expression."""

    def __init__(self, text: QueryText, parsed: grammar.Expr) -> None:
        self._text = text
        self._parsed = parsed

    def read(self) -> Expression:
        return self._expression(self._parsed, 0)

    def _expression(self, node: grammar.Expr, depth: int) -> Expression:
        depth += 1
        if depth > NESTING_MAX:
            raise nested_too_deep(0)
        match node:
            case grammar.NumberLiteral():
                return NumberNode(node.val)
            case grammar.StringLiteral():
                return TextNode(self._text.value(node.val))
            case grammar.ParenExpr():
                return self._expression(node.expr, depth)
            case grammar.UnaryExpr():
                return UnaryMinus(self._expression(node.expr, depth))
            case grammar.VectorSelector():
                return InstantSelector(self._matchers(node), _ms(node.offset), _anchor(node))
            case grammar.MatrixSelector():
                inner = node.vector_selector
                return RangeSelector(
                    self._matchers(inner), _ms(node.range), _ms(inner.offset), _anchor(inner)
                )
            case grammar.SubqueryExpr():
                inside = self._expression(node.expr, depth)
                span, step = _ms(node.range), _ms(node.step)
                return SubqueryNode(inside, span, step, _ms(node.offset), _anchor(node))
            case grammar.Call():
                arguments = tuple(self._expression(each, depth) for each in node.args)
                return FunctionCall(node.func.name, arguments)
            case grammar.AggregateExpr():
                return self._aggregate(node, depth)
            case grammar.BinaryExpr():
                return self._binary(node, depth)
        raise QueryError(f"{type(node).__name__} is not supported", do="write the query without it")

    def _aggregate(self, node: grammar.AggregateExpr, depth: int) -> AggregateCall:
        labels: tuple[str, ...] = ()
        without = False
        if node.modifier is not None:
            labels = self._names(node.modifier.labels)
            without = node.modifier.type == grammar.AggModifierType.Without
        parameter = None if node.param is None else self._expression(node.param, depth)
        inner = self._expression(node.expr, depth)
        return AggregateCall(str(node.op), inner, parameter, labels, without)

    def _binary(self, node: grammar.BinaryExpr, depth: int) -> BinaryOperation:
        left, right = self._expression(node.lhs, depth), self._expression(node.rhs, depth)
        modifier = node.modifier
        if modifier is None:
            return BinaryOperation(str(node.op), left, right, False, SeriesMatch())
        fill = modifier.fill_values
        if fill is not None and (fill.lhs is not None or fill.rhs is not None):
            raise QueryError("fill is not supported", do="write the query without it")
        matching = modifier.matching
        match = SeriesMatch(
            labels=() if matching is None else self._names(matching.labels),
            on=matching is not None and matching.type == grammar.LabelModifierType.Include,
            many=_MANY.get(str(modifier.card).rpartition(".")[2], ""),
            included=self._names(modifier.group_labels or ()),
        )
        return BinaryOperation(str(node.op), left, right, modifier.return_bool, match)

    def _matchers(self, node: grammar.VectorSelector) -> tuple[LabelMatcher, ...]:
        if node.matchers.or_matchers:
            raise QueryError(
                "`or` between matchers is not supported", do="put `or` between two selectors"
            )
        value = self._text.value
        found = [
            LabelMatcher(
                value(each.name), _KINDS[str(each.op).rpartition(".")[2]], value(each.value)
            )
            for each in node.matchers.matchers
        ]
        if node.name is not None:
            found.insert(0, LabelMatcher(METRIC, MatchKind.EQUAL, node.name))
        return tuple(found)

    def _names(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self._text.value, names))


def _ms(duration: timedelta | None) -> int:
    found = 0 if duration is None else duration // _MILLISECOND
    if abs(found) > _DURATION_MS_MAX:
        raise QuerySyntaxError(0, "duration out of range: it is more than 292 years")
    return found


def _anchor(node: grammar.VectorSelector | grammar.SubqueryExpr) -> Anchor:
    if node.at is None:
        return None
    if node.at.type == grammar.AtModifierType.Start:
        return EvaluationEdge.START
    if node.at.type == grammar.AtModifierType.End:
        return EvaluationEdge.END
    found = _OWN_ANCHOR.search(repr(node))
    assert found is not None
    at_ms = int(found[1]) * 1000 + int(found[2]) // 1_000_000
    if abs(at_ms) > _TIME_MS_MAX:
        raise QuerySyntaxError(0, f"timestamp out of bounds for @ modifier: {found[1]} s")
    return at_ms
