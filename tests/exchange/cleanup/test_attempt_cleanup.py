"""What cleanup removes, and what it keeps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import pytest

from headrace.errors import FencedError, NotFoundError, StorageError, UsageError
from headrace.exchange import (
    AttemptCleanup,
    BackgroundCleanup,
    MapOutputReader,
    MapTask,
    OutputRegistry,
    PinnedStage,
)
from headrace.exchange.cleanup.pinned_stage import SKEW_MS
from headrace.storage import ObjectInfo, Objects
from headrace.testing.crash import eventually
from tests.exchange.outputs import TASK, filled, keys_of, stored, write

FAR_MS = 1 << 50
"""Later than any object's time."""


def cleanup(objects: Objects, now_ms: int, ttl_s: float = 1.0) -> int:
    return AttemptCleanup(objects, now_ms=lambda: now_ms).cleanup_expired_attempts(ttl_s)


def attempts(objects: Objects, task: MapTask = TASK) -> set[int]:
    """Return the attempts that have files."""
    return {int(key.split("/")[4]) for key in stored(objects, task.directory)}


def test_ignores_old_attempts_and_cleans_up_by_ttl(objects: Objects) -> None:  # proves G22
    write(objects, {0: [1]}, now_ms=10_000)
    write(objects, {0: [2]}, replaces=1, now_ms=20_000)
    write(objects, {0: [3]}, replaces=2, now_ms=30_000)
    reader = MapOutputReader(objects)
    assert keys_of(reader.read_partition(TASK, 0)) == [3]
    assert cleanup(objects, 10_500) == 0
    assert cleanup(objects, 11_500) == 1
    assert attempts(objects) == {2, 3}
    assert cleanup(objects, FAR_MS) == 1
    assert attempts(objects) == {3}
    assert cleanup(objects, FAR_MS) == 0, "a second pass finds nothing"
    assert keys_of(reader.read_partition(TASK, 0)) == [3]
    with pytest.raises(NotFoundError, match="map output not registered for requested attempt"):
        reader.read_partition(TASK, 0, attempt=1)


def test_every_map_task_keeps_its_own_latest_attempt(objects: Objects) -> None:  # proves G22
    tasks = [MapTask(q, s, m) for q in (1, 2) for s in (0, 1) for m in (0, 1, 2)]
    for number, task in enumerate(tasks):
        write(objects, {0: [number]}, task)
        if number % 2:
            write(objects, {0: [number + 100]}, task, replaces=1)
    assert cleanup(objects, FAR_MS) == len(tasks) // 2
    reader = MapOutputReader(objects)
    for number, task in enumerate(tasks):
        assert keys_of(reader.read_partition(task, 0)) == [number + 100 * (number % 2)]


def test_an_attempt_without_an_index_is_removed_by_its_age(objects: Objects) -> None:
    registry = OutputRegistry(objects)
    claim = registry.claim(TASK, 0, 1_000)
    objects.put(TASK.part(claim.attempt, 0), b"half a file")
    assert cleanup(objects, 1_000_000) == 0, "its file is newer than that"
    assert cleanup(objects, FAR_MS) == 1
    assert cleanup(objects, FAR_MS) == 0
    assert attempts(objects) == set()
    output = write(objects, {0: [1]}).output
    assert (output.attempt, output.generation) == (2, 2), "no number is used twice"
    assert keys_of(MapOutputReader(objects).read_partition(TASK, 0)) == [1]


def test_an_attempt_that_died_after_another_was_given_up_is_removed(objects: Objects) -> None:
    registry = OutputRegistry(objects)
    for attempt in (1, 2):
        objects.put(TASK.part(registry.claim(TASK, 0, 1_000).attempt, 0), b"half a file")
        assert attempts(objects) == {attempt}
        assert cleanup(objects, FAR_MS) == 1
    assert attempts(objects) == set()


def test_an_attempt_that_died_replacing_lost_files_is_removed(objects: Objects) -> None:
    write(objects, {0: [1]})
    objects.delete_all(TASK.attempt_directory(1))
    claim = OutputRegistry(objects).claim(TASK, 1, 1_000)
    objects.put(TASK.part(claim.attempt, 0), b"half a file")
    assert cleanup(objects, FAR_MS) == 1
    assert attempts(objects) == set()
    assert OutputRegistry(objects).lookup(TASK).attempt == 1, "it is still the latest"


def test_a_writer_that_cleanup_gave_up_cannot_publish(objects: Objects) -> None:  # proves G19
    slow = filled(objects, {0: [1]})
    registry = OutputRegistry(objects)
    register = registry.register
    removed = []

    def cleaned_up_before(output):  # type: ignore[no-untyped-def]
        removed.append(cleanup(objects, FAR_MS))
        return register(output)

    slow._registry.register = cleaned_up_before  # type: ignore[method-assign]
    with pytest.raises(FencedError, match=r"cleanup gave up .* before it was published; run the"):
        slow.publish()
    assert removed == [1]
    with pytest.raises(NotFoundError):
        MapOutputReader(objects).resolve(TASK)
    assert write(objects, {0: [2]}).is_mine


def test_an_attempt_in_progress_keeps_an_expired_one_until_it_is_published(
    objects: Objects,
) -> None:
    registry = OutputRegistry(objects)
    objects.put(TASK.part(registry.claim(TASK, 0, 1_000).attempt, 0), b"of a dead writer")
    registry.claim(TASK, 0, FAR_MS)
    assert cleanup(objects, FAR_MS) == 0
    assert write(objects, {0: [1]}).output.attempt == 3
    assert cleanup(objects, FAR_MS) == 1
    assert attempts(objects) == {3}


def test_an_attempt_that_lost_is_removed_when_it_has_expired_and_not_before(
    objects: Objects,
) -> None:
    claim = OutputRegistry(objects).claim(TASK, 0, 1_000)
    objects.put(TASK.part(claim.attempt, 0), b"of a writer that may still be at work")
    assert write(objects, {0: [1]}).output.attempt == 2
    assert cleanup(objects, 1_000_000) == 0, "its file is newer than that"
    assert attempts(objects) == {1, 2}
    assert cleanup(objects, FAR_MS) == 1
    assert attempts(objects) == {2}


def test_a_damaged_record_keeps_all_attempts(objects: Objects) -> None:
    write(objects, {0: [1]})
    write(objects, {0: [2]}, replaces=1)
    objects.put(TASK.publication(2), b"damaged")
    assert cleanup(objects, FAR_MS) == 0
    assert attempts(objects) == {1, 2}


def test_a_damaged_pin_still_holds_for_a_lease(objects: Objects) -> None:  # proves G22
    write(objects, {0: [1]})
    write(objects, {0: [2]}, replaces=1)
    pinned = PinnedStage(objects, 1, 2)
    [pin] = objects.list("shuffle/1/pins")
    data = bytearray(objects.get(pin.key))
    data[5] ^= 1
    objects.put(pin.key, data)
    [pin] = objects.list("shuffle/1/pins")
    since_ms = int(pin.modified.timestamp() * 1_000)
    assert cleanup(objects, since_ms + 600_000, ttl_s=0) == 0
    assert cleanup(objects, since_ms + 600_000 + SKEW_MS + 2, ttl_s=0) == 1
    pinned.release()


def test_a_damaged_claim_keeps_its_attempt_until_it_is_certain_that_nobody_publishes_it(
    objects: Objects,
) -> None:  # proves G22
    registry = OutputRegistry(objects)
    claim = registry.claim(TASK, 0, 1_000)
    objects.put(TASK.part(claim.attempt, 0), b"half a file")
    objects.put(TASK.claim(claim.attempt), b"damaged")
    assert cleanup(objects, 1_000_000) == 0, "its file is newer than that"
    assert attempts(objects) == {1}
    output = write(objects, {0: [2]}).output
    assert (output.attempt, output.generation) == (2, 1)
    assert cleanup(objects, FAR_MS) == 1
    assert attempts(objects) == {2}
    assert keys_of(MapOutputReader(objects).read_partition(TASK, 0)) == [2]


def test_who_wrote_an_attempt_with_a_damaged_claim_cannot_publish_what_was_removed(
    objects: Objects,
) -> None:  # proves G19
    output = write(objects, {0: [1]}).output
    objects.delete(TASK.publication(1))  # as before it was published
    objects.put(TASK.claim(1), b"damaged")
    assert cleanup(objects, FAR_MS) == 1
    with pytest.raises(FencedError, match="cleanup gave up"):
        OutputRegistry(objects).register(output)


def test_a_pinned_stage_keeps_replaced_attempts(objects: Objects) -> None:  # proves G22
    write(objects, {0: [1]})
    with PinnedStage(objects, 1, 2, now_ms=lambda: FAR_MS) as pinned:
        held = pinned.lookup(3)
        assert pinned.published() == {3: held}
        write(objects, {0: [2]}, replaces=1)
        assert cleanup(objects, FAR_MS) == 0
        reader = MapOutputReader(objects)
        assert keys_of(reader.read(reader.index(held), 0)) == [1]
        assert pinned.lookup(3).attempt == 2
    assert cleanup(objects, FAR_MS) == 1
    assert [key for key in stored(objects) if "/pins/" in key or "/removed/" in key] == []
    with pytest.raises(UsageError, match="is released; pin it again"):
        pinned.lookup(3)


def test_pins_of_other_stages_keep_nothing(objects: Objects) -> None:
    write(objects, {0: [1]})
    write(objects, {0: [2]}, replaces=1)
    with (
        PinnedStage(objects, 1, 7, now_ms=lambda: FAR_MS),
        PinnedStage(objects, 7, 2, now_ms=lambda: FAR_MS),
    ):
        assert cleanup(objects, FAR_MS) == 1


def test_the_pin_of_a_dead_reader_expires(objects: Objects) -> None:
    write(objects, {0: [1]})
    write(objects, {0: [2]}, replaces=1)
    now = [FAR_MS]
    pinned = PinnedStage(objects, 1, 2, lease_s=600, now_ms=lambda: now[0])
    assert cleanup(objects, FAR_MS + 600_000 + SKEW_MS) == 0
    assert cleanup(objects, FAR_MS + 600_000 + SKEW_MS + 1) == 1
    now[0] += 600_001
    with pytest.raises(StorageError, match="the pin of stage 2 of query 1 has expired; pin it"):
        pinned.lookup(3)
    pinned.release()


def test_a_pin_is_renewed_while_it_is_held(local_objects: Objects) -> None:
    now = [0]

    def later() -> int:
        now[0] += 1
        return now[0]

    with PinnedStage(local_objects, 1, 2, lease_s=0.03, now_ms=later):
        [pin] = local_objects.list("shuffle/1/pins")
        first = local_objects.get(pin.key)
        eventually(lambda: local_objects.get(pin.key) != first, 30, "a renewal")
    assert stored(local_objects) == []


def test_a_renewal_that_comes_after_the_release_leaves_no_pin(local_objects: Objects) -> None:
    objects = SlowRenewals(local_objects)
    with PinnedStage(cast(Objects, objects), 1, 2, lease_s=0.003):
        assert objects.renewing.wait(30)
    assert objects.renewed.is_set()
    assert stored(local_objects) == []


class SlowRenewals:
    """Objects whose second put lasts until something is deleted."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._puts = 0
        self.renewing, self.deleted, self.renewed = (threading.Event() for _ in range(3))

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self._puts += 1
        if self._puts == 2:
            self.renewing.set()
            assert self.deleted.wait(30)
        self._objects.put(key, data)
        if self._puts == 2:
            self.renewed.set()

    def delete(self, key: str) -> None:
        self._objects.delete(key)
        self.deleted.set()

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        return self._objects.list(prefix)

    def head(self, key: str) -> ObjectInfo | None:
        return self._objects.head(key)


def test_a_query_is_removed_unless_somebody_reads_it(objects: Objects) -> None:
    write(objects, {0: [1]})
    write(objects, {0: [1]}, MapTask(10, 2, 3))
    cleaner = AttemptCleanup(objects)
    with (
        PinnedStage(objects, 1, 2),
        pytest.raises(UsageError, match=r"query 1 is held by .* until .*; remove it when"),
    ):
        cleaner.remove_query(1)
    assert keys_of(MapOutputReader(objects).read_partition(TASK, 0)) == [1]
    assert cleaner.remove_query(1) == 5
    assert cleaner.remove_query(1) == 0
    assert stored(objects, "shuffle/1") == []
    assert OutputRegistry(objects).published(1, 2) == {}
    assert OutputRegistry(objects).published(10, 2).keys() == {3}


def test_a_query_whose_removal_was_interrupted_is_refused_until_it_is_removed(
    local_objects: Objects,
) -> None:
    write(local_objects, {0: [1]})
    local_objects.put("shuffle/1/removed/ofadeadcleanup", b"")
    with pytest.raises(NotFoundError, match="query 1 is being removed; finish removing it"):
        PinnedStage(local_objects, 1, 2)
    AttemptCleanup(local_objects).remove_query(1)
    PinnedStage(local_objects, 1, 2).release()


def test_a_background_pass_removes_what_expires(local_objects: Objects) -> None:
    now = [1_000]
    cleaner = AttemptCleanup(local_objects, now_ms=lambda: now[0])
    write(local_objects, {0: [1]}, now_ms=1_000)
    with BackgroundCleanup(cleaner, ttl_s=1, interval_s=0.01) as background:
        write(local_objects, {0: [2]}, replaces=1, now_ms=1_000)
        now[0] = 3_000
        eventually(lambda: background.removed == 1, 60, "the replaced attempt to be removed")
    assert attempts(local_objects) == {2}
    with pytest.raises(UsageError, match="ttl_s must not be negative"):
        AttemptCleanup(local_objects).cleanup_expired_attempts(-1)
