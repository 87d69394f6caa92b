"""Whatever is written, flushed, taken over and opened again: the store holds what the books say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import pytest

from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.testing.crash import chosen_seed
from tests.kinds import seeds
from tests.stores.timeseries.store_history import HistoryStep, StoreHistory

pytestmark = pytest.mark.property

STEPS = 90


class KeptStore(MemoryKeyValueStore):
    """Keeps its entries when a time-series store closes it."""

    def close(self) -> None:
        """Stay open for the next one."""


def on_memory(_: Path) -> Callable[[], KeyValueStore]:
    kept = KeptStore()
    return lambda: kept


def on_lmdb(path: Path) -> Callable[[], KeyValueStore]:
    return lambda: LmdbKeyValueStore(path / "store")


# proves G24, G26
@pytest.mark.parametrize("make", [on_memory, on_lmdb])
@pytest.mark.parametrize("seed", seeds(4, deep=300))
def test_a_store_holds_what_the_books_say(
    tmp_path: Path, seed: int, make: Callable[[Path], Callable[[], KeyValueStore]]
) -> None:
    """No cache changes what readers see: whatever is forgotten, and whenever, is in the store."""
    chance = random.Random(chosen_seed(seed))
    cached = chance.choice([0, 3, 500, 1_000_000])
    history = StoreHistory(chance, make(tmp_path), bool(seed % 2), cached)
    counts: Counter[StrEnum] = history.run(STEPS)
    missing = {kind for kind in HistoryStep if not counts[kind]}
    rare = {HistoryStep.LATER, HistoryStep.TAKE, HistoryStep.REOPEN, HistoryStep.REPEAT}
    assert missing <= rare
