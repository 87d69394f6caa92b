"""Filters keep what plain Python keeps, travel as JSON, and say what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import QueryError
from headrace.stores.vectors.filters import (
    DEPTH_MAX,
    VALUES_MAX,
    AllOf,
    AnyOf,
    Between,
    Equals,
    MetadataFilter,
    Negation,
    OneOf,
    evaluate,
    from_json,
    to_json,
)
from tests.stores.vectors import filter_examples as examples

ROWS: list[dict[str, Any]] = [
    {"color": "red", "size": 1, "price": 0.5, "sold": True, "made": "2030-01-31T12:00:00Z"},
    {"color": "blue", "size": 2, "price": None, "sold": False, "made": None},
    {"color": None, "size": None, "price": 2.0, "sold": None, "made": "1960-01-01T00:00:00Z"},
    {"color": "red", "size": 2**53 + 1, "price": float("nan"), "sold": False, "made": None},
]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ({"field": "color", "eq": "red"}, [0, 3]),
        ({"field": "color", "eq": "green"}, []),
        ({"field": "color", "eq": None}, [2]),
        ({"not": {"field": "color", "eq": "red"}}, [1, 2]),
        ({"field": "color", "in": ["red", "blue"]}, [0, 1, 3]),
        ({"field": "color", "in": ["blue", None]}, [1, 2]),
        ({"field": "color", "in": []}, []),
        ({"field": "color", "gt": "blue"}, [0, 3]),
        ({"field": "size", "eq": 2}, [1]),
        ({"field": "size", "eq": 2.0}, [1]),
        ({"field": "size", "eq": 2**53}, []),
        ({"field": "size", "eq": float(2**53)}, []),
        ({"field": "size", "ge": 1.5}, [1, 3]),
        ({"field": "size", "lt": 1.5}, [0]),
        ({"field": "size", "gt": 2**53}, [3]),
        ({"field": "size", "lt": 2**80}, [0, 1, 3]),
        ({"field": "size", "in": [1, 2.5, *range(100, 200)]}, [0]),
        ({"field": "price", "ge": 0.5, "lt": 2}, [0]),
        ({"field": "price", "ge": 0.5, "le": 2}, [0, 2]),
        ({"field": "sold", "eq": False}, [1, 3]),
        ({"field": "made", "lt": "1970-01-01"}, [2]),
        ({"field": "made", "eq": "2030-01-31T13:00:00+01:00"}, [0]),
        ({"and": [{"field": "color", "eq": "red"}, {"field": "size", "gt": 1}]}, [3]),
        ({"or": [{"field": "color", "eq": "blue"}, {"field": "size", "eq": 1}]}, [0, 1]),
        ({"and": []}, [0, 1, 2, 3]),
        ({"or": []}, []),
    ],
    ids=str,
)
def test_a_filter_keeps(text: dict[str, Any], kept: list[int]) -> None:
    view = examples.view_of(ROWS, split=1)
    assert np.flatnonzero(evaluate(from_json(text), view)).tolist() == kept


@given(examples.rows(), examples.filters(), st.integers(0, 30))
def test_a_filter_keeps_what_python_keeps(
    rows: list[dict[str, Any]], kept: MetadataFilter, split: int
) -> None:
    view = examples.view_of(rows, min(split, len(rows)))
    assert evaluate(kept, view).tolist() == [examples.keeps(kept, row) for row in rows]


@given(examples.filters())
def test_a_filter_travels_as_json(kept: MetadataFilter) -> None:
    if isinstance(kept, Between) and kept == Between(kept.field):
        return  # JSON has no word for a range without bounds.
    text = json.dumps(to_json(kept))
    if '"field": ' in text and _has_open_range(kept):
        return
    assert from_json(json.loads(text)) == kept


def _has_open_range(kept: MetadataFilter) -> bool:
    match kept:
        case AllOf(inner) | AnyOf(inner):
            return any(_has_open_range(each) for each in inner)
        case Negation(each):
            return _has_open_range(each)
    return isinstance(kept, Between) and kept == Between(kept.field)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ([], "cannot read the filter"),
        ({}, "cannot read the filter"),
        ({"field": "color"}, "cannot read the filter"),
        ({"field": 1, "eq": 1}, "cannot read the filter"),
        ({"field": "color", "eq": 1, "in": [1]}, "cannot read the filter"),
        ({"field": "color", "like": "r%"}, "cannot read the filter"),
        ({"field": "size", "ge": None}, "cannot read the filter"),
        ({"field": "size", "in": 5}, "cannot read the filter"),
        ({"and": {}}, "cannot read the filter"),
        ({"xor": []}, "cannot read the filter"),
        ({"and": [], "or": []}, "cannot read the filter"),
        ({"field": "size", "eq": [1]}, "'size' compares with '[1]'"),
        ({"field": "price", "lt": float("nan")}, "'price' compares with NaN"),
        ({"field": "size", "in": [0] * (VALUES_MAX + 1)}, "names 100001 values"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_json_that_is_no_filter_is_refused(given: object, word: str) -> None:
    with pytest.raises(QueryError) as raised:
        from_json(given)
    assert word in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_filter_may_name_as_many_values_as_are_allowed() -> None:
    assert from_json({"field": "size", "in": [0] * VALUES_MAX})


def test_a_filter_that_is_nested_too_deep_is_refused() -> None:
    nested: dict[str, Any] = {"field": "color", "eq": "red"}
    for _ in range(DEPTH_MAX):
        nested = {"not": nested}
    from_json(nested)
    with pytest.raises(QueryError, match="nested more than"):
        from_json({"not": nested})


@pytest.mark.parametrize(
    "kept",
    [
        Equals("shape", "round"),
        Equals("color", 1),
        Equals("size", "1"),
        Equals("size", True),
        OneOf("sold", (1,)),
        Between("price", above="1"),
        Between("price", above=float("nan")),
        Between("price", above=10**400),
        Equals("made", 5),
        Equals("made", "yesterday"),
    ],
    ids=str,
)
def test_a_filter_that_does_not_fit_its_column_is_refused(kept: Equals | OneOf | Between) -> None:
    with pytest.raises(QueryError, match=repr(kept.field)):
        evaluate(kept, examples.view_of(ROWS))
