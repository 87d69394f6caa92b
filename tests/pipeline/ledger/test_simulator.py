"""Histories of claims, crashes and zombies, against an oracle."""

from __future__ import annotations

import pytest

from headrace.testing.crash import chosen_seed
from headrace.testing.pipeline.ledger_simulator import SIMULATION, STEPS
from headrace.testing.seeds import simulate_all
from tests.simulations import check_totals

SEEDS = 400
DEEP_SEEDS = 12_000

pytestmark = pytest.mark.property


# proves G17
@pytest.mark.long
def test_a_recorded_call_is_never_made_again_and_doubts_are_counted() -> None:
    check_totals(SIMULATION, simulate_all(SIMULATION, range(SEEDS)), STEPS)


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_twelve_thousand_histories_of_a_ledger() -> None:
    first = chosen_seed()
    totals = simulate_all(SIMULATION, range(first, first + DEEP_SEEDS))
    check_totals(SIMULATION, totals, STEPS)
