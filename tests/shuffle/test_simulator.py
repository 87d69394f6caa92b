"""Random histories of publishers, members, crashes and topologies, judged by an oracle."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import pytest

from headrace.testing.crash import chosen_seed
from headrace.testing.shuffle.simulator import Simulator

STEPS = 70
SEEDS = 10_000
CHUNK = 500


class Seen(NamedTuple):
    crashes: int
    checkpoints: int
    documents: int


def simulate(seed: int, steps: int) -> Seen:
    try:
        simulator = Simulator(seed)
        simulator.simulate(steps)
    except BaseException as error:
        error.add_note(f"again: python -m headrace.testing.shuffle.simulator {seed} {steps}")
        raise
    return Seen(simulator.crashes, simulator.checkpoints, len(simulator.seen))


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """One for each core: histories have nothing to do with each other."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as executor:
        yield executor


# proves G5, G6, G7, G8, G9, G10, G11
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_document_is_shown_once_and_transactions_as_a_whole(
    processes: ProcessPoolExecutor, first: int
) -> None:
    seeds = range(first, first + CHUNK)
    done = list(processes.map(simulate, seeds, [STEPS] * CHUNK, chunksize=25))
    # Else these histories would show nothing.
    assert sum(each.crashes for each in done) > CHUNK / 2
    assert sum(each.checkpoints for each in done) > 2 * CHUNK
    assert sum(each.documents for each in done) > 10 * CHUNK


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_longer_histories(processes: ProcessPoolExecutor) -> None:
    seeds = range(first := chosen_seed(), first + 20_000)
    assert sum(1 for _ in processes.map(simulate, seeds, [200] * 20_000, chunksize=25)) == 20_000


def test_without_hints_transactions_are_seen_in_parts() -> None:
    """So that the oracle can be seen to find it."""
    torn = 0
    for seed in range(100):
        try:
            Simulator(seed, hints=False).simulate(120)
        except AssertionError as error:
            torn += "is shown in parts" in str(error)
    assert torn > 5
