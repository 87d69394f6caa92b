"""Hypothesis strategies for PromQL over `random_series`: whole queries, each of its right type.

Some numbers are exact in any order of evaluation: sums and differences of multiples of 1/8. Others
are rough, such as a rate or an average, whose last digits depend on the order. What jumps at a
value (comparisons, rounding, remainders) is applied to exact numbers only, and what enlarges an
error (differences of large numbers, divisors near zero) never to rough ones: else two right answers
could be far apart.

Where Prometheus itself has no one answer, nothing is asked. It promises no order of equal values:
`topk` gets values that all differ. In a range query it moves the window of a `predict_linear` with
the steps even where an `@` fixes it: there is none. It reads the limit of `topk` only at the first
step if an `@` fixes the vector: then limits are numbers. If an `@` fixes a subquery inside another,
and both have their first step at the same moment, Prometheus looks up the selectors inside both at
that moment, whatever their own `@` says: there is none. The year of infinity and of NaN depends on
the processor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.stores.timeseries.promql.random_series import LENGTH_MS, TICK_MS
from tests.stores.timeseries.promql.sample_series import BASE_MS, SECOND

Text = st.SearchStrategy[str]

_FIXED_TWICE = re.compile(r"@.*\[\w+:\w*\] @")
"""A selector with an `@`, and behind it the end of a subquery with one."""

_MATCHERS = [
    'job="api"',
    'job!="api"',
    'instance=~"a|b"',
    'instance!~"a|c"',
    'instance="a"',
    'missing=""',
    'job=~".+"',
    'instance=~"[b-z]|"',
]
_SPANS = ["10s", "29s875ms", "1m", "90s", "5m", "7m", "20m"]
_STEPS = ["", "15s", "30s", "1m", "77s"]
_SAME = ["", "on (job, instance) ", "ignoring (team) ", "ignoring () "]
_TO_LIMIT = ["on (job) group_left () ", "on (job) group_left (team) ", "on (job) ", "on () ", ""]
_SETS = ["", "on (job) ", "on (job, instance) ", "ignoring (instance) ", "on () "]
_GROUPINGS = [
    *("", " by (job)", " without (instance)", " by (instance, job)", " without ()", " by ()"),
    *(" by (__name__, job)", " by (missing)", " without (job, __name__)"),
]
_EXACT_WINDOWS = [
    *("min_over_time", "max_over_time", "sum_over_time", "count_over_time", "last_over_time"),
    *("present_over_time", "absent_over_time"),
]
_ROUGH_WINDOWS = ["avg_over_time", "stddev_over_time", "stdvar_over_time"]
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_ROUNDED = ["abs", "ceil", "floor", "sgn", "round", "-"]
_CALENDAR = [
    *("minute", "hour", "day_of_week", "day_of_month", "day_of_year", "days_in_month"),
    *("month", "year"),
]
_CURVES = [
    *("exp", "ln", "log2", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "deg", "rad"),
]


def queries(seed: int) -> Text:
    """Return the strategy of queries over the series of this seed."""
    return _GRAMMAR.any_query.map(lambda query: query.replace("_SEED", f"_{seed}"))


def plain_queries(seed: int) -> Text:
    """Return the strategy of queries that the reference evaluator knows."""
    return _GRAMMAR.plain_query.map(lambda query: query.replace("_SEED", f"_{seed}"))


@dataclass(frozen=True)
class Moments:
    """The steps of a range query, or the moment of an instant query."""

    start_ms: int
    end_ms: int
    step_ms: int


@st.composite
def moments(draw: st.DrawFn, most: int = 25) -> Moments:
    """Return up to `most` steps, which may begin before the series and end after them."""
    tick = st.integers(-SECOND * 60 // TICK_MS, (LENGTH_MS + 120 * SECOND) // TICK_MS)
    start = BASE_MS + draw(tick) * TICK_MS
    step = draw(st.sampled_from([125, 15_000, 60_000, 77_375]))
    return Moments(start, start + draw(st.integers(0, most - 1)) * step, step)


class _Grammar:
    """Metrics have names that end with `_SEED`."""

    def __init__(self) -> None:
        anchors = st.integers(0, LENGTH_MS // TICK_MS).map(
            lambda ticks: f" @ {(BASE_MS + ticks * TICK_MS) / 1000}"
        )
        self.offsets = _one("", "", " offset 1m", " offset -45s", " offset 7m30s")
        edges = _one(" @ start()", " @ end()", " @ end() offset 2m")
        self.modifiers = self.offsets | self.offsets | edges | anchors
        self.exact = st.recursive(self._exact_leaf(), self._wider_exact, max_leaves=5)
        self.rough = st.recursive(self._rough_leaf(), self._wider_rough, max_leaves=5)
        self.any_query = self.exact | self.rough | self._outermost()
        self.plain = st.recursive(self._plain_leaf(), self._wider_plain, max_leaves=4)
        self.plain_query = self.plain | self._outermost_plain()

    def _selector(self, *names: str) -> Text:
        some = st.lists(_one(*_MATCHERS), max_size=2, unique=True).map(",".join)
        chosen = _one("", "") | _text("{{{}}}", some)
        return _text("{}_SEED{}{}", _one(*names), chosen, self.modifiers)

    def _window(self, *names: str, modifiers: Text | None = None) -> Text:
        """Return a range of samples."""
        moved = self.modifiers if modifiers is None else modifiers
        matcher = _one("", "", *_MATCHERS)
        return _text("{}_SEED{{{}}}[{}]{}", _one(*names), matcher, _one(*_SPANS), moved)

    def _subquery(self, inner: Text) -> Text:
        spans = _one("1m", "4m15s", "10m")
        single = inner.filter(lambda query: not _FIXED_TWICE.search(query))
        return _text("({})[{}:{}]{}", single, spans, _one(*_STEPS), self.modifiers)

    def _exact_leaf(self) -> Text:
        functions = _one("resets", "changes", "idelta", *_EXACT_WINDOWS)
        return st.one_of(
            self._selector("gauge", "counter", "odd", "flag"),
            _text("{}({})", functions, self._window("gauge", "counter", "odd")),
            _text("{}({} * 1e6)", _one(*_CALENDAR), self._selector("gauge")),
        )

    def _wider_exact(self, inner: Text) -> Text:
        small = _one("0", "2", "-3", "0.5", "7", "scalar(limit_SEED)")
        scalar = _one("NaN", "Inf", "time() % 1000") | small | _text("scalar({})", inner)
        summed = _one("+", "-", *_COMPARISONS, *(f"{each} bool" for each in _COMPARISONS))
        return st.one_of(
            _text("{}{} ({})", _one("sum", "min", "max", "count", "group"), _GROUPING, inner),
            _text("sum by (job{}) ({})", _one("", ", instance"), inner),
            _text("({}) {} ({})", inner, summed, scalar),
            _text("({}) {} ({})", scalar, summed, inner),
            _text("({}) {} ({})", inner, _one("%", "*"), small),
            _text("({}) {} {}({})", inner, summed, _one(*_SAME), inner),
            _text("({}) {} {}(limit_SEED)", inner, summed, _one(*_TO_LIMIT)),
            _text("limit_SEED {} on (job) group_right (team) ({})", summed, inner),
            _text("({}) {} {}({})", inner, _one("and", "or", "unless"), _one(*_SETS), inner),
            _text("{}({})", _one(*_EXACT_WINDOWS), self._subquery(inner)),
            _text("{}({})", _one(*_ROUNDED, "absent", "sort"), inner),
            _text("timestamp({}) % 1000", inner),
            _text("round({}, {})", inner, _one("5", "0.25")),
            _text("clamp({}, {}, {})", inner, scalar, scalar),
            _text("{}({}, {})", _one("clamp_min", "clamp_max"), inner, scalar),
            _text("vector({})", scalar),
            _text('label_replace({}, "to", "$1-x", "job", "(.).*")', inner),
            _text('label_replace({}, "job", "x", "instance", "a|b")', inner),
            _text('label_join({}, "to", "/", "job", "team", "instance")', inner),
        )

    def _rough_leaf(self) -> Text:
        grown = _one("rate", "increase", "irate", "delta", "deriv", *_ROUGH_WINDOWS)
        window = self._window("gauge", "counter")
        divisor = self._selector("gauge", "flag")
        latency = _one(
            "latency_SEED_bucket",
            'latency_SEED_bucket{le!="1"}',
            "sum by (le, job) (latency_SEED_bucket)",
            "increase(latency_SEED_bucket[1m])",
            "sum by (le) (rate(latency_SEED_bucket[5m]))",
        )
        return st.one_of(
            _text("{}({})", grown, self._window("gauge", "counter", "flag", "odd")),
            _text("{}({})", grown, self._subquery(self.exact)),
            _text("quantile_over_time({}, {})", _RANK, window),
            _text("predict_linear({}, 300)", self._window("gauge", modifiers=self.offsets)),
            _text("holt_winters({}, 0.3, 0.6)", window),
            _text("{}({})", _one(*_CURVES), self._selector("gauge", "odd")),
            _text("({}) {} {}{}", self.exact, _one("/", "atan2"), _one(*_SAME), divisor),
            _text("{} ^ {}", self._selector("gauge", "odd"), _RANK),
            _text("histogram_quantile({}, {})", _RANK, latency),
        )

    def _wider_rough(self, inner: Text) -> Text:
        return st.one_of(
            _text("{}{} ({})", _one("sum", "min", "max", "count"), _GROUPING, inner),
            _text("quantile{} ({}, {})", _GROUPING, _RANK, inner),
            _text("{}({})", _one("-", "abs", "absent", "sort"), inner),
            _text("({}) * {}", inner, _one("2", "-0.5", "NaN")),
            _text("({}) {} {}({})", inner, _one("and", "or", "unless"), _one(*_SETS), inner),
        )

    def _outermost(self) -> Text:
        """Return what only whole queries are."""
        limit, extremes = _one("0", "1", "2", "5", "2.9"), _one("topk", "bottomk")
        unequal = self._selector("distinct")
        varying = "(scalar(sum(flag_SEED{}) or vector(1)), distinct_SEED{})"
        return st.one_of(
            _text("{}{} ({}, {})", extremes, _GROUPING, limit, unequal),
            _text("{}{} " + varying, extremes, _GROUPING, self.offsets, self.offsets),
            _text("{}{} ({})", _one("avg", "stddev", "stdvar"), _GROUPING, self.exact),
            _text('count_values{} ("value", {})', _GROUPING, self._selector("flag", "odd")),
            _text("scalar({})", self.rough),
            _text("sort_desc({})", self.rough),
        )

    def _plain_leaf(self) -> Text:
        selector = self._selector("gauge", "counter", "odd", "flag")
        windows = _one("resets", "changes", "idelta", *_EXACT_WINDOWS[:-1])
        sums = _text("sum{} ({})", _GROUPING, selector)
        return st.one_of(
            selector,
            _text("-{}", selector),
            _text("{}({})", windows, self._window("gauge", "counter", "odd")),
            _text("{}({})", windows, self._subquery(selector | sums)),
        )

    def _wider_plain(self, inner: Text) -> Text:
        small = _one("0", "2", "-3", "0.5", "7", "scalar(limit_SEED)")
        summed = _one("+", "-", *_COMPARISONS, *(f"{each} bool" for each in _COMPARISONS))
        return st.one_of(
            _text("{}{} ({})", _one("sum", "min", "max", "count", "group"), _GROUPING, inner),
            _text("({}) {} ({})", inner, summed, small | _text("scalar({})", inner)),
            _text("{} {} ({})", small, summed, inner),
            _text("({}) {} {}({})", inner, summed, _one(*_SAME), inner),
            _text("({}) {} {}(limit_SEED)", inner, summed, _one(*_TO_LIMIT)),
            _text("limit_SEED {} on (job) group_right (team) ({})", summed, inner),
            _text("({}) {} {}({})", inner, _one("and", "or", "unless"), _one(*_SETS), inner),
        )

    def _outermost_plain(self) -> Text:
        grown = _one("rate", "increase", "irate", "delta", "avg_over_time", "stddev_over_time")
        window = self._window("gauge", "counter", "odd")
        divisor, limit = self._selector("gauge", "flag"), _one("0", "1", "2", "5", "2.9")
        unequal = self._selector("distinct")
        rough = _text("{}({})", grown, window | self._subquery(self._selector("gauge", "counter")))
        return st.one_of(
            _text("{}{} ({}, {})", _one("topk", "bottomk"), _GROUPING, limit, unequal),
            _text("{}{} ({})", _one("avg", "stddev"), _GROUPING, self.plain),
            _text("quantile{} ({}, {})", _GROUPING, _RANK, self.plain | rough),
            _text("sum{} ({})", _GROUPING, rough),
            _text("({}) {} {}{}", self.plain, _one("/", "%"), _one(*_SAME), divisor),
            rough,
        )


def _one(*texts: str) -> Text:
    return st.sampled_from(texts)


def _text(template: str, *parts: Text) -> Text:
    return st.tuples(*parts).map(lambda drawn: template.format(*drawn))


_RANK = _one("0", "0.5", "0.37", "1", "-1", "2", "NaN")
_GROUPING = _one(*_GROUPINGS)
_GRAMMAR = _Grammar()
