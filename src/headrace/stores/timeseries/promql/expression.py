"""What a PromQL query is made of, as frozen data. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.stores.timeseries.series import LabelMatcher


class EvaluationEdge(StrEnum):
    """What `@ start()` and `@ end()` name: an edge of the whole query."""

    START = "start"
    END = "end"


Anchor = int | EvaluationEdge | None
"""The moment that `@` names in milliseconds; None is each step."""


@dataclass(frozen=True, slots=True)
class NumberNode:
    value: float


@dataclass(frozen=True, slots=True)
class TextNode:
    value: str


@dataclass(frozen=True, slots=True)
class InstantSelector:
    """Selects the newest sample of each series."""

    matchers: tuple[LabelMatcher, ...]
    offset_ms: int
    at: Anchor


@dataclass(frozen=True, slots=True)
class RangeSelector:
    """Selects the samples of each series in a window of time."""

    matchers: tuple[LabelMatcher, ...]
    range_ms: int
    offset_ms: int
    at: Anchor


@dataclass(frozen=True, slots=True)
class SubqueryNode:
    """Evaluates `inner` at every multiple of a step in a window of time; 0 is the default step."""

    inner: Expression
    range_ms: int
    step_ms: int
    offset_ms: int
    at: Anchor


@dataclass(frozen=True, slots=True)
class FunctionCall:
    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One result for each combination of the labels in `by`, or of all labels but `without`."""

    name: str
    inner: Expression
    parameter: Expression | None
    labels: tuple[str, ...]
    without: bool


@dataclass(frozen=True, slots=True)
class SeriesMatch:
    """Which series on the two sides of an operator belong together."""

    labels: tuple[str, ...] = ()
    on: bool = False
    """The labels must be equal; else all others must be."""
    many: str = ""
    """`left` or `right`: the side of which several series may match one of the other side."""
    included: tuple[str, ...] = ()
    """Labels that results take from the side of one."""


@dataclass(frozen=True, slots=True)
class BinaryOperation:
    operator: str
    left: Expression
    right: Expression
    as_bool: bool
    match: SeriesMatch


@dataclass(frozen=True, slots=True)
class UnaryMinus:
    inner: Expression


Expression = (
    NumberNode
    | TextNode
    | InstantSelector
    | RangeSelector
    | SubqueryNode
    | FunctionCall
    | AggregateCall
    | BinaryOperation
    | UnaryMinus
)

SCALAR_FUNCTIONS = frozenset({"time", "pi", "scalar"})


def is_scalar(node: Expression) -> bool:
    """Return True for an expression that has one value at each step, without labels."""
    match node:
        case NumberNode():
            return True
        case FunctionCall():
            return node.name in SCALAR_FUNCTIONS
        case BinaryOperation():
            return is_scalar(node.left) and is_scalar(node.right)
        case UnaryMinus():
            return is_scalar(node.inner)
    return False
