"""Histories of a coordinator with failing, slow and crashing flushes, against an oracle."""

from __future__ import annotations

import pytest

from headrace.testing.crash import chosen_seed
from headrace.testing.ingest.ingest_simulator import SIMULATION, STEPS
from headrace.testing.seeds import SeedTotals, simulate, simulate_all
from tests.simulations import check_totals

SEEDS = 600
DEEP_SEEDS = 20_000

pytestmark = pytest.mark.property


# proves G23, G24, G25
def test_answers_are_durable_snapshots_whole_and_failures_heard_by_all() -> None:
    totals = SeedTotals()
    for seed in range(SEEDS):
        totals.add(simulate(SIMULATION, seed, STEPS))
    check_totals(SIMULATION, totals, STEPS)


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_twenty_thousand_histories_of_a_coordinator() -> None:
    first = chosen_seed()
    totals = simulate_all(SIMULATION, range(first, first + DEEP_SEEDS))
    check_totals(SIMULATION, totals, STEPS)
