"""Stages of a plan as text, as Mermaid and as DOT. Pure."""

from __future__ import annotations

from typing import Literal

from headrace.plan.operators import Operator, ShuffleRead, inputs
from headrace.plan.stages import PlanStage, StageGraph

DiagramFormat = Literal["text", "mermaid", "dot"]


def draw(graph: StageGraph, format: DiagramFormat = "text") -> str:
    """Return the stages, one after another, with what each reads."""
    if format == "mermaid":
        return _draw_mermaid(graph)
    if format == "dot":
        return _draw_dot(graph)
    return "\n\n".join(_describe(graph, stage) for stage in graph.stages)


def _describe(graph: StageGraph, stage: PlanStage) -> str:
    parents = ", ".join(map(str, stage.parents))
    head = f"stage {stage.stage_id}"
    head += (
        f", after {'stages' if len(stage.parents) > 1 else 'stage'} {parents}" if parents else ""
    )
    head += f": {stage.partitions} tasks" if stage.partitions else ": a task for each unit"
    return "\n".join([head, *_tree(graph, stage.root, 1)])


def _tree(graph: StageGraph, operator: Operator, depth: int) -> list[str]:
    """Return an operator and, indented below it, those that it reads within its stage."""
    line = "  " * depth + str(operator)
    if isinstance(operator, ShuffleRead):
        return [f"{line} of stage {graph.producer(operator).stage_id}"]
    return [line, *(each for below in inputs(operator) for each in _tree(graph, below, depth + 1))]


def _draw_mermaid(graph: StageGraph) -> str:
    lines = ["flowchart LR"]
    for stage in graph.stages:
        names = "<br/>".join(map(str, stage.operators)).replace('"', "#quot;")
        lines.append(f'  s{stage.stage_id}["stage {stage.stage_id}<br/>{names}"]')
    lines += [f"  s{producer} --> s{consumer}" for producer, consumer in graph.edges]
    return "\n".join(lines)


def _draw_dot(graph: StageGraph) -> str:
    lines = ["digraph plan {", "  rankdir=LR;", "  node [shape=box];"]
    for stage in graph.stages:
        names = "\\n".join(map(str, stage.operators)).replace('"', '\\"')
        lines.append(f'  s{stage.stage_id} [label="stage {stage.stage_id}\\n{names}"];')
    lines += [f"  s{producer} -> s{consumer};" for producer, consumer in graph.edges]
    return "\n".join([*lines, "}"])
