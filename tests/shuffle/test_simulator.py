"""Random histories of publishers, members, crashes and topologies, judged by an oracle."""

from __future__ import annotations

import pytest

from headrace.testing.crash import chosen_seed
from headrace.testing.seeds import SeedTotals, main, simulate_all
from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.simulator import SIMULATION, STEPS, Simulator
from tests.simulations import check_totals

SEEDS = 200
DEEP_SEEDS = 20_000
DEEP_STEPS = 200


def check(totals: SeedTotals, steps: int) -> None:
    """No seed failed, and together they contain every kind of thing."""
    check_totals(SIMULATION, totals, steps)
    counts = totals.counts
    assert counts[Kind.CRASH] > totals.seeds / 2
    assert counts[Kind.REPLAY] > totals.seeds / 2
    assert counts[Kind.CHECKPOINT] > 2 * totals.seeds
    assert counts[Kind.DOCUMENT] > 10 * totals.seeds


# proves G5, G6, G7, G8, G9, G10, G11
@pytest.mark.long
def test_every_document_is_shown_once_and_transactions_as_a_whole() -> None:
    check(simulate_all(SIMULATION, range(SEEDS)), STEPS)


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("steps", [STEPS, DEEP_STEPS])
def test_many_histories(steps: int) -> None:
    first = chosen_seed()
    check(simulate_all(SIMULATION, range(first, first + DEEP_SEEDS), steps), steps)


@pytest.mark.long
def test_without_hints_transactions_are_seen_in_parts() -> None:
    """So that the oracle can be seen to find it."""
    torn = 0
    for seed in range(100):
        try:
            Simulator(seed, hints=False).simulate(120)
        except AssertionError as error:
            torn += "is shown in parts" in str(error)
    assert torn > 5


@pytest.mark.long
def test_the_command_says_what_happened_and_which_seed_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(SIMULATION, ["--seeds", "2", "--processes", "1"]) == 0
    said = capsys.readouterr().out
    assert "2 seeds from 0 on" in said
    assert "0 failures" in said
    assert all(kind in said for kind in Kind)

    failed = SeedTotals(2, failures={7: "AssertionError: document 3 is lost"})
    monkeypatch.setattr("headrace.testing.seeds.simulate_all", lambda *_: failed)
    assert main(SIMULATION, ["--seeds", "2"]) == 1
    assert SIMULATION.replay_command(7, STEPS) in capsys.readouterr().out


def test_a_seed_can_be_replayed_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SIMULATION, ["--replay", "1"]) == 0
    said = capsys.readouterr().out
    assert "session -> slice 0: start read" in said
    assert "session -> consumer: checkpoint 1; " in said
