"""Random histories of publishers, members, crashes and topologies, judged by an oracle."""

from __future__ import annotations

import pytest

from headrace.testing.crash import chosen_seed
from headrace.testing.shuffle.simulator import Simulator

STEPS = 70
SEEDS = 10_000
CHUNK = 500


def simulate(seed: int, steps: int) -> Simulator:
    try:
        simulator = Simulator(seed)
        simulator.simulate(steps)
    except BaseException as error:
        error.add_note(f"again: python -m headrace.testing.shuffle.simulator {seed} {steps}")
        raise
    return simulator


# proves G5, G6, G7, G8, G9, G10, G11
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_document_is_shown_once_and_transactions_as_a_whole(first: int) -> None:
    done = [simulate(seed, STEPS) for seed in range(first, first + CHUNK)]
    # Else these histories would show nothing.
    assert sum(each.crashes for each in done) > CHUNK / 2
    assert sum(each.checkpoints for each in done) > 2 * CHUNK
    assert sum(len(each.seen) for each in done) > 10 * CHUNK


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_longer_histories() -> None:
    first = chosen_seed()
    for seed in range(first, first + 20_000):
        simulate(seed, 200)


def test_without_hints_transactions_are_seen_in_parts() -> None:
    """So that the oracle can be seen to find it."""
    torn = 0
    for seed in range(100):
        try:
            Simulator(seed, hints=False).simulate(120)
        except AssertionError as error:
            torn += "is shown in parts" in str(error)
    assert torn > 5
