"""Diagrams show every name as it is, whatever characters it has."""

from __future__ import annotations

import html
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.diagram import draw, operator_line
from headrace.plan.query import Query
from headrace.plan.stages import StageGraph
from tests.plan.sample_sources import TableScan


def named(name: str) -> StageGraph:
    """A plan whose source, function and column have this name."""

    def function(batch: Any) -> Any:
        return batch

    function.__name__ = name or "f"
    source = TableScan(pa.table({name: ["x"]}), label=name)
    return Query.scan(source).filter(function).distinct(name, partitions=1).stages


def mermaid_labels(text: str) -> list[list[str]]:
    """Read the lines of each label as Mermaid does; fails if a label has what it may not have."""
    labels = re.findall(r'^  s\d+\["(.*)"\]$', text, re.MULTILINE)
    for label in labels:
        assert not re.search(r"[\"'`*~\\&\[\]{}|%$!@^]|<(?!br/>)|(?<!<br/)>|#(?!\d+;)", label)
        assert not re.search(r"(?<!\w)_|_(?!\w)|://", label)
    return [
        [html.unescape(line.replace("#", "&#")) for line in label.split("<br/>")]
        for label in labels
    ]


def dot_labels(text: str) -> list[list[str]]:
    """Read the lines of each label as Graphviz does."""
    labels = re.findall(r'^  s\d+ \[label="((?:[^"\\\n]|\\.)*)"\];$', text, re.MULTILINE)
    return [
        [
            html.unescape(re.sub(r"\\(.)", r"\1", line))
            for line in re.sub(r"(?<!\\)((?:\\\\)*)\\n", r"\1\n", label).split("\n")
        ]
        for label in labels
    ]


def expected_labels(graph: StageGraph) -> list[list[str]]:
    return [
        [f"stage {stage.stage_id}", *map(operator_line, stage.operators)] for stage in graph.stages
    ]


NAMES = [
    'a "quoted" name', "<lambda>", "a\nb", "back\\slash", "\\N", "ends with \\", "\\n", "&lt;",
    "#quot;", "#35;", "__call__", "_private", "*bold*", "`code`", "%%{init}%%", "a|b{c}[d]",
    "s3://bucket/*.parquet", "x]; s9 -> s8", "größe 🚰", "tab\tbell\a", "\u2028", "$$x$$",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_diagram_shows_a_name_as_it_is(name: str) -> None:
    graph = named(name)
    assert mermaid_labels(draw(graph, "mermaid")) == expected_labels(graph)
    assert dot_labels(draw(graph, "dot")) == expected_labels(graph)
    assert len(draw(graph).splitlines()) == 9


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_diagram_shows_any_name_as_it_is(name: str) -> None:
    test_a_diagram_shows_a_name_as_it_is(name)


def test_diagrams_are_as_short_as_they_can_be() -> None:
    orders = TableScan(pa.table({"lang": ["en"], "order_cents": [1]}), label="orders")
    query = Query.scan(orders).filter(lambda batch: batch).group_by("lang", partitions=4)
    graph = query.agg(n="count", total=("order_cents", "sum")).stages
    assert draw(graph, "mermaid").splitlines() == [
        "flowchart LR",
        '  s0["stage 0<br/>Scan(orders)<br/>Filter(#60;lambda#62;)'
        "<br/>PartialHashAggregate(lang: n=count, total=sum(order_cents))"
        '<br/>ShuffleWrite(lang; 4 partitions)"]',
        '  s1["stage 1<br/>ShuffleRead(4 partitions)'
        '<br/>FinalHashAggregate(lang: n=count, total=sum(order_cents))"]',
        "  s0 --> s1",
    ]
    assert draw(graph, "dot").splitlines() == [
        "digraph plan {",
        "  rankdir=LR;",
        "  node [shape=box];",
        '  s0 [label="stage 0\\nScan(orders)\\nFilter(<lambda>)'
        "\\nPartialHashAggregate(lang: n=count, total=sum(order_cents))"
        '\\nShuffleWrite(lang; 4 partitions)"];',
        '  s1 [label="stage 1\\nShuffleRead(4 partitions)'
        '\\nFinalHashAggregate(lang: n=count, total=sum(order_cents))"];',
        "  s0 -> s1;",
        "}",
    ]


def test_one_task_is_not_several() -> None:
    graph = Query.scan(TableScan(pa.table({"a": [1]}))).group_by().agg(n="count").stages
    assert "stage 1, after stage 0: 1 task\n" in draw(graph)
