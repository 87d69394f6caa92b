"""Queries as users write them: what they refuse, what names their tasks, and where output is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import StorageError, UsageError
from headrace.plan.plan_run import PlanRun

PLACE: Any = "./shop"
ROWS = pa.table({"key": ["a", "b", "a"], "n": [1, 2, 3]})


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[hr.Workspace]:
    with hr.open(tmp_path / "workspace") as opened:
        yield opened


@pytest.fixture
def query(workspace: hr.Workspace) -> hr.Query:
    return hr.scan(ROWS, workspace, rows_per_unit=1)


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def equal(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda query: query.map(3), "map() got a int; give a function of record batches"),
        (lambda query: query.filter("n"), "filter() got a str; give a function of record batches"),
        (lambda query: query.sink(None), "sink() got a NoneType; give a function of a table and"),
        (lambda query: query.select(), "select() names no column; name the columns to keep"),
        (lambda query: query.join(ROWS, "key"), "join() got a Table; give a query, begun with"),
        (
            lambda query: query.join(query, "key", how="outer"),
            "'outer' is no kind of join; use one",
        ),
        (lambda query: query.group_by("key", partitions="4").agg(n="count"), "got '4'; give"),
        (lambda query: query.run(""), "'' is no name of a query; use text of 1 to 200 characters"),
        (lambda query: query.run(3), "3 is no name of a query; "),
        (lambda query: query.run("a\nb"), "'a\\nb' is no name of a query; "),
        (lambda query: query.run("x" * 201), "is no name of a query; "),
        (lambda query: query.run("x", objects="ftp://x"), "'ftp://x' cannot hold objects; "),
        (lambda query: hr.scan(ROWS, PLACE), "'./shop' is no workspace; give an open one"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    query: hr.Query, wrong: Callable[[hr.Query], Any], message: str
) -> None:  # proves G27
    with pytest.raises(UsageError) as found:
        wrong(query)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("rows_per_unit", [0, "5", 2.5])
def test_rows_per_unit_is_a_whole_number(workspace: hr.Workspace, rows_per_unit: Any) -> None:
    with pytest.raises(UsageError, match="rows_per_unit must be at least 1, got "):  # proves G27
        hr.scan(ROWS, workspace, rows_per_unit=rows_per_unit)


def test_a_run_that_is_not_complete_has_no_rows(query: hr.Query, workspace: hr.Workspace) -> None:
    run = PlanRun("unfinished", query.stages, workspace.objects)
    with pytest.raises(UsageError, match="query 'unfinished' is not complete; run it first"):
        run.table()


def test_a_version_stands_for_the_source_of_the_function_that_has_it(query: hr.Query) -> None:
    def computed(function: Callable[..., Any], version: str) -> int:
        return query.map(function, version=version).run("versions").reports[0].computed

    assert computed(same, "1") == 3
    assert computed(same, "1") == 0
    assert computed(same, "2") == 3
    assert computed(equal, "1") == 3, "another function is not taken for the same"


def test_a_run_says_what_it_computed_and_found(query: hr.Query) -> None:
    assert str(query.run("said")) == "said: 3 tasks, 3 computed, 0 reused"
    assert str(query.run("said")) == "said: 3 tasks, 0 computed, 3 reused"


def test_output_may_be_kept_outside_the_workspace(
    query: hr.Query, workspace: hr.Workspace, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert query.run("kept", objects=elsewhere).table().num_rows == 3
    assert str(query.run("kept", objects=str(elsewhere))).endswith("0 computed, 3 reused")
    assert workspace.objects.list("shuffle") == []


def test_a_sink_gets_the_rows_of_each_task_and_the_same_key_if_it_is_tried_again(
    query: hr.Query,
) -> None:
    """Tasks without rows call it too; tasks that are published do not."""
    got: list[tuple[str, list[dict[str, Any]]]] = []
    is_failing = [True]

    def store(rows: pa.Table, key: str) -> None:
        got.append((key, rows.sort_by("key").to_pylist()))
        if rows.num_rows and is_failing:
            is_failing.clear()
            raise StorageError("the disk is full", do="free some space")

    totals = query.group_by("key", partitions=8).agg(total=("n", "sum")).sink(store, version="1")
    with pytest.raises(StorageError, match="the disk is full"):
        totals.run("stored")
    begun = len(got)
    totals.run("stored")
    kept = dict(got)
    assert all(kept[key] == rows for key, rows in got), "a key is always about the same rows"
    assert len(kept) == 8
    rows = sorted((row["key"], row["total"]) for rows in kept.values() for row in rows)
    assert rows == [("a", 4), ("b", 2)]
    calls = len(got)
    assert calls > begun, "the task that failed is tried again"
    assert str(totals.run("stored")).endswith("11 tasks, 0 computed, 11 reused")
    assert len(got) == calls, "what is published is not handed over again"
