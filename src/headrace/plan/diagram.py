"""Stages of a plan as text, as Mermaid and as DOT. Pure.

Functions, columns and sources have names of any characters. A name stays on its line, and all
formats show it as it is.
"""

from __future__ import annotations

import re
from typing import Literal

from headrace.plan.operators import Operator, ShuffleRead, inputs
from headrace.plan.stages import PlanStage, StageGraph

DiagramFormat = Literal["text", "mermaid", "dot"]

# Mermaid reads a label as Markdown and as HTML. An underscore within a word is only itself.
_MERMAID_SPECIAL = re.compile(r"[^\w .,:;=()/+-]|\b_+|_+\b|:(?=//)")


def draw(graph: StageGraph, format: DiagramFormat = "text") -> str:
    """Return the stages, one after another, with what each reads."""
    if format == "mermaid":
        return _draw_mermaid(graph)
    if format == "dot":
        return _draw_dot(graph)
    return "\n\n".join(_describe(graph, stage) for stage in graph.stages)


def operator_line(operator: Operator) -> str:
    """Return an operator on one line: what cannot be printed is escaped as in Python."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in str(operator)
    )


def _describe(graph: StageGraph, stage: PlanStage) -> str:
    parents = ", ".join(map(str, stage.parents))
    head = f"stage {stage.stage_id}"
    if parents:
        head += f", after {'stages' if len(stage.parents) > 1 else 'stage'} {parents}"
    return "\n".join([f"{head}: {_tasks(stage)}", *_tree(graph, stage.root, 1)])


def _tasks(stage: PlanStage) -> str:
    if not stage.partitions:
        return "a task for each unit"
    return "1 task" if stage.partitions == 1 else f"{stage.partitions} tasks"


def _tree(graph: StageGraph, operator: Operator, depth: int) -> list[str]:
    """Return an operator and, indented below it, those that it reads within its stage."""
    line = "  " * depth + operator_line(operator)
    if isinstance(operator, ShuffleRead):
        return [f"{line} of stage {graph.producer(operator).stage_id}"]
    return [line, *(each for below in inputs(operator) for each in _tree(graph, below, depth + 1))]


def _draw_mermaid(graph: StageGraph) -> str:
    lines = ["flowchart LR"]
    for stage in graph.stages:
        label = "<br/>".join(map(_escape_mermaid, _label(stage)))
        lines.append(f'  s{stage.stage_id}["{label}"]')
    lines += [f"  s{producer} --> s{consumer}" for producer, consumer in graph.edges]
    return "\n".join(lines)


def _draw_dot(graph: StageGraph) -> str:
    lines = ["digraph plan {", "  rankdir=LR;", "  node [shape=box];"]
    for stage in graph.stages:
        label = "\\n".join(map(_escape_dot, _label(stage)))
        lines.append(f'  s{stage.stage_id} [label="{label}"];')
    lines += [f"  s{producer} -> s{consumer};" for producer, consumer in graph.edges]
    return "\n".join([*lines, "}"])


def _label(stage: PlanStage) -> list[str]:
    return [f"stage {stage.stage_id}", *map(operator_line, stage.operators)]


def _escape_mermaid(text: str) -> str:
    def escape(found: re.Match[str]) -> str:
        return "".join(f"#{ord(letter)};" for letter in found[0])

    return _MERMAID_SPECIAL.sub(escape, text)


def _escape_dot(text: str) -> str:
    # Graphviz replaces \N, \G and the like in a label, and reads HTML entities.
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
