"""Random calls of a queue backend, beside an oracle that is too simple to be wrong.

    python -m headrace.testing.queue_simulator --seeds 20000 --processes 16

runs the topics in memory, whose state is validated after every call. `OracleRun` compares any other
backend in the same way.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from headrace.errors import AheadOfHeadError, BehindRetentionError, FencedError
from headrace.queues.contract import OffsetCommit, Output, QueueBackend, Record
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics
from headrace.testing.queue_conformance import fetch_all
from headrace.testing.seeds import Say, Simulation, main

TOPIC, OUTPUT, PARTITIONS = "units", "results", 2
STEPS = 60


class QueueKind(StrEnum):
    """What happens in a history."""

    PRODUCED = "messages were produced"
    EMPTY_BATCH = "a batch without messages was produced"
    COMMITTED = "a step committed outputs and an offset"
    ZOMBIE_REFUSED = "a step of a worker that was overtaken was refused, with its outputs"
    SKIPPED = "a worker found nothing to process"
    FETCHED = "a fetch returned messages"
    FETCHED_NOTHING = "a fetch at the end returned nothing"
    BEHIND = "a fetch before the first kept message was refused"
    AHEAD = "a fetch after the end was refused"
    TRUNCATED = "what all groups had processed was truncated"
    UNCOMMITTED = "nothing was truncated, because nobody had committed"
    RESTARTED = "the backend stopped, and another went on"


class ProduceCall(NamedTuple):
    partition: int
    values: list[bytes]


class StepCall(NamedTuple):
    """A worker that last saw the committed offset `behind` commits ago takes a few messages."""

    group: str
    partition: int
    messages: int
    behind: int


class FetchCall(NamedTuple):
    """Fetch from so many messages before the end; a negative number is after it."""

    partition: int
    from_end: int
    most: int


class TruncateCall(NamedTuple):
    partition: int


class RestartCall(NamedTuple):
    """The backend stops, and another goes on."""


QueueCall = ProduceCall | StepCall | FetchCall | TruncateCall | RestartCall


class QueueOracle:
    """Lists of values, and for each group how many of them it has passed on."""

    def __init__(self) -> None:
        self.produced: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.passed: dict[tuple[str, int], list[int]] = {}
        """The history of how many messages a group has passed on in a partition."""
        self.truncated = [0] * PARTITIONS
        """How many messages at the front may be gone."""
        self.outputs: list[list[bytes]] = [[] for _ in range(PARTITIONS)]


class OracleRun:
    """Makes each call of the backend and of the oracle."""

    def __init__(self, say: Say | None = None) -> None:
        self.oracle = QueueOracle()
        self.counts: Counter[StrEnum] = Counter()
        self._say = say
        self._offsets: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self._history: dict[tuple[str, int], list[int | None]] = {}

    def count(self, kind: QueueKind) -> None:
        self.counts[kind] += 1
        if self._say:
            self._say(f"  {kind}")

    async def perform(self, backend: QueueBackend, call: QueueCall) -> None:
        if self._say:
            self._say(str(call))
        match call:
            case ProduceCall(partition, values):
                offsets = await backend.produce_batch(TOPIC, values, partition=partition)
                self._offsets[partition] += offsets
                self.oracle.produced[partition] += values
                assert self._offsets[partition] == sorted(set(self._offsets[partition]))
                self.count(QueueKind.PRODUCED if values else QueueKind.EMPTY_BATCH)
            case StepCall():
                await self._step(backend, call)
            case FetchCall():
                await self._fetch(backend, call)
            case TruncateCall(partition):
                await self._truncate(backend, partition)

    async def _truncate(self, backend: QueueBackend, partition: int) -> None:
        least = await backend.get_min_committed_offset(TOPIC, partition=partition)
        groups = self.oracle.passed.items()
        passed = [counts[-1] for (_, p), counts in groups if p == partition and counts[1:]]
        assert (least is None) == (not passed)
        if least is None:
            self.count(QueueKind.UNCOMMITTED)
            return
        truncated = max(self.oracle.truncated[partition], min(passed))
        self.oracle.truncated[partition] = truncated
        await backend.truncate_before(TOPIC, least, partition=partition)
        self.count(QueueKind.TRUNCATED)

    async def _step(self, backend: QueueBackend, step: StepCall) -> None:
        key = step.group, step.partition
        history = self._history.setdefault(key, [None])
        passed = self.oracle.passed.setdefault(key, [0])
        seen = max(len(history) - 1 - step.behind, 0)
        expected, done = history[seen], passed[seen]
        mine = self._offsets[step.partition][done : done + step.messages]
        values = self.oracle.produced[step.partition][done : done + step.messages]
        if not mine:
            self.count(QueueKind.SKIPPED)
            return
        outputs = [Output(OUTPUT, value, step.group.encode(), step.partition) for value in values]
        commit = OffsetCommit(step.group, TOPIC, mine[-1] + 1, expected, step.partition)
        try:
            await backend.produce_and_commit(outputs, commit)
        except FencedError:
            assert history[-1] != expected, "the only worker is refused"
            self.count(QueueKind.ZOMBIE_REFUSED)
            return
        assert history[-1] == expected, "a zombie has committed"
        history.append(mine[-1] + 1)
        passed.append(done + len(mine))
        self.oracle.outputs[step.partition] += values
        self.count(QueueKind.COMMITTED)

    async def _fetch(self, backend: QueueBackend, call: FetchCall) -> None:
        """Fetch, and compare. What may be truncated need not be, in any backend."""
        partition = call.partition
        begin = await backend.begin_offset(TOPIC, partition=partition)
        end = await backend.end_offset(TOPIC, partition=partition)
        offsets = self._offsets[partition]
        if call.from_end <= 0:
            offset = end - call.from_end
        else:
            offset = offsets[-call.from_end] if call.from_end <= len(offsets) else begin
        try:
            found = await backend.fetch(TOPIC, offset, call.most, partition=partition)
        except BehindRetentionError:
            assert offset < begin
            self.count(QueueKind.BEHIND)
            return
        except AheadOfHeadError:
            assert offset > end
            self.count(QueueKind.AHEAD)
            return
        assert begin <= offset <= end
        self._check_found(found, partition, offset, call.most)
        self.count(QueueKind.FETCHED if found else QueueKind.FETCHED_NOTHING)

    def _check_found(self, found: Sequence[Record], partition: int, offset: int, most: int) -> None:
        known = zip(self._offsets[partition], self.oracle.produced[partition], strict=True)
        wanted = [each for each in known if each[0] >= offset]
        assert [(each.offset, each.value) for each in found] == wanted[: len(found)]
        assert len(found) <= most
        assert bool(found) == bool(wanted)

    async def check(self, backend: QueueBackend, at_once: int) -> None:
        """Compare everything that the backend has."""
        for partition in range(PARTITIONS):
            found = await fetch_all(backend, TOPIC, at_once, partition)
            gone = len(self._offsets[partition]) - len(found)
            assert [each.value for each in found] == self.oracle.produced[partition][gone:]
            assert gone <= self.oracle.truncated[partition]
            outputs = await fetch_all(backend, OUTPUT, at_once, partition)
            assert [each.value for each in outputs] == self.oracle.outputs[partition]
        for (group, partition), history in self._history.items():
            found_offset = await backend.get_committed_offset(group, TOPIC, partition=partition)
            assert found_offset == history[-1]


async def compare(
    opener: Callable[[], QueueBackend],
    script: Sequence[QueueCall],
    at_once: int,
    *,
    validate: Callable[[], None] = lambda: None,
    say: Say | None = None,
) -> Counter[StrEnum]:
    """Make all calls of a script; raise AssertionError if the backend and the oracle differ.

    `opener` opens the backend, again after each restart. `validate` is called after each call.
    """
    run = OracleRun(say)
    backend = opener()
    await backend.start()
    await backend.create_topic(TOPIC, PARTITIONS)
    await backend.create_topic(OUTPUT, PARTITIONS)
    for call in script:
        if isinstance(call, RestartCall):
            await backend.stop()
            backend = opener()
            await backend.start()
            run.count(QueueKind.RESTARTED)
        else:
            await run.perform(backend, call)
        validate()
    await run.check(backend, at_once)
    await backend.stop()
    return run.counts


def random_script(chance: random.Random, calls_max: int) -> list[QueueCall]:
    kinds: list[Callable[[], QueueCall]] = [
        lambda: ProduceCall(
            chance.randrange(PARTITIONS), [chance.randbytes(3)] * chance.randrange(6)
        ),
        lambda: StepCall(
            chance.choice("abc"),
            chance.randrange(PARTITIONS),
            chance.randrange(1, 6),
            chance.choice((0, 0, 0, 1, 2)),
        ),
        lambda: FetchCall(
            chance.randrange(PARTITIONS), chance.randrange(-1, 12), chance.randrange(1, 9)
        ),
        lambda: TruncateCall(chance.randrange(PARTITIONS)),
        RestartCall,
    ]
    weights = (4, 5, 2, 1, 1)
    return [make() for make in chance.choices(kinds, weights, k=chance.randrange(1, calls_max))]


def _run(seed: int, steps: int, say: Say | None) -> Counter[StrEnum]:
    topics = MemoryTopics()
    script = random_script(random.Random(seed), max(2, steps))
    opener = partial(MemoryBackend, topics)
    return asyncio.run(compare(opener, script, 7, validate=topics.validate, say=say))


SIMULATION = Simulation(
    "headrace.testing.queue_simulator", "topics in memory", QueueKind, STEPS, _run
)


if __name__ == "__main__":
    # Other processes know this module by its name.
    from headrace.testing import queue_simulator

    sys.exit(main(queue_simulator.SIMULATION))
