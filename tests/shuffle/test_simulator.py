"""Random histories of publishers, members, crashes and topologies, judged by an oracle."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from headrace.testing.crash import chosen_seed
from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.simulator import STEPS, Simulator, simulate

SEEDS = 400
DEEP_SEEDS = 20_000
DEEP_STEPS = 200


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """One for each core: histories have nothing to do with each other."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as executor:
        yield executor


def counted(seed: int, steps: int) -> Counter[str]:
    """Of one history: each kind of history in it, and how much happened."""
    history = simulate(seed, steps)
    counts = Counter({kind.name: count for kind, count in history.counts.items()})
    counts["crashes"] = history.crashes
    counts["checkpoints"] = history.oracle.checkpoints
    counts["documents"] = len(history.oracle.seen)
    return counts


def total(processes: ProcessPoolExecutor, seeds: Iterable[int], steps: int) -> Counter[str]:
    seeds = list(seeds)
    done = processes.map(counted, seeds, [steps] * len(seeds), chunksize=10)
    return sum(done, Counter())


def check_contents(counts: Counter[str], seeds: int) -> None:
    """Else these histories would show nothing."""
    assert not [kind.name for kind in Kind if not counts[kind.name]], "every kind is there"
    assert counts["crashes"] > seeds / 2
    assert counts[Kind.REPLAY.name] > seeds / 2
    assert counts["checkpoints"] > 2 * seeds
    assert counts["documents"] > 10 * seeds


# proves G5, G6, G7, G8, G9, G10, G11
def test_every_document_is_shown_once_and_transactions_as_a_whole(
    processes: ProcessPoolExecutor,
) -> None:
    check_contents(total(processes, range(SEEDS), STEPS), SEEDS)


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("steps", [STEPS, DEEP_STEPS])
def test_many_histories(processes: ProcessPoolExecutor, steps: int) -> None:
    first = chosen_seed()
    check_contents(total(processes, range(first, first + DEEP_SEEDS), steps), DEEP_SEEDS)


def test_without_hints_transactions_are_seen_in_parts() -> None:
    """So that the oracle can be seen to find it."""
    torn = 0
    for seed in range(100):
        try:
            Simulator(seed, hints=False).simulate(120)
        except AssertionError as error:
            torn += "is shown in parts" in str(error)
    assert torn > 5
