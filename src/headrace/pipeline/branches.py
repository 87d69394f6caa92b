"""The stages of a pipeline as its builder holds them: branches that end in one stage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.errors import UsageError
from headrace.pipeline.job import Job, Stage, StageConfig


class BuiltStage(NamedTuple):
    """A stage of a pipeline. In a list of them, the last is the one that all others lead to."""

    stage: Stage
    is_chosen: bool
    """True if its user chose where its output lives."""
    above: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.stage.stage_id


def merge(stages: Sequence[BuiltStage], branch: Sequence[BuiltStage], of: str) -> list[BuiltStage]:
    """Return the stages of both; `of` names the pipeline that `branch` is from.

    Raises UsageError if they share a name: results are found again by the name of their stage, so
    nobody but the user may choose another.
    """
    taken = {each.name for each in stages}
    for each in branch:
        if each.name in taken:
            raise UsageError(
                f"pipeline {of!r} has a stage {each.name!r}, and so has the one that it is joined"
                " to",
                do=f"give one of them another name, such as name='{of}-{each.name}'",
            )
    return [*stages, *branch]


def assemble(name: str, stages: Sequence[BuiltStage], budget: float | None = None) -> Job:
    """Return the job that the stages make.

    Where their user chose nothing, the output of the last stage, and what a stage takes all at
    once, is durable.
    """
    taken_whole = {above for each in stages if each.stage.takes_all for above in each.above}
    durable = {stages[-1].name, *taken_whole} if stages else set()
    job = Job(name, budget=budget)
    for stage, is_chosen, above in stages:
        if stage.stage_id in durable and not is_chosen and not stage.source:
            stage = Stage(stage.stage_id, stage.operator, _on_disk(stage.config))
        job.add_stage(stage, above)
    return job


def _on_disk(config: StageConfig) -> StageConfig:
    return StageConfig(
        batch_size=config.batch_size,
        fetch_timeout_ms=config.fetch_timeout_ms,
        workers=config.workers,
        resources=config.resources,
    )
