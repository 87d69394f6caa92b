"""The results of a stage whose units have different columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import SchemaError
from headrace.plan.unified_columns import fit, unify_columns
from tests.pipeline.jobs import numbers

BIG = 2**53 + 1


def collect(workspace: hr.Workspace, values: dict[int, Any]) -> pa.Table:
    """Return the results of a stage that returns such a value for each row, in units of a row."""
    pipeline = (
        hr.pipeline("mixed", workspace)
        .source(numbers(len(values)), rows_per_unit=1)
        .map(lambda row: {"n": row["n"], "value": values[row["n"]]}, version="1", name="mix")
    )
    pipeline.run()
    return pipeline.collect().sort_by("n")


def test_integers_and_floats_are_floats_together(workspace: hr.Workspace) -> None:
    found = collect(workspace, {0: 1, 1: 0.5, 2: None, 3: -(2**53)})
    assert found["value"].type == pa.float64()
    assert found["value"].to_pylist() == [1.0, 0.5, None, -(2.0**53)]


def test_a_number_that_no_float_equals_is_refused(workspace: hr.Workspace) -> None:
    with pytest.raises(SchemaError, match="column 'value' of a unit does not fit into double"):
        collect(workspace, {0: BIG, 1: 0.5})


def test_numbers_and_text_are_refused(workspace: hr.Workspace) -> None:
    with pytest.raises(SchemaError, match=r"units of the stage have different columns: .*value"):
        collect(workspace, {0: 1, 1: "one"})


def test_columns_that_a_unit_does_not_have_are_null() -> None:
    small = pa.table({"n": pa.array([1], pa.int32())})
    large = pa.table({"m": ["x"], "n": pa.array([2], pa.int64())})
    columns = unify_columns([small.schema, large.schema])
    assert columns == pa.schema([("n", pa.int64()), ("m", pa.string())])
    assert fit(small, columns).to_pylist() == [{"n": 1, "m": None}]
    assert fit(large, columns).to_pylist() == [{"n": 2, "m": "x"}]
