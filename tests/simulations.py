"""What every simulation must show."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from headrace.testing.seeds import SeedTotals, Simulation


def check_totals(
    simulation: Simulation, totals: SeedTotals, steps: int, rare: Collection[StrEnum] = ()
) -> None:
    """No seed failed, and together they contain every kind of thing, but perhaps the rare ones."""
    print("\n".join(totals.table(simulation.kinds)))
    commands = {seed: simulation.replay_command(seed, steps) for seed in totals.failures}
    failed = [f"{commands[seed]}: {why}" for seed, why in totals.failures.items()]
    assert not failed, "\n".join(failed)
    missing = [
        kind.name for kind in simulation.kinds if not totals.counts[kind] and kind not in rare
    ]
    assert not missing, "every kind is there"
