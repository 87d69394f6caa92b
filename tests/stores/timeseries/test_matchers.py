"""Matchers: whole values, missing labels, and expressions that cannot be read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import QueryError
from headrace.stores.timeseries.matchers import accepts_missing, matching, matching_series
from headrace.stores.timeseries.series import LabelMatcher, Labels, MatchKind

VALUES = ["", "api", "api-1", "db", "a\nb", "éa"]
SERIES: list[Labels] = [(("a", "1"),), (("a", "2"), ("b", "x")), (("b", "y"),)]


@pytest.mark.parametrize(
    ("kind", "value", "accepted"),
    [
        ("=", "api", ["api"]),
        ("=", "", [""]),
        ("!=", "api", ["", "api-1", "db", "a\nb", "éa"]),
        ("!=", "", ["api", "api-1", "db", "a\nb", "éa"]),
        ("=~", "api", ["api"]),
        ("=~", "api.*", ["api", "api-1"]),
        ("=~", "api|db", ["api", "db"]),
        ("=~", "", [""]),
        ("=~", ".*", VALUES),
        ("=~", ".+", ["api", "api-1", "db", "a\nb", "éa"]),
        ("=~", "(?i)API", ["api"]),
        ("=~", "..", ["db", "éa"]),
        ("!~", "api.*", ["", "db", "a\nb", "éa"]),
        ("!~", "pi", VALUES),
    ],
)
def test_a_matcher_accepts_whole_values(kind: str, value: str, accepted: list[str]) -> None:
    matcher = LabelMatcher("a", MatchKind(kind), value)
    mask = matching(matcher, pa.array(VALUES, pa.string()))
    assert [each for each, is_in in zip(VALUES, mask, strict=True) if is_in] == accepted
    assert accepts_missing(matcher) == ("" in accepted)


@pytest.mark.parametrize("expression", ["(", "a)(b", "[", "*", r"\1", "(?<=a)b", "\ud800"])
@pytest.mark.parametrize("kind", ["=~", "!~"])
def test_an_expression_that_is_not_re2_is_named(kind: str, expression: str) -> None:
    matcher = LabelMatcher("job", MatchKind(kind), expression)
    with pytest.raises(QueryError, match=f"the matcher job{kind}"):
        matching_series([], [matcher])


def test_all_matchers_must_accept_a_series_and_a_missing_label_is_empty() -> None:
    def accepted(*matchers: tuple[str, str, str]) -> list[int]:
        made = [LabelMatcher(name, MatchKind(kind), value) for name, kind, value in matchers]
        return [int(each) for each in matching_series(SERIES, made).nonzero()[0]]

    assert accepted() == [0, 1, 2]
    assert accepted(("a", "=", "")) == [2]
    assert accepted(("a", "!=", "")) == [0, 1]
    assert accepted(("a", "=~", "1|")) == [0, 2]
    assert accepted(("a", "=~", "1|2"), ("b", "=", "x")) == [1]
    assert accepted(("c", "=", "")) == [0, 1, 2]
    assert accepted(("c", "!=", "")) == []
