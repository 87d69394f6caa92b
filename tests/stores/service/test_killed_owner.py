"""The process that has a store open dies between any two steps of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import PeerLostError
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.service.shared_store import SharedStore
from headrace.testing.crash import Child, eventually
from tests.stores.service.dying_owner import Step
from tests.stores.service.row_store import contents, open_rows, some_rows, staged_files

pytestmark = pytest.mark.crash

FIRST = StoreCheckpoint("a/task", "g1", 1)
SECOND = StoreCheckpoint("a/task", "g1", 2)
THIRD = StoreCheckpoint("a/task", "g1", 3)

DEATHS: list[tuple[Step, int]] = [
    ("write", 1),
    ("open", 1),
    ("os.remove", 2),
]
MORE_DEATHS: list[tuple[Step, int]] = [
    ("os.mkdir", 1),
    ("os.rename", 1),
    ("os.rename", 2),
    ("wait_durable", 1),
    ("os.remove", 1),
    ("os.remove", 3),
    ("shutil.rmtree", 1),
]


def stage(store: SharedStore, key: str, checkpoint: StoreCheckpoint) -> str:
    while True:
        try:
            return store.stage([some_rows(key)], checkpoint)
        except PeerLostError:
            continue  # as whoever stages does


# proves G14
@pytest.mark.parametrize(
    ("step", "times"),
    [*DEATHS, *(pytest.param(*each, marks=pytest.mark.deep) for each in MORE_DEATHS)],
)
def test_a_checkpoint_is_stored_once_and_whole_wherever_its_owner_died(
    place: Path, owner: Child, step: Step, times: int
) -> None:
    with open_rows(place) as store:
        store.take("a/task", "g1")
        assert store.apply_parts([stage(store, "first", FIRST)], FIRST)
        owner.start(
            "from tests.stores.service.dying_owner import die_before\n"
            "die_before(step, times, place)",
            step=step,
            times=times,
            place=str(place),
        )
        owner.answer()
        stage(store, "lost", SECOND)
        parts = [stage(store, key, SECOND) for key in ("a", "b")]
        store.apply_parts(parts, SECOND)
        eventually(lambda: not owner.is_alive, 30, "the owner has died")
        stored = {"first": 1, "a": 1, "b": 1}
        assert contents(store) == stored
        assert not store.apply_parts(parts, SECOND)
        assert contents(store) == stored
        assert store.apply_parts([stage(store, "c", THIRD)], THIRD)
        assert contents(store) == {**stored, "c": 1}
        assert staged_files(place) == []
    with open_rows(place) as store:
        assert store.take("a/task", "g1") == 3
