"""Pipelines that are joined: one job of the stages of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.pipeline.job import Job, Stage
from headrace.pipeline.operators.shuffles import GroupOperator, JoinOperator
from headrace.pipeline.pipeline_file import find_pipelines
from headrace.pipeline.source.sources import TableSource
from tests.pipeline.jobs import MEMORY, numbers
from tests.pipeline.orders import names, orders


def begun(workspace: hr.Workspace, name: str, stage: str = "source", **options: Any) -> hr.Pipeline:
    return hr.pipeline(name, workspace, **options).source(orders(), name=stage)


def test_the_stages_of_both_are_one_job_and_each_reads_its_own(workspace: hr.Workspace) -> None:
    """What a join reads is durable, unless its user has chosen; so is the last stage."""
    other = hr.pipeline("names", workspace).source(names(), name="names")
    other.map(dict, name="low").map(dict, name="high")
    pipeline = begun(workspace, "job").map(dict, name="left").join(other, "lang").map(dict)
    job = pipeline.job
    assert {name: job.upstreams(name) for name in job.stages} == {
        "source": (),
        "left": ("source",),
        "names": (),
        "low": ("names",),
        "high": ("low",),
        "join": ("left", "high"),
        "dict": ("join",),
    }
    assert [name for name in job.stages if not job.is_durable(name)] == ["low"]
    assert find_pipelines({"a": pipeline, "b": other}, Path("file.py")) == [pipeline]


def test_a_stage_that_its_user_keeps_on_memory_cannot_be_joined(workspace: hr.Workspace) -> None:
    pipeline = begun(workspace, "job").map(dict, name="light", durable=False).distinct("lang")
    with pytest.raises(UsageError, match=r"'distinct' takes all rows at once, .* of 'light' is on"):
        _ = pipeline.job


# proves G27
def test_what_cannot_be_joined_is_refused_and_changes_nothing(
    workspace: hr.Workspace, tmp_path: Path
) -> None:
    pipeline = begun(workspace, "job")

    def refused(other: Any, text: str, **options: Any) -> None:
        with pytest.raises(UsageError, match=text):
            pipeline.join(other, **{"on": "lang", **options})

    other = begun(workspace, "other", "orders")
    refused(pipeline, "'job' is joined with itself; build its other side as a pipeline of its own")
    refused(begun(workspace, "b"), "'b' has a stage 'source', and .*; give .* name='b-source'")
    refused(begun(workspace, "b", "x", budget=1), "'b' has a budget, and becomes part of 'job'")
    refused(hr.pipeline("empty", workspace), "'empty' begins with stage 'join'; call source first")
    refused(hr.pipeline(Job("job"), workspace), "has the stages of its Job")
    refused(orders(), "a Table cannot be joined; give a pipeline")
    refused(other, "both inputs have a column 'cents'; rename it", on=["lang", "n"])
    refused(other, "stage 'join': .*nation.* there is no column 'nation'; use", on="nation")
    refused(other, "is no kind of join; use one of inner", how="outer")
    refused(other, r"join\(\) names no column", on=[])
    refused(other, "partitions must be from 1 to", partitions=0)
    with hr.open(tmp_path / "elsewhere") as elsewhere:
        refused(begun(elsewhere, "far", "x"), "'far' is of the workspace .*elsewhere, and 'job' of")
    assert list(pipeline.distinct("lang").job.stages) == ["source", "distinct"]
    assert not other.is_joined
    with pytest.raises(UsageError, match="rows_per_unit must be at least 1, got 0"):
        pipeline.group_by("lang", rows_per_unit=0).agg(n="count")
    with pytest.raises(UsageError, match=r"agg\(\) names no aggregate"):
        pipeline.group_by("lang").agg()


# proves G27
def test_nothing_reads_what_a_sink_has_written(workspace: hr.Workspace, tmp_path: Path) -> None:
    """Neither a sink that is a function nor one of Spark."""
    for number, sink in enumerate((print, hr.parquet(tmp_path / "out"))):
        ended = begun(workspace, "ended", f"rows-{number}").sink(sink, name="out")
        text = "pipeline 'ended' ends in the sink 'out', and stage '{}' would read it; put the sink"
        with pytest.raises(UsageError, match=text.format("join")):
            begun(workspace, "job").join(ended, on="lang")
        with pytest.raises(UsageError, match=text.format("join")):
            ended.join(begun(workspace, "other"), on="lang")
        with pytest.raises(UsageError, match=text.format("dict")):
            ended.map(dict)
        with pytest.raises(UsageError, match=text.format("sink")):
            ended.sink(print)
        assert list(ended.job.stages) == [f"rows-{number}", "out"]
        assert not ended.is_joined
        job = Job("job").add_stage(Stage("a", TableSource(numbers(3))))
        job.add_stage(Stage("out", ended.job.stages["out"].operator), ["a"])
        with pytest.raises(UsageError, match="stage 'all' reads from the sink 'out'; name a stage"):
            job.add_stage(Stage("all", GroupOperator((), {"n": "count"})), ["out"])


def test_the_stages_of_a_job_are_checked_too() -> None:
    def check(stage: Stage, *upstreams: str) -> None:
        job = Job("job")
        for name in ("a", "b"):
            job.add_stage(Stage(name, TableSource(numbers(3))))
        job.add_stage(stage, upstreams)
        others = [name for name in ("a", "b") if name not in upstreams]
        if others:
            job.add_stage(Stage("rest", GroupOperator((), {"n": "count"})), others)
        job.validate()

    check(Stage("all", GroupOperator("n", {"rows": "count"})), "a", "b")
    check(Stage("join", JoinOperator("n")), "a", "b")
    with pytest.raises(
        UsageError, match=r"stage 'join': join\(inner, on n\) reads 2 stages, got 1"
    ):
        check(Stage("join", JoinOperator("n")), "a")
    with pytest.raises(UsageError, match=r"stage 'all': .*there is no column 'm'"):
        check(Stage("all", GroupOperator("m", {"rows": "count"})), "a", "b")
    with pytest.raises(UsageError, match=r"'all' takes all rows at once, .* of 'all' is on memory"):
        check(Stage("all", GroupOperator("n", {"rows": "count"}), MEMORY), "a", "b")
