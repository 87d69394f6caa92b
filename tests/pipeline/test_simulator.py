"""Every unit's output exactly once, whoever dies, comes back late, or is lost."""

from __future__ import annotations

import pytest

from tests.kinds import seeds
from tests.pipeline.simulator import World

SEEDS_PER_TEST = 25

pytestmark = pytest.mark.property


@pytest.mark.parametrize("group", seeds(20, deep=400))
def test_every_unit_is_processed_exactly_once(group: int) -> None:
    for seed in range(group * SEEDS_PER_TEST, (group + 1) * SEEDS_PER_TEST):
        world = World(seed)
        try:
            world.run()
            world.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
