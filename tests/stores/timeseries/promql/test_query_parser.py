from __future__ import annotations

import pytest

from headrace.errors import QueryError
from headrace.stores.timeseries.promql.query_parser import parse_query


@pytest.mark.parametrize(
    ("query", "place", "why"),
    [
        ("", "1:1", "unexpected end of input"),
        ("load +", "1:7", "unexpected end of input"),
        ("load up", "1:6", "unexpected up"),
        ("load ** up", "1:7", "unexpected *"),
        ("sum by x (load)", "1:8", "unexpected x"),
        ("sum(load))", "1:10", "unexpected right parenthesis"),
        ("rate(load[5m]", "1:14", "unexpected end of input"),
        ("load{job=}", "1:10", "unexpected }"),
        ('load{job=="a"}', "1:9", "unexpected"),
        ('load{"a" "b"}', "1:10", "unexpected"),
        ('load{job="a}', "1:10", "unterminated"),
        ("load[5x]", "1:6", "bad number or duration syntax: 5x"),
        ("load[]", "1:6", "missing unit character"),
        ("load $ up", "1:6", "unexpected character: '$'"),
        ("load\n  + (up\n * )", "3:4", "unexpected )"),
        ("load # why\n +", "2:3", "unexpected end of input"),
        ("1 + foo(load)", "1:5", "unknown function with name 'foo'"),
        ("sum(rate(load)) + 1", "1:5", "expected type matrix in call to function 'rate'"),
        ("1 + (2 == 3)", "1:6", "comparisons between scalars must use BOOL modifier"),
        ('load and {job=""}', "1:10", "at least one non-empty matcher"),
        ('load{job=~"("}', "1:6", "is not RE2"),
        ('load{job="a\\q"}', "1:12", "unknown escape sequence"),
        ("load{job='a\\\"'}", "1:12", "unknown escape sequence"),
        (r'load{job="\xff"}', "1:10", "not UTF-8"),
        (r'load{job="\ud800"}', "1:10", "not UTF-8"),
        (r'load{job=~`\w+`} + {job=~`\w*`,a!=""b', "1:37", "unexpected"),
        (r"load{job=~`\w+`} + {job!~`\w+`}", "1:20", "at least one non-empty matcher"),
        ("load[1000000y]", "1:1", "duration out of range"),
        ("load @ 1e300", "1:1", "timestamp out of bounds for @ modifier"),
        ("load @ -1e13", "1:1", "timestamp out of bounds for @ modifier"),
        ("(" * 151, "1:151", "nested more than 150 deep"),
        ("-1" + "+1" * 150, "1:1", "nested more than 150 deep"),
        ("-" * 2000 + "1", "1:2001", "longer than 2000 words and signs"),
        ("up" + "+up" * 300 + "+", "1:1", "invalid promql query"),
        ("up + topk(load)", "1:6", "wrong number of arguments"),
        ("sum(load) offset", "1:17", "unexpected end of input"),
        ("up offset offset", "1:11", "unexpected offset"),
        ("up and on (job) group_left load", "1:1", "no grouping allowed"),
    ],
)
def test_a_syntax_error_names_its_place(query: str, place: str, why: str) -> None:
    with pytest.raises(QueryError) as raised:
        parse_query(query)
    told = raised.value.what
    assert told.startswith(f"{place}: parse error: "), told
    assert why in told


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ('{job="a" or job="b"}', "`or` between matchers"),
        ("load + fill(0) up", "fill"),
    ],
)
def test_syntax_that_is_not_supported_is_named(query: str, named: str) -> None:
    with pytest.raises(QueryError, match=named):
        parse_query(query)
