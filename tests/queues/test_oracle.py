"""Random calls, and an oracle that is too simple to be wrong: every backend does what it does."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FencedError
from headrace.queues.contract import OffsetCommit, Output, QueueBackend
from headrace.queues.local_backend import LocalBackend
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics
from headrace.testing.crash import chosen_seed
from headrace.testing.queue_conformance import fetch_all

TOPIC, OUTPUT, PARTITIONS = "units", "results", 2
Opener = Callable[[], QueueBackend]


class Produce(NamedTuple):
    partition: int
    values: list[bytes]


class Step(NamedTuple):
    """A worker that last saw the committed offset `behind` commits ago takes a few messages."""

    group: str
    partition: int
    messages: int
    behind: int


class Truncate(NamedTuple):
    partition: int


class Restart(NamedTuple):
    """The backend stops, and another goes on."""


Call = Produce | Step | Truncate | Restart

partitions = st.integers(0, PARTITIONS - 1)
calls = st.lists(
    st.one_of(
        st.builds(Produce, partitions, st.lists(st.binary(max_size=40), max_size=6)),
        st.builds(
            Step, st.sampled_from("ab"), partitions, st.integers(1, 5), st.sampled_from((0, 0, 1))
        ),
        st.builds(Truncate, partitions),
        st.builds(Restart),
    ),
    max_size=25,
)


class Oracle:
    """Lists of values, and for each group how many of them it has passed on."""

    def __init__(self) -> None:
        self.produced: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.passed: dict[tuple[str, int], list[int]] = {}
        """The history of how many messages a group has passed on in a partition."""
        self.truncated = [0] * PARTITIONS
        """How many messages at the front may be gone."""
        self.outputs: list[list[bytes]] = [[] for _ in range(PARTITIONS)]


class Run:
    """Does each call with the backend and with the oracle."""

    def __init__(self) -> None:
        self.oracle = Oracle()
        self._offsets: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self._history: dict[tuple[str, int], list[int | None]] = {}

    async def perform(self, backend: QueueBackend, call: Call) -> None:
        match call:
            case Produce(partition, values):
                offsets = await backend.produce_batch(TOPIC, values, partition=partition)
                self._offsets[partition] += offsets
                self.oracle.produced[partition] += values
                assert self._offsets[partition] == sorted(set(self._offsets[partition]))
            case Step():
                await self._step(backend, call)
            case Truncate(partition):
                least = await backend.get_min_committed_offset(TOPIC, partition=partition)
                groups = self.oracle.passed.items()
                passed = [counts[-1] for (_, p), counts in groups if p == partition and counts[1:]]
                assert (least is None) == (not passed)
                if least is not None:
                    self.oracle.truncated[partition] = max(
                        self.oracle.truncated[partition], min(passed)
                    )
                    await backend.truncate_before(TOPIC, least, partition=partition)

    async def _step(self, backend: QueueBackend, step: Step) -> None:
        key = step.group, step.partition
        history = self._history.setdefault(key, [None])
        passed = self.oracle.passed.setdefault(key, [0])
        seen = max(len(history) - 1 - step.behind, 0)
        expected, done = history[seen], passed[seen]
        mine = self._offsets[step.partition][done : done + step.messages]
        values = self.oracle.produced[step.partition][done : done + step.messages]
        if not mine:
            return
        outputs = [Output(OUTPUT, value, step.group.encode(), step.partition) for value in values]
        commit = OffsetCommit(step.group, TOPIC, mine[-1] + 1, expected, step.partition)
        if history[-1] != expected:
            with pytest.raises(FencedError):
                await backend.produce_and_commit(outputs, commit)
            return
        await backend.produce_and_commit(outputs, commit)
        history.append(mine[-1] + 1)
        passed.append(done + len(mine))
        self.oracle.outputs[step.partition] += values

    async def check(self, backend: QueueBackend, at_once: int) -> None:
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


async def compare(opener: Opener, script: list[Call], at_once: int) -> None:
    run = Run()
    backend = opener()
    await backend.start()
    await backend.create_topic(TOPIC, PARTITIONS)
    await backend.create_topic(OUTPUT, PARTITIONS)
    for call in script:
        if isinstance(call, Restart):
            await backend.stop()
            backend = opener()
            await backend.start()
        else:
            await run.perform(backend, call)
    await run.check(backend, at_once)
    await backend.stop()


@given(script=calls, at_once=st.integers(1, 9))
def test_the_memory_backend_does_what_the_oracle_does(script: list[Call], at_once: int) -> None:
    topics = MemoryTopics()
    asyncio.run(compare(lambda: MemoryBackend(topics), script, at_once))
    topics.validate()


def random_script(chance: random.Random) -> list[Call]:
    kinds: list[Callable[[], Call]] = [
        lambda: Produce(chance.randrange(PARTITIONS), [chance.randbytes(3)] * chance.randrange(6)),
        lambda: Step(
            chance.choice("abc"),
            chance.randrange(PARTITIONS),
            chance.randrange(1, 6),
            chance.choice((0, 0, 0, 1, 2)),
        ),
        lambda: Truncate(chance.randrange(PARTITIONS)),
        Restart,
    ]
    weights = (4, 5, 1, 1)
    return [make() for make in chance.choices(kinds, weights, k=chance.randrange(1, 60))]


def simulate(seeds: Iterable[int]) -> None:
    for seed in seeds:
        topics = MemoryTopics()
        script = random_script(random.Random(seed))
        try:
            asyncio.run(compare(partial(MemoryBackend, topics), script, 7))
            topics.validate()
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise


def test_random_histories_of_the_pure_state() -> None:
    first = chosen_seed(default=1)
    simulate(range(first, first + 200))


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_ten_thousand_random_histories_of_the_pure_state() -> None:
    first = chosen_seed()
    simulate(range(first, first + 10_000))


class Places:
    """A new workspace for each example, which every restart opens anew."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def compare(self, script: list[Call], at_once: int, settings: hr.Settings) -> None:
        place = tempfile.mkdtemp(dir=self._root)
        with ExitStack() as opened:

            def opener() -> QueueBackend:
                opened.close()
                return LocalBackend(opened.enter_context(hr.open(place, settings=settings)))

            asyncio.run(compare(opener, script, at_once))


SMALL: dict[str, Any] = {"frame_bytes_target": 64, "transaction_buffer_bytes": 4096}
"""Frames of one or two messages, so that a step has many of them."""


@settings(max_examples=15)
@given(script=calls, at_once=st.integers(1, 9), small=st.booleans())
def test_the_local_backend_does_what_the_oracle_does(
    tmp_path_factory: pytest.TempPathFactory, script: list[Call], at_once: int, small: bool
) -> None:
    journal = hr.JournalSettings(**SMALL) if small else hr.JournalSettings()
    places = Places(tmp_path_factory.mktemp("places"))
    places.compare(script, at_once, hr.Settings(journal=journal))
