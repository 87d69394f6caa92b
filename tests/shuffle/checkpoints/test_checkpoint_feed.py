"""A feed hands out the same checkpoints to an engine that is killed between any two steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import OutdatedError, UsageError
from headrace.shuffle import Checkpoint, History
from headrace.shuffle.checkpoints.checkpoint_feed import Feed
from headrace.shuffle.checkpoints.checkpoint_history import reset_task
from headrace.shuffle.member.local_members import LocalMembers
from headrace.storage import Objects, open_objects
from headrace.testing.crash import eventually

WAIT_S = 60.0


class Engine:
    """One task over one workspace. Each `begin` starts it anew, with members of its own."""

    def __init__(self, folder: Path) -> None:
        self.workspace = hr.open(folder / "workspace")
        self.workspace.collection("a", "n long", key="n", journals=3)
        self.objects: Objects = open_objects(str(folder / "objects"))
        self._folder = folder
        self._running: list[LocalMembers] = []
        self._published = 0

    def publish(self, count: int = 10) -> list[int]:
        """Publish the next `count` numbers in one transaction and return them."""
        numbers = list(range(self._published, self._published + count))
        self._published += count
        with self.workspace.publisher() as transaction:
            transaction.append("a", [{"n": n} for n in numbers])
        return numbers

    def begin(self, members: int = 2, settings: hr.ShuffleSettings | None = None) -> Feed:
        local = LocalMembers(members, self._folder)
        self._running.append(local)

        def open(last: Checkpoint, through: Checkpoint | None) -> hr.Shuffle:
            return hr.Shuffle(
                self.workspace,
                [hr.Binding(collection="a")],
                local.addresses,
                last_commit=last,
                read_through=through,
                settings=settings,
                service=local.service,
            )

        return Feed(History(self.objects, "t"), open)

    def read(self, feed: Feed, number: int) -> list[int]:
        """Return the numbers that a checkpoint shows, sorted."""
        service = self._running[-1].service
        return sorted(
            n
            for share in feed.shares(number)
            for _, batch in share.read(service)
            for n in batch["n"].to_pylist()
        )

    def close(self) -> None:
        for each in self._running:
            each.close()
        self.workspace.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.close()


def take(engine: Engine, feed: Feed, number: int, count: int) -> tuple[int, list[int]]:
    """Take checkpoints after `number` until they have shown `count` documents.

    Returns the number of the last one, and the documents.
    """
    found: list[int] = []
    while len(found) < count:
        number = feed.after(number, WAIT_S)
        found += engine.read(feed, number)
    return number, sorted(found)


# proves G5
def test_checkpoints_are_numbered_on_and_may_stay_unread(engine: Engine) -> None:
    feed = engine.begin()
    first = engine.publish()
    number, shown = take(engine, feed, 0, 10)
    assert shown == first
    assert feed.after(number, 0) == number, "nothing came since"
    engine.publish()
    number = feed.after(number, WAIT_S)
    last = engine.publish()
    seen: list[int] = []
    while not seen or seen[-1] != last[-1]:
        number = feed.after(number, WAIT_S)
        seen = engine.read(feed, number)
    feed.close()


# proves G7
@pytest.mark.long
@pytest.mark.parametrize("members", [1, 3])
def test_a_life_that_is_asked_for_a_planned_checkpoint_first_shows_the_same(
    engine: Engine, members: int
) -> None:
    feed = engine.begin()
    engine.publish()
    assert feed.after(0, WAIT_S) == 1
    shown = engine.read(feed, 1)
    feed.close()
    engine.publish()
    again = engine.begin(members)
    assert engine.read(again, 1) == shown
    assert engine.read(again, 1) == shown, "also when it is read twice"
    _, rest = take(engine, again, 1, 20 - len(shown))
    assert sorted(shown + rest) == list(range(20))
    again.close()


# proves G7
def test_a_checkpoint_that_was_stored_and_never_planned_is_the_next_one(engine: Engine) -> None:
    feed = engine.begin()
    engine.publish()
    assert feed.after(0, WAIT_S) == 1
    stored = feed.history.delta(1).encode()
    feed.close()
    engine.publish()
    again = engine.begin()
    assert again.after(0, WAIT_S) == 1
    assert again.history.delta(1).encode() == stored
    shown = engine.read(again, 1)
    _, rest = take(engine, again, 1, 20 - len(shown))
    assert sorted(shown + rest) == list(range(20))
    again.close()


# proves G5, G7
@pytest.mark.long
def test_of_two_processes_the_first_decides_what_a_number_shows(engine: Engine) -> None:
    first = engine.publish()
    old = engine.begin()
    assert old.after(0, WAIT_S) == 1
    assert engine.read(old, 1) == first
    new = engine.begin()
    assert new.after(0, WAIT_S) == 1
    engine.publish()
    assert new.after(1, WAIT_S) == 2
    second = engine.read(new, 2)
    engine.publish()
    engine._running.append(engine._running.pop(0))
    assert old.after(1, WAIT_S) == 2, "what the other stored, not its own"
    assert engine.read(old, 2) == second
    assert old.history.delta(2).encode() == new.history.delta(2).encode()
    old.close()
    new.close()


def test_a_checkpoint_that_nobody_stored_cannot_be_planned(engine: Engine) -> None:
    feed = engine.begin()
    with pytest.raises(OutdatedError, match="task 't' has no checkpoint 1: its last is 0"):
        feed.shares(1)
    feed.close()


# proves G14
def test_one_who_is_too_late_for_a_checkpoint_is_told_to_begin_again(engine: Engine) -> None:
    """It did nothing wrong: another process went on meanwhile."""
    late, ahead = engine.begin(), engine.begin()
    engine.publish()
    assert ahead.after(0, WAIT_S) == 1
    History(engine.objects, "t", full_every=1).release(1)
    for ask in (lambda: late.shares(1), lambda: late.after(0, WAIT_S)):
        with pytest.raises(
            OutdatedError, match=r"cannot go on after checkpoint 0: .* was released"
        ):
            ask()
    engine.publish()
    assert late.after(1, WAIT_S) == 2
    late.close()
    ahead.close()


def test_a_task_that_was_reset_ends_the_lives_before(engine: Engine) -> None:
    feed = engine.begin()
    engine.publish()
    assert feed.after(0, WAIT_S) == 1
    reset_task(engine.objects, "t")
    engine.publish()
    with pytest.raises(UsageError, match="it was reset"):
        feed.after(1, WAIT_S)
    feed.close()


@pytest.mark.long
def test_what_is_not_read_yet_is_told_in_bytes(engine: Engine) -> None:
    """Members wait while their Queues are full. Once the consumer has read, nothing is left."""
    feed = engine.begin(settings=hr.ShuffleSettings(queue_soft_bytes=16 << 10, credit_bytes=1))
    assert feed.behind() == 0
    expected = [n for _ in range(40) for n in engine.publish(1000)]
    first = feed.after(0, WAIT_S)
    eventually(lambda: feed.behind() > 10_000, WAIT_S, "members are behind")
    seen = engine.read(feed, first)
    last, rest = take(engine, feed, first, len(expected) - len(seen))
    assert sorted(seen + rest) == expected
    feed.after(last, 0)
    assert feed.behind() == 0
