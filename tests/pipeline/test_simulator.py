"""Every unit's output exactly once, whoever dies, comes back late, or is lost; and who paid."""

from __future__ import annotations

import pytest

from headrace.testing.crash import chosen_seed
from headrace.testing.pipeline.job_kinds import JobKind
from headrace.testing.pipeline.job_simulator import SIMULATION, STEPS
from headrace.testing.seeds import main, simulate_all
from tests.simulations import check_totals

SEEDS = 250
DEEP_SEEDS = 10_000

pytestmark = pytest.mark.property


# proves G15, G17, G18
@pytest.mark.long
def test_every_unit_is_processed_exactly_once_and_paid_as_declared() -> None:
    totals = simulate_all(SIMULATION, range(SEEDS))
    check_totals(SIMULATION, totals, STEPS, rare={JobKind.CALL_REPEATED, JobKind.OVER_BUDGET})
    assert totals.counts[JobKind.DRIVER_LOST] > totals.seeds
    assert totals.counts[JobKind.ROW] > 10 * totals.seeds


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_ten_thousand_histories_of_a_job() -> None:
    first = chosen_seed()
    totals = simulate_all(SIMULATION, range(first, first + DEEP_SEEDS))
    check_totals(SIMULATION, totals, STEPS)


def test_a_seed_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SIMULATION, ["--replay", "3"]) == 0
    assert "a step committed outputs and an offset" in capsys.readouterr().out
