"""A process that writes samples is killed: what it was told is durable is there, and whole."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from headrace.testing.crash import Child, chosen_seed, eventually
from tests.kinds import seeds
from tests.stores.timeseries.crash.sample_writer import (
    GENERATION,
    TASK,
    batch_rows,
    open_store,
)
from tests.stores.timeseries.sample_rows import all_by_labels
from tests.stores.timeseries.store_check import check_records

KILLS = 3
WRITER = "from tests.stores.timeseries.crash.sample_writer import write_until_killed"


# proves G23, G24, G26
@pytest.mark.parametrize("backend", ["lmdb", "slatedb"])
@pytest.mark.parametrize("seed", seeds(1, deep=25))
def test_a_killed_writer_loses_nothing_that_is_durable(
    tmp_path: Path, backend: str, seed: int
) -> None:
    chance = random.Random(chosen_seed(seed))
    path, durable = tmp_path / "store", tmp_path / "durable"
    durable.touch()
    ids: dict[int, object] = {}
    first = 0
    for _ in range(KILLS):
        said = len(durable.read_text().splitlines())
        enough = said + chance.randrange(1, 40)
        with Child(WRITER) as child:
            child.start(
                f"write_until_killed(path, {backend!r}, {first}, durable)",
                path=path,
                durable=durable,
            )
            eventually(
                lambda n=enough: len(durable.read_text().splitlines()) >= n,  # type: ignore[misc]
                60,
                "the process writes",
            )
            child.kill()
        lines = [tuple(map(int, line.split())) for line in durable.read_text().splitlines()]
        store = open_store(path, backend)
        checkpoint = store.take(TASK, GENERATION)
        store.flush()
        snapshot = store._kv.snapshot()
        for series, labels in check_records(snapshot).items():
            assert ids.setdefault(series, labels) == labels, "ids are not used again"
        snapshot.close()
        found = Counter(
            int(value) for samples in all_by_labels(store).values() for _, value in samples
        )
        store.close()
        for number, count in found.items():
            assert count == batch_rows(number).num_rows, "a batch is there whole or not at all"
        last = max(number for number, _ in lines)
        assert {number for number, _ in lines} <= set(found), "what is durable is there"
        assert set(range(first, last)) <= set(found), "and all that was written before"
        assert sum(number % 3 == 0 for number in found) == checkpoint, "rows and checkpoint agree"
        first = max(found) + 1
