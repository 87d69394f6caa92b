"""Processes that write at the same time while owner after owner is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stores.service.store_directory import StoreDirectory
from headrace.testing.crash import Child, eventually
from tests.kinds import seeds
from tests.stores.service.row_store import contents, open_rows

pytestmark = pytest.mark.crash

WRITERS = ("one", "two", "three")
KILLS = 3
SETUP = "from pathlib import Path\nfrom tests.stores.service.checkpoint_writer import *"
WRITE = "write_until(Path(stop), Path(place), name, Path(notes))"
PATIENCE_S = 60.0


class Writers:
    """The processes, and what they noted."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.stop = place.parent / "stop"
        self.children: dict[str, Child] = {}

    def start(self, name: str) -> None:
        child = self.children[name] = Child(SETUP)
        paths = {"stop": self.stop, "place": self.place, "notes": self.notes(name)}
        child.start(WRITE, name=name, **{key: str(path) for key, path in paths.items()})

    def notes(self, name: str) -> Path:
        return self.place.parent / f"{name}.notes"

    def noted(self, name: str) -> list[int]:
        path = self.notes(name)
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def wait_for_progress(self) -> None:
        goals = {name: len(self.noted(name)) + 5 for name in WRITERS}
        for name, goal in goals.items():
            try:
                eventually(
                    lambda name=name, goal=goal: len(self.noted(name)) >= goal,  # type: ignore[misc]
                    PATIENCE_S,
                    f"writer {name} goes on",
                )
            except TimeoutError:
                self.children[name].answer(0)  # Raises what ended the writer, if anything did.
                raise

    def kill_owner(self) -> str:
        """Kill whoever has the store open, and return its name."""

        def owner() -> str | None:
            found = StoreDirectory(self.place).owner()
            names = [name for name in WRITERS if found and self.children[name].pid == found.process]
            return names[0] if names else None

        name = eventually(owner, PATIENCE_S, "a writer owns the store")
        self.children[name].kill()
        return name


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", seeds(1, deep=20))
def test_nothing_is_lost_or_doubled_when_owners_are_killed(place: Path, seed: int) -> None:
    writers = Writers(place)
    try:
        for name in WRITERS:
            writers.start(name)
        for _ in range(KILLS):
            writers.wait_for_progress()
            writers.start(writers.kill_owner())
        writers.wait_for_progress()
        writers.stop.touch()
        for child in writers.children.values():
            child.answer(PATIENCE_S)
    finally:
        for child in writers.children.values():
            child.kill()
    with open_rows(place) as store:
        found = set(contents(store))
        for name in WRITERS:
            last, noted = store.take(name, "g"), writers.noted(name)
            assert max(noted) <= last
            # A killed writer has stored a checkpoint that it did not note, and goes on behind it.
            missing = set(range(1, last + 1)) - set(noted)
            assert len(missing) <= KILLS
            assert len(noted) == len(set(noted))
            wanted = {f"{name} {half} {n}" for half in "ab" for n in range(1, last + 1)}
            plain = {f"{name} plain {n}" for n in noted}
            mine = {key for key in found if key.startswith(name)}
            assert wanted | plain <= mine
            assert mine - wanted - plain <= {f"{name} plain {n}" for n in missing}
