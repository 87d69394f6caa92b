"""Two processes race to publish the same map tasks, while others read them."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import pytest

from headrace.errors import NotFoundError
from headrace.exchange import MapOutputReader, MapTask, OutputRegistry
from headrace.storage import Objects
from tests.exchange.outputs import filled, keys_of

WRITERS = 2


def publish_all(
    objects: Objects, me: int, races: int, together: Barrier, outcomes: Queue[list[tuple[int, int]]]
) -> None:
    """Publish an attempt of each map task, at the same moments as the other writers."""
    seen = []
    for map_task in range(races):
        writer = filled(objects, {0: [me] * 50, 1: [me]}, MapTask(1, 1, map_task))
        together.wait(timeout=120)
        outcome = writer.publish()
        seen.append((outcome.output.attempt, int(outcome.is_mine)))
    outcomes.put([(me, me), *seen])


class Readers(threading.Thread):
    """Read all tasks again and again, and keep what was seen of each."""

    def __init__(self, objects: Objects, races: int) -> None:
        super().__init__()
        self._reader = MapOutputReader(objects)
        self._races = races
        self._done = threading.Event()
        self.seen: dict[int, set[int]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._done.is_set():
                for map_task in range(self._races):
                    self._read(map_task)
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.error = error

    def finish(self) -> None:
        self._done.set()
        self.join()
        if self.error:
            raise self.error

    def _read(self, map_task: int) -> None:
        try:
            index = self._reader.resolve(MapTask(1, 1, map_task))
        except NotFoundError:
            return
        keys = keys_of(self._reader.read(index, 0))
        assert len(keys) == 50
        self.seen.setdefault(map_task, set()).update([*keys, *keys_of(self._reader.read(index, 1))])


@pytest.mark.parametrize(
    ("objects", "races"),
    [
        ("local", 15),
        ("s3", 6),
        pytest.param("local", 1_000, marks=[pytest.mark.deep, pytest.mark.timeout(3600)]),
    ],
    indirect=["objects"],
)
def test_of_two_racing_attempts_exactly_one_wins(objects: Objects, races: int) -> None:
    # proves G19
    spawn = multiprocessing.get_context("spawn")
    together, outcomes = spawn.Barrier(WRITERS), spawn.Queue()
    writers = [
        spawn.Process(target=publish_all, args=(objects, me, races, together, outcomes))
        for me in range(WRITERS)
    ]
    readers = Readers(objects, races)
    readers.start()
    try:
        for writer in writers:
            writer.start()
        told = {
            me: seen for (me, _), *seen in (outcomes.get(timeout=60 + 3 * races) for _ in writers)
        }
        for writer in writers:
            writer.join()
    finally:
        readers.finish()
    published = OutputRegistry(objects).published(1, 1)
    reader = MapOutputReader(objects)
    for map_task in range(races):
        winners = [me for me in told if told[me][map_task][1]]
        assert len(winners) == 1
        attempts = {told[me][map_task][0] for me in told}
        assert attempts == {published[map_task].attempt}, "everybody learns who won"
        assert set(keys_of(reader.read_partition(MapTask(1, 1, map_task), 0))) == set(winners)
        assert readers.seen.get(map_task, set(winners)) == set(winners)
        directories = {info.key.split("/")[4] for info in objects.list(f"shuffle/1/1/{map_task}")}
        assert directories == {str(published[map_task].attempt)}, "who lost leaves nothing"
