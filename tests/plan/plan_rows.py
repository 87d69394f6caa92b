"""Runs plans in tests, on shuffle files in memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.plan.plan_run import PlanRun
from headrace.plan.query import Query
from headrace.storage import open_objects

Rows = list[dict[str, Any]]


def run_plan(query: Query) -> pa.Table:
    """Return the rows of a query, whose every stage writes shuffle files."""
    run = PlanRun("test", query.stages, open_objects("memory://"))
    run.run()
    return run.table()


def plan_rows(query: Query) -> Rows:
    found: Rows = run_plan(query).to_pylist()
    return found
