"""What must hold of the topics after any crash, as simply as it can be said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import headrace as hr
from headrace.queues.contract import Record
from headrace.queues.local_backend import LocalBackend
from headrace.testing.queue_conformance import fetch_all
from tests.queues.crash.chain import (
    GROUP,
    INPUT,
    OUTPUT,
    PARTITIONS,
    SETTINGS,
    create_topics,
    pass_on,
)


def check(root: Path, verdicts: Iterable[Path]) -> int:
    """Check the topics, let a worker pass on what is left, and check again.

    Returns the number of messages.
    """
    told = [line.split() for path in verdicts for line in path.read_text().splitlines()]
    return asyncio.run(_check(root, told))


async def _check(root: Path, told: list[list[str]]) -> int:
    with hr.open(root, settings=SETTINGS) as workspace:
        async with LocalBackend(workspace) as backend:
            await create_topics(backend)
            inputs = [await fetch_all(backend, INPUT, 100, p) for p in range(PARTITIONS)]
            check_verdicts(inputs, told)
            for partition, there in enumerate(inputs):
                committed = await backend.get_committed_offset(GROUP, INPUT, partition=partition)
                done = [each for each in there if each.offset < (committed or 0)]
                outputs = await fetch_all(backend, OUTPUT, 100, partition)
                check_outputs(done, outputs)
                while await pass_on(backend, partition, 7):
                    pass
                check_outputs(there, await fetch_all(backend, OUTPUT, 100, partition))
    return sum(map(len, inputs))


def check_verdicts(inputs: list[list[Record]], told: list[list[str]]) -> None:
    """Check that no message is lost, none is there twice, and none was refused."""
    found = {
        each.value.decode(): (str(partition), str(each.offset))
        for partition, there in enumerate(inputs)
        for each in there
    }
    assert len(found) == sum(map(len, inputs)), "a message is there twice"
    for verdict, value, *place in told:
        if verdict == "yes":
            assert found.get(value) == tuple(place), f"{value} is at {found.get(value)}"
        elif verdict == "no":
            assert value not in found, f"{value} was refused, and is there"


def check_outputs(inputs: list[Record], outputs: list[Record]) -> None:
    """Check that exactly these inputs were passed on, once each and in their order."""
    assert [each.value for each in outputs] == [b"of %d" % each.offset for each in inputs]
    assert [each.key for each in outputs] == [each.value for each in inputs]
