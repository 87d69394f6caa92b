"""Inputs: which partition a stage reads, what it writes, and whose offset it commits. Pure.

A stage has an input for every partition that it reads. Input n writes to partition n of the stage's
output topic, so the messages of an input keep their order from the source to the sink.

A durable stage commits an offset in the *origin* of its input: the partition that it reads if that
is durable, else the nearest durable one upstream, through stages on memory. The group of that
offset is named after the stage and the path between, because two paths may lead from one origin to
one stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from headrace.pipeline.job import Job

PARTITIONS_MIN = 16
"""Of the output topic of a stage that takes all rows at once: its result may have more units than
its input has."""


class InputTopic(NamedTuple):
    """The output topic of a stage."""

    name: str
    is_durable: bool
    partitions: int


class StageInput(msgspec.Struct, frozen=True):
    """One partition that a stage reads."""

    stage: str
    number: int
    """Also the partition of the stage's output topic that the input writes to, unless the stage
    takes all rows at once."""
    upstream: str
    topic: str
    partition: int
    is_input_durable: bool
    origin_topic: str
    origin_partition: int
    group: str
    """The group whose offset in the origin the stage commits, if it is durable."""


def topics(
    job: Job, source_topics: Mapping[str, InputTopic], names: Mapping[str, str]
) -> dict[str, InputTopic]:
    """Return the output topic of every stage; `names` has those of stages that are not sources."""
    found = dict(source_topics)
    for stage in job.operators:
        name = stage.stage_id
        partitions = sum(found[upstream].partitions for upstream in job.upstreams(name))
        if stage.takes_all:
            partitions = max(partitions, PARTITIONS_MIN)
        found[name] = InputTopic(names[name], job.is_durable(name), partitions)
    return found


def inputs(
    job: Job, topics: Mapping[str, InputTopic], groups: Mapping[str, str]
) -> dict[str, list[StageInput]]:
    """Return the inputs of every stage that has workers; `groups` names each stage's offsets."""
    found: dict[str, list[StageInput]] = {}
    paths: dict[tuple[str, int], tuple[str, ...]] = {}
    for stage in job.operators:
        name = stage.stage_id
        found[name] = []
        for upstream in job.upstreams(name):
            topic = topics[upstream]
            for partition in range(topic.partitions):
                number = len(found[name])
                path: tuple[str, ...] = ()
                origin = topic.name, partition
                if not topic.is_durable:
                    above = found[upstream][partition]
                    path = (*paths[upstream, partition], upstream)
                    origin = above.origin_topic, above.origin_partition
                paths[name, number] = path
                group = ":".join([groups[name], *path])
                input = StageInput(
                    name, number, upstream, topic.name, partition, topic.is_durable, *origin, group
                )
                found[name].append(input)
    return found


def committing_inputs(
    job: Job, inputs: Mapping[str, list[StageInput]], input: StageInput
) -> Iterator[StageInput]:
    """Yield the inputs of durable stages that commit what passes through this input."""
    if job.is_durable(input.stage):
        yield input
        return
    for downstream in job.downstreams(input.stage):
        for below in inputs[downstream]:
            if (below.upstream, below.partition) == (input.stage, input.number):
                yield from committing_inputs(job, inputs, below)
