"""Histories of claims, crashes and zombies, against an oracle."""

from __future__ import annotations

import pytest

from tests.kinds import seeds
from tests.pipeline.ledger.simulated_world import World

pytestmark = pytest.mark.property

_BLOCK = 100


# proves G17
@pytest.mark.parametrize("block", seeds(4, deep=120))
def test_a_recorded_call_is_never_made_again_and_doubts_are_counted(block: int) -> None:
    for seed in range(_BLOCK * block, _BLOCK * (block + 1)):
        try:
            World(seed).run()
        except AssertionError as error:
            raise AssertionError(f"repeat this history: World({seed}).run()") from error
