"""Stages that group, join and deduplicate, with threads: the rows, and what a later run repeats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ChangedError, SchemaError, StorageError
from headrace.exchange import AttemptCleanup, MapOutputWriter, MapTaskIndex
from headrace.exchange.cleanup.pinned_stage import now_ms
from headrace.pipeline.run import message_scan
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.shuffle_files import list_shuffle_files, shuffle_name
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.status.garbage import collect_garbage, delete_job, find_garbage
from headrace.plan.operators import JoinKind
from headrace.plan.plan_run import PlanRun
from tests.pipeline.orders import ROWS, in_order, named, names, orders, totals

pytestmark = pytest.mark.long

UNITS = 10


@pytest.fixture(autouse=True)
def one_unit_in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_scan, "TASK_ROWS", ROWS // UNITS)
    PAID.clear()


PAID: list[tuple[str, Any]] = []
"""The calls of a test: operators travel to workers as copies, which see this list alone."""


def pay(row: dict[str, Any]) -> dict[str, Any]:
    PAID.append(("row", row["n"]))
    return row


def pay_for_group(row: dict[str, Any]) -> dict[str, Any]:
    PAID.append(("group", row["lang"]))
    return row


def paid_orders(workspace: hr.Workspace, rows: int = ROWS) -> hr.Pipeline:
    begun = hr.pipeline("job", workspace).source(orders(rows), rows_per_unit=ROWS // UNITS)
    return begun.map(pay, name="pay", version="1", expensive=True, cost=1)


def grouped(pipeline: hr.Pipeline, **options: Any) -> hr.Pipeline:
    return pipeline.group_by("lang", partitions=4, **options).agg(n="count", total=("cents", "sum"))


def rows_of(pipeline: hr.Pipeline, stage: str = "") -> list[dict[str, Any]]:
    return in_order(pipeline.collect(stage).to_pylist())


# proves G15
def test_a_shuffle_between_paid_stages_pays_once_for_each_row_and_each_group(
    workspace: hr.Workspace,
) -> None:
    stored: dict[str, list[dict[str, Any]]] = {}

    def store(table: pa.Table, key: str) -> None:
        stored[key] = table.to_pylist()

    def build() -> hr.Pipeline:
        pipeline = grouped(paid_orders(workspace))
        pipeline.map(pay_for_group, name="last", version="1", expensive=True, cost=1)
        return pipeline.sink(store, version="1")

    summary = build().run()
    assert (summary.outcome, summary.cost) == ("done", ROWS + len(totals()))
    assert in_order([row for rows in stored.values() for row in rows]) == totals()
    counts = summary.stages["group-by"]
    assert (counts.messages, counts.rows_in, counts.rows_out) == (UNITS, ROWS, len(totals()))
    status = build().status().progress["group-by"]
    assert (status.tasks, status.tasks_reused) == (UNITS + 4, 0)
    again = build().run()
    assert (again.outcome, again.cost) == ("done", 0)
    assert build().status().progress["group-by"].tasks == 0, "it is sealed"
    assert len(PAID) == len(set(PAID)) == ROWS + len(totals())


@pytest.mark.parametrize("how", get_args(JoinKind))
def test_a_join_has_the_rows_of_plain_python(workspace: hr.Workspace, how: JoinKind) -> None:
    """After another shuffle; the other side is a pipeline with a stage on memory at its end."""
    other = hr.pipeline("names", workspace).source(names(), name="names")
    other.map(lambda row: row, name="pass")
    pipeline = grouped(hr.pipeline("job", workspace).source(orders(), rows_per_unit=20))
    pipeline.join(other, on="lang", how=how, partitions=3)
    assert pipeline.run().outcome == "done"
    assert rows_of(pipeline) == named(totals(), how)
    assert pipeline.run().outcome == "done"


def test_distinct_keeps_one_row_of_each_key(workspace: hr.Workspace) -> None:
    pipeline = hr.pipeline("job", workspace).source(orders(), rows_per_unit=20)
    pipeline.distinct("lang", "cents", partitions=3, rows_per_unit=10)
    pipeline.run()
    found = pipeline.collect().to_pylist()
    keys = [(row["lang"], row["cents"]) for row in orders().to_pylist()]
    assert {(row["lang"], row["cents"]) for row in found} == set(keys)
    assert len(found) == len(set(keys)) < ROWS
    assert all(row in orders().to_pylist() for row in found)
    assert pipeline.status().stages["distinct"].rows_out == len(found)


def test_files_and_collections_are_shuffled_without_a_stage_between(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    pq.write_table(orders(), tmp_path / "orders.parquet")
    (tmp_path / "names.csv").write_text("lang,name\nde,German\nen,English\nxx,nobody's\n")
    collection = workspace.collection("langs", "lang string, native string", key="lang")
    workspace.append(collection, [{"lang": "de", "native": "Deutsch"}])
    other = hr.pipeline("names", workspace).source(tmp_path / "names.csv", name="names")
    other.join(hr.pipeline("c", workspace).source(collection, name="langs"), "lang", name="native")
    pipeline = hr.pipeline("job", workspace).source(tmp_path / "orders.parquet", rows_per_unit=30)
    grouped(pipeline).join(other, on="lang", name="both")
    pipeline.run()
    expected = [row for row in named(totals(), "inner") if row["lang"] == "de"]
    assert rows_of(pipeline) == [{**row, "native": "Deutsch"} for row in expected]


def test_keys_of_units_with_other_types_are_the_same_keys(workspace: hr.Workspace) -> None:
    """An integer of one unit equals a float of another; a unit of nulls has neither type."""
    values: list[Any] = [1, 2, 2.0, 2.5, None, None]
    pipeline = hr.pipeline("job", workspace).source(pa.table({"n": range(6)}), rows_per_unit=2)
    pipeline.map(lambda row: {"key": values[row["n"]]}, version="1")
    pipeline.group_by("key").agg(n="count")
    pipeline.run()
    expected = [(1.0, 1), (2.0, 2), (2.5, 1), (None, 2)]
    found = [(row["key"], row["n"]) for row in pipeline.collect().to_pylist()]
    assert sorted(found, key=str) == sorted(expected, key=str)


def nothing(row: dict[str, Any]) -> list[dict[str, Any]]:
    return []


@pytest.mark.parametrize(("schema", "expected"), [("n long", [{"rows": 0}]), (None, [])])
def test_an_empty_input_has_the_columns_that_are_declared_above(
    workspace: hr.Workspace, schema: str | None, expected: list[dict[str, int]]
) -> None:
    pipeline = hr.pipeline("job", workspace).source(pa.table({"n": range(10)}))
    pipeline.flat_map(nothing, schema=schema, version="1").distinct("n").group_by()
    pipeline.group_by().agg(rows="count")
    assert pipeline.run().outcome == "done"
    assert pipeline.collect().to_pylist() == expected


@pytest.mark.parametrize("how", get_args(JoinKind))
def test_a_side_of_a_join_without_rows_or_columns_matches_nothing(
    workspace: hr.Workspace, how: JoinKind
) -> None:
    empty = hr.pipeline("empty", workspace).source(names(), name="names").flat_map(nothing)
    pipeline = hr.pipeline("job", workspace).source(orders(20)).map(lambda row: row, version="1")
    pipeline.join(empty, on="lang", how=how)
    assert pipeline.run().outcome == "done"
    kept = orders(20).to_pylist() if how in ("left", "full", "anti") else []
    assert rows_of(pipeline) == in_order(kept)


# -- what a later run repeats --------------------------------------------------------------------


class Death(Exception):
    """Stands for the end of a process."""


def die_after(monkeypatch: pytest.MonkeyPatch, outputs: int) -> None:
    """Let the run fail when so many tasks have published their output."""
    publish = MapOutputWriter.publish
    left = [outputs]

    def count(self: MapOutputWriter) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise StorageError("the disk is full", do="free some space")
        return publish(self)

    monkeypatch.setattr(MapOutputWriter, "publish", count)


def stop_in_the_middle(build: Callable[[], hr.Pipeline], outputs: int = 4) -> None:
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, outputs)
        with pytest.raises(StorageError, match="stage 'group-by': the disk is full"):
            build().run()


# proves G17, G21, G22
def test_a_run_goes_on_with_the_tasks_that_are_not_published(workspace: hr.Workspace) -> None:
    """With other workers; cleanup has removed nothing of them meanwhile."""
    stop_in_the_middle(lambda: grouped(paid_orders(workspace)))
    forecast = grouped(paid_orders(workspace)).plan().stages[1]
    assert (forecast.tasks_published, forecast.query) == (
        4,
        "group_by(lang): n=count, total=sum(cents); 4 partitions",
    )
    collect_garbage(workspace, "job")
    later_ms = now_ms() + 3_600_000
    AttemptCleanup(workspace.objects, now_ms=lambda: later_ms).cleanup_expired_attempts(0)
    pipeline = hr.pipeline("job", workspace).source(orders(), rows_per_unit=ROWS // UNITS)
    pipeline.map(pay, name="pay", version="1", expensive=True, cost=1, workers=3)
    assert grouped(pipeline).run().outcome == "done"
    status = pipeline.status().progress["group-by"]
    assert (status.tasks, status.tasks_reused) == (UNITS + 4, 4)
    assert len(PAID) == ROWS
    assert rows_of(pipeline) == totals()


# proves G20
def test_a_result_that_is_damaged_before_it_is_stored_is_computed_again(
    workspace: hr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_plan = PlanRun.run
    lost: list[str] = []

    def run_and_lose(self: PlanRun) -> list[MapTaskIndex]:
        results = run_plan(self)
        if not lost:
            index = next(each for each in results if each.rows)
            lost.append(index.task.part(index.attempt, 0))
            workspace.objects.delete(lost[0])
        return results

    monkeypatch.setattr(PlanRun, "run", run_and_lose)
    pipeline = grouped(hr.pipeline("job", workspace).source(orders(), rows_per_unit=20))
    assert pipeline.run().outcome == "done"
    assert lost
    assert rows_of(pipeline) == totals()


def test_a_stop_ends_the_tasks_and_the_next_run_goes_on(workspace: hr.Workspace) -> None:
    pipeline = grouped(paid_orders(workspace))
    publish = MapOutputWriter.publish
    with JobRun(workspace, pipeline.job) as run, pytest.MonkeyPatch.context() as patch:

        def publish_and_stop(self: MapOutputWriter) -> Any:
            run.stop()
            return publish(self)

        patch.setattr(MapOutputWriter, "publish", publish_and_stop)
        ThreadRunner().run(run)
        assert run.summary().outcome == "stopped"
    assert pipeline.run().outcome == "done"
    assert 1 <= pipeline.status().progress["group-by"].tasks_reused < UNITS
    assert rows_of(pipeline) == totals()


# -- changes, and what goes ----------------------------------------------------------------------


def changed(workspace: hr.Workspace) -> hr.Pipeline:
    return (
        paid_orders(workspace).group_by("lang", partitions=4).agg(n="count", total=("cents", "max"))
    )


def test_another_aggregate_is_refused_or_computed_and_nothing_above_is_paid_again(
    workspace: hr.Workspace,
) -> None:
    grouped(paid_orders(workspace)).run()
    with pytest.raises(ChangedError, match="the operator of stage 'group-by' has changed"):
        changed(workspace).run()
    other = paid_orders(workspace).group_by("lang", partitions=5)
    with pytest.raises(ChangedError, match="the operator of stage 'group-by' has changed"):
        other.agg(n="count", total=("cents", "sum")).run()
    kept = changed(workspace)
    assert kept.run(on_change="resume").outcome == "done"
    assert rows_of(kept) == totals(), "it is sealed"
    again = grouped(paid_orders(workspace))
    again.run(on_change="resume")
    fresh = changed(workspace)
    assert fresh.run(on_change="recompute").cost == 0
    assert {row["lang"]: row["n"] for row in rows_of(fresh)} == {
        row["lang"]: row["n"] for row in totals()
    }
    assert max(row["total"] for row in rows_of(fresh)) <= 100
    assert len(PAID) == ROWS
    assert fresh.run(on_change="restart").outcome == "done"
    assert fresh.run().outcome == "done"


@pytest.mark.parametrize("on_change", ["resume", "recompute"])
def test_a_stage_that_changes_in_the_middle_reads_no_output_of_before(
    workspace: hr.Workspace, on_change: Any
) -> None:
    stop_in_the_middle(lambda: grouped(paid_orders(workspace)))
    pipeline = changed(workspace)
    pipeline.run(on_change=on_change)
    assert pipeline.status().progress["group-by"].tasks_reused == 0
    assert max(row["total"] for row in rows_of(pipeline)) <= 100
    assert len(PAID) == ROWS


def test_groups_that_are_the_same_after_a_recompute_are_not_paid_again(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    """A group is a unit here, and units are named by their rows."""

    def build() -> hr.Pipeline:
        begun = hr.pipeline("job", workspace).source(tmp_path / "*.parquet", rows_per_unit=20)
        pipeline = grouped(begun, rows_per_unit=1)
        return pipeline.map(pay_for_group, name="last", version="1", expensive=True, cost=1)

    pq.write_table(orders(), tmp_path / "a.parquet")
    assert build().run().cost == len(totals())
    more = pa.table({"n": [1, 2], "lang": ["xx", "yy"], "cents": [1, 2]})
    pq.write_table(more, tmp_path / "b.parquet")
    with pytest.raises(ChangedError, match="1 file added"):
        build().run()
    assert build().run(on_change="recompute").cost == 2
    assert len(PAID) == len(set(PAID)) == len(totals()) + 2


def test_shuffle_files_stay_until_the_result_is_sealed_or_the_job_is_gone(
    workspace: hr.Workspace,
) -> None:
    """A killed run has left pins; a query of that name and another job are not touched."""
    hr.scan(orders(), workspace).group_by("lang").agg(n="count").run("job")
    beside = hr.pipeline("job-2", workspace).source(orders()).distinct("lang")
    beside.run()

    def files() -> list[str]:
        return [each.name for each in list_shuffle_files(workspace.objects, "job")]

    stop_in_the_middle(lambda: grouped(paid_orders(workspace)))
    (first,) = files()
    assert find_garbage(workspace, "job").shuffles == [], "the next run needs them"
    pipeline = grouped(paid_orders(workspace))
    with JobRun(workspace, pipeline.job) as run:
        assert shuffle_name(run.record, "group-by") == first
        ThreadRunner().run(run)
    assert pipeline.run(on_change="restart").outcome == "done"
    assert files() == [first], "nothing has changed"
    changed(workspace).run(on_change="restart")
    assert len(files()) == 2
    garbage = collect_garbage(workspace, "job")
    assert (len(garbage.shuffles), files()) == (2, [])
    assert rows_of(changed(workspace)) != [], "it is sealed"
    stop_in_the_middle(
        lambda: (
            grouped(paid_orders(workspace))
            .__class__("other", workspace)
            .source(orders(), rows_per_unit=20)
            .group_by("lang")
            .agg(n="count")
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, 4)
        with pytest.raises(StorageError):
            grouped(paid_orders(workspace)).run(on_change="recompute")
    assert len(files()) == 1
    delete_job(workspace, "job")
    assert files() == []
    assert len(list_shuffle_files(workspace.objects, "job-2")) == 1
    query = hr.scan(orders(), workspace).group_by("lang").agg(n="count").run("job")
    assert sum(each.computed for each in query.reports.values()) == 0


# -- bad input -----------------------------------------------------------------------------------


# proves G27
@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda begun: begun.group_by("nation").agg(n="count"),
            r"stage 'group-by': .*\(nation: n=count\): there is no column 'nation'; use one of n, ",
        ),
        (
            lambda begun: begun.group_by("n", name="sums").agg(total=("lang", "sum")),
            r"stage 'sums': total=sum\(lang\): column 'lang' has type string, which has no sum",
        ),
        (
            lambda begun: begun.distinct("tags"),
            r"stage 'distinct': .*: column 'tags' has type list<.*>, which cannot be a key; ",
        ),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_columns_that_do_not_fit_are_named_as_soon_as_they_are_known(
    workspace: hr.Workspace, build: Callable[[hr.Pipeline], hr.Pipeline], text: str, is_known: bool
) -> None:
    """When the pipeline is built; below a function without a schema, before the first task."""
    rows = orders().append_column("tags", pa.array([["a"]] * ROWS))
    begun = hr.pipeline("job", workspace).source(rows)
    if is_known:
        begun.filter(lambda batch: [True] * batch.num_rows, version="1")
        with pytest.raises(SchemaError, match=text):
            build(begun)
        assert list(begun.distinct("n").job.stages) == ["source", "filter", "distinct"]
        return
    pipeline = build(begun.map(lambda row: row, version="1"))
    with pytest.raises(SchemaError, match=text):
        pipeline.run()
    assert list_shuffle_files(workspace.objects, "job") == []
