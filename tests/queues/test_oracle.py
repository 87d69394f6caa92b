"""Random calls, and an oracle that is too simple to be wrong: every backend does what it does."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.queues.contract import QueueBackend
from headrace.queues.local_backend import LocalBackend
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics
from headrace.testing.crash import chosen_seed
from headrace.testing.queue_simulator import (
    PARTITIONS,
    SIMULATION,
    STEPS,
    FetchCall,
    ProduceCall,
    QueueCall,
    RestartCall,
    StepCall,
    TruncateCall,
    compare,
)
from headrace.testing.seeds import simulate_all
from tests.simulations import check_totals

partitions = st.integers(0, PARTITIONS - 1)
calls = st.lists(
    st.one_of(
        st.builds(ProduceCall, partitions, st.lists(st.binary(max_size=40), max_size=6)),
        st.builds(FetchCall, partitions, st.integers(-1, 12), st.integers(1, 9)),
        st.builds(
            StepCall,
            st.sampled_from("ab"),
            partitions,
            st.integers(1, 5),
            st.sampled_from((0, 0, 1)),
        ),
        st.builds(TruncateCall, partitions),
        st.builds(RestartCall),
    ),
    max_size=25,
)


@given(script=calls, at_once=st.integers(1, 9))
def test_the_memory_backend_does_what_the_oracle_does(
    script: list[QueueCall], at_once: int
) -> None:
    topics = MemoryTopics()
    opener = partial(MemoryBackend, topics)
    asyncio.run(compare(opener, script, at_once, validate=topics.validate))


@pytest.mark.long
def test_random_histories_of_the_pure_state() -> None:
    first = chosen_seed(default=1)
    totals = simulate_all(SIMULATION, range(first, first + 200), processes=1)
    check_totals(SIMULATION, totals, STEPS)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_ten_thousand_random_histories_of_the_pure_state() -> None:
    first = chosen_seed()
    totals = simulate_all(SIMULATION, range(first, first + 10_000))
    check_totals(SIMULATION, totals, STEPS)


class Places:
    """A new workspace for each example, which every restart opens anew."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def compare(self, script: list[QueueCall], at_once: int, settings: hr.Settings) -> None:
        place = tempfile.mkdtemp(dir=self._root)
        with ExitStack() as opened:

            def opener() -> QueueBackend:
                opened.close()
                return LocalBackend(opened.enter_context(hr.open(place, settings=settings)))

            asyncio.run(compare(opener, script, at_once))


SMALL: dict[str, Any] = {"frame_bytes_target": 64, "transaction_buffer_bytes": 4096}
"""Frames of one or two messages, so that a step has many of them."""


@pytest.mark.long
@settings(max_examples=15)
@given(script=calls, at_once=st.integers(1, 9), small=st.booleans())
def test_the_local_backend_does_what_the_oracle_does(
    tmp_path_factory: pytest.TempPathFactory, script: list[QueueCall], at_once: int, small: bool
) -> None:
    journal = hr.JournalSettings(**SMALL) if small else hr.JournalSettings()
    places = Places(tmp_path_factory.mktemp("places"))
    places.compare(script, at_once, hr.Settings(journal=journal))
