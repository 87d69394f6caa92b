"""Cuts a plan into stages. Pure.

The rule: a stage ends at every ShuffleRead. What a ShuffleRead reads is a stage of its own, its
parent. A stage begins when all its parents are complete.

Stages are numbered from 0, each after its parents, inputs from left to right. The same plan always
has the same stages, whatever runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from headrace.errors import UsageError
from headrace.plan.operators import (
    FinalHashAggregate,
    HashJoin,
    Operator,
    PartialHashAggregate,
    PlanSink,
    ShuffleRead,
    ShuffleWrite,
    SourceScan,
    inputs,
)

StageId = NewType("StageId", int)


@dataclass(frozen=True)
class PlanStage:
    """Operators that one task runs, one after another, without a shuffle between."""

    stage_id: StageId
    root: Operator
    """Its last operator: a ShuffleWrite, or the root of the plan."""
    operators: tuple[Operator, ...]
    """In the order in which they run."""
    parents: tuple[StageId, ...]

    @property
    def scans(self) -> tuple[SourceScan, ...]:
        return tuple(each for each in self.operators if isinstance(each, SourceScan))

    @property
    def reads(self) -> tuple[ShuffleRead, ...]:
        return tuple(each for each in self.operators if isinstance(each, ShuffleRead))

    @property
    def partitions(self) -> int:
        """The partitions that it reads, one in each task; 0 if it reads a source."""
        return self.reads[0].input.partitions if self.reads else 0


@dataclass(frozen=True)
class StageGraph:
    """The stages of a plan, each after its parents. The last one is the root."""

    stages: tuple[PlanStage, ...]

    @property
    def edges(self) -> tuple[tuple[StageId, StageId], ...]:
        """Every (producer, consumer)."""
        return tuple((parent, stage.stage_id) for stage in self.stages for parent in stage.parents)

    def producer(self, read: ShuffleRead) -> PlanStage:
        """Return the stage that writes what `read` reads."""
        return next(stage for stage in self.stages if stage.root is read.input)


def cut_stages(root: Operator) -> StageGraph:
    """Return the stages of a plan. Raises UsageError if the plan cannot run."""
    check_plan(root)
    stages: list[PlanStage] = []
    ids: dict[int, StageId] = {}

    def cut(end: Operator) -> StageId:
        if (known := ids.get(id(end))) is not None:
            return known
        operators = list(_within_stage(end))
        reads = [each for each in operators if isinstance(each, ShuffleRead)]
        parents = tuple(dict.fromkeys(cut(read.input) for read in reads))
        ids[id(end)] = number = StageId(len(stages))
        stages.append(PlanStage(number, end, tuple(operators), parents))
        return number

    cut(root)
    return StageGraph(tuple(stages))


def _within_stage(operator: Operator) -> list[Operator]:
    """Return the operators of a stage, each once and after its inputs."""
    found: dict[int, Operator] = {}

    def visit(each: Operator) -> None:
        if not isinstance(each, ShuffleRead):
            for below in inputs(each):
                visit(below)
        found.setdefault(id(each), each)

    visit(operator)
    return list(found.values())


def check_plan(root: Operator) -> None:
    """Raise UsageError, which names the operator, if a plan cannot run."""
    seen: set[int] = set()

    def visit(operator: Operator, *, is_root: bool) -> None:
        if id(operator) in seen:
            return
        seen.add(id(operator))
        _check_operator(operator, is_root=is_root)
        for below in inputs(operator):
            visit(below, is_root=False)

    visit(root, is_root=True)
    for read in (stage_end for stage_end in _stage_ends(root)):
        _check_stage(read)


def _check_operator(operator: Operator, *, is_root: bool) -> None:
    if isinstance(operator, PlanSink) and not is_root:
        raise UsageError(f"{operator} is read by another operator", do="put the sink last")
    if isinstance(operator, ShuffleWrite) and is_root:
        raise UsageError(f"{operator} is read by no operator", do="add a ShuffleRead of it")
    for below in inputs(operator):
        if isinstance(below, ShuffleWrite) and not isinstance(operator, ShuffleRead):
            raise UsageError(f"{operator} reads {below} directly", do="put a ShuffleRead between")
    if isinstance(operator, FinalHashAggregate):
        _check_final(operator)
    if isinstance(operator, HashJoin):
        _check_join(operator)


def _check_final(final: FinalHashAggregate) -> None:
    read = final.input
    partial = read.input.input if isinstance(read, ShuffleRead) else None
    if not isinstance(partial, PartialHashAggregate):
        raise UsageError(
            f"{final} does not read the shuffle of a PartialHashAggregate",
            do="build it as PartialHashAggregate, ShuffleWrite, ShuffleRead, FinalHashAggregate",
        )
    assert isinstance(read, ShuffleRead)
    if (partial.keys, partial.aggregates) != (final.keys, final.aggregates):
        raise UsageError(f"{final} differs from {partial}", do="give both the same")
    if not set(read.input.keys) <= set(final.keys):
        raise UsageError(
            f"{final} reads {read.input}, which may divide the rows of one key",
            do="shuffle by the keys of the aggregate",
        )


def _check_join(join: HashJoin) -> None:
    for read in (join.left, join.right):
        if not isinstance(read, ShuffleRead):
            raise UsageError(f"{join} reads {read}", do="shuffle both inputs by the join's columns")
        if read.input.keys != join.on:
            raise UsageError(f"{join} reads {read.input}", do="shuffle it by the join's columns")
    left, right = join.left.input.partitions, join.right.input.partitions
    if left != right:
        raise UsageError(
            f"{join} reads {left} partitions on its left and {right} on its right",
            do="give both shuffles the same number of partitions",
        )
    if join.kind not in ("inner", "left", "right", "full", "semi", "anti"):
        raise UsageError(
            f"{join} is no kind of join", do="use inner, left, right, full, semi or anti"
        )


def _stage_ends(root: Operator) -> list[Operator]:
    """Return the last operator of every stage."""
    ends: dict[int, Operator] = {id(root): root}

    def visit(operator: Operator) -> None:
        for below in inputs(operator):
            if isinstance(operator, ShuffleRead):
                ends.setdefault(id(below), below)
            visit(below)

    visit(root)
    return list(ends.values())


def _check_stage(end: Operator) -> None:
    operators = _within_stage(end)
    scans = [each for each in operators if isinstance(each, SourceScan)]
    reads = [each for each in operators if isinstance(each, ShuffleRead)]
    if len(scans) > 1 or (scans and reads):
        raise UsageError(
            f"the stage of {end} reads {' and '.join(map(str, [*scans, *reads]))} in one task",
            do="shuffle the inputs first",
        )
    if len({read.input.partitions for read in reads}) > 1:
        raise UsageError(
            f"the stage of {end} reads shuffles with different numbers of partitions",
            do="give all of them the same number",
        )
