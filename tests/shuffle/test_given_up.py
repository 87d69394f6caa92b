"""Histories of tasks, and processes that are killed, stand still, or go on when given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from headrace.errors import NotFoundError, UsageError
from headrace.shuffle import Checkpoint, History, describe_task, reset_task
from headrace.shuffle.checkpoints.checkpoint_objects import Label, encode
from headrace.storage import Objects, open_objects
from headrace.testing.crash import chosen_seed
from tests.shuffle.faulty_objects import (
    Killed,
    KillingObjects,
    PausingObjects,
    RecordingObjects,
    StaleListObjects,
)
from tests.shuffle.sample_deltas import START, check_tidy, keys, labels, merged, step
from tests.shuffle.stepped_processes import Process, run_interleaved


@pytest.fixture
def memory() -> Objects:
    return open_objects("memory://")


# -- processes that were given up ----------------------------------------------------------


def given_up(memory: Objects) -> tuple[History, History]:
    """One that stopped at 3, and one that went on to 20 and released 18."""
    old, current = History(memory, "t", full_every=4), History(memory, "t", full_every=4)
    for number in range(1, 4):
        old.append(number, step(number))
    old.load(3)
    for number in range(4, 21):
        assert current.append(number, step(number)) is None
    current.release(18)
    return old, current


def test_it_cannot_append_where_others_have_released(memory: Objects) -> None:
    old, current = given_up(memory)
    before = keys(memory)
    with pytest.raises(
        UsageError, match="another process has appended and released checkpoint 4 of"
    ):
        old.append(4, step(4, salt=1))
    with pytest.raises(UsageError, match="has reached 20; end this process: the other"):
        old.append(5, step(5, salt=1))
    assert keys(memory) == before
    assert current.load(20) == merged(Checkpoint(), [step(n) for n in range(1, 21)])


def test_it_reads_what_is_true_or_nothing(memory: Objects) -> None:
    old, _ = given_up(memory)
    assert old.delta(2) == step(2)
    assert old.load(3) == merged(Checkpoint(), [step(n) for n in (1, 2, 3)])
    with pytest.raises(NotFoundError, match="released"):
        old.load(5)
    assert old.load(19) == merged(Checkpoint(), [step(n) for n in range(1, 20)])
    assert old.append(20, step(20, salt=1)) == step(20)
    assert old.append(21, step(21)) is None


def test_its_release_takes_nothing_away(memory: Objects) -> None:
    old, current = given_up(memory)
    before = keys(memory)
    old.release(2)
    old.release(3)
    assert keys(memory) == before
    assert current.last() == 20


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda h: h.load(4), merged(Checkpoint(), [step(n) for n in range(1, 5)])),
        (lambda h: h.delta(4), step(4)),
        (lambda h: h.append(4, step(4, salt=1)), step(4)),
        (lambda h: h.release(4), None),
    ],
    ids=["load", "delta", "append", "release"],
)
@pytest.mark.parametrize("released", [3, 4, 20])
def test_it_may_stand_still_anywhere(
    call: Callable[[History], object], wanted: Checkpoint | None, released: int
) -> None:
    for request in count():
        memory = open_objects("memory://")
        current = History(memory, "t", full_every=1)
        for number in range(1, 6):
            current.append(number, step(number))
        standing = PausingObjects(memory)
        old = History(standing, "t", full_every=1)  # type: ignore[arg-type]
        standing.arm(request, lambda c=current, m=memory: go_on(c, m, released))  # type: ignore[misc]
        try:
            assert call(old) == wanted
        except UsageError:
            assert released == 20 or (released == 4 and wanted == step(4))
        whole = merged(Checkpoint(), [step(n) for n in range(1, current.last() + 1)])
        assert History(memory, "t").load(current.last()) == whole
        if standing.do:
            assert request > 1
            return


def go_on(history: History, objects: Objects, released: int) -> None:
    """Go on and release; then a third process puts others where those were, and is killed."""
    for number in range(6, 21):
        assert history.append(number, step(number)) is None
    history.release(released)
    for number in range(1, released + 1):
        label = Label("t", history.generation, "delta", number)
        objects.put_if_absent(label.key, encode(label, step(number, salt=2)))


def test_a_listing_may_miss_what_comes_and_goes() -> None:
    """Full checkpoints go before the deltas between them: who sees one has not missed a release."""
    for change in count():
        memory = open_objects("memory://")
        current = History(memory, "t", full_every=2)
        for number in range(1, 4):
            current.append(number, step(number))

        def another(objects: Objects = memory) -> None:
            history = History(objects, "t", full_every=1)
            history.append(history.last() + 1, step(9))
            history.release(history.last())

        old = History(StaleListObjects(memory, another), "t")  # type: ignore[arg-type]
        for number in range(4, 7):
            current.append(number, step(number))
        try:
            killed = History(KillingObjects(memory, change, "before"), "t", full_every=2)  # type: ignore[arg-type]
            killed.release(5)
        except Killed:
            pass
        else:
            assert change > 5
            return
        with suppress(UsageError):
            assert old.append(4, step(4, salt=1)) == step(4)


def test_who_opens_a_task_while_it_is_reset_harms_nothing() -> None:
    for request in count():
        memory = open_objects("memory://")
        History(memory, "t").append(1, step(1))
        standing = PausingObjects(memory)

        def reset_and_go_on(objects: Objects = memory) -> None:
            generation = reset_task(objects, "t", START)
            History(objects, "t", generation=generation).append(1, step(2))

        standing.arm(request, reset_and_go_on)
        with suppress(UsageError):
            History(standing, "t")  # type: ignore[arg-type]
        if standing.do:
            assert request > 3
            return
        assert History(memory, "t").load(1) == merged(START, [step(2)])
        check_tidy(memory)


# -- kills ---------------------------------------------------------------------------------


def killed_everywhere(life: Callable[[Objects], None]) -> Iterator[Objects]:
    """What is left of a life that was ended before or after each of its changes."""
    for change in count():
        for when in ("before", "after"):
            objects = open_objects("memory://")
            try:
                life(KillingObjects(objects, change, when))  # type: ignore[arg-type]
            except Killed:
                yield objects
            else:
                assert change > 10
                return


@pytest.mark.long
def test_a_process_may_be_killed_between_any_two_changes() -> None:
    deltas = [step(n) for n in range(1, 12)]
    acknowledged = 0

    def live(objects: Objects) -> None:
        nonlocal acknowledged
        acknowledged = 0
        history = History(objects, "t", start=START, full_every=3)
        acknowledged = history.last()
        for number in range(acknowledged + 1, len(deltas) + 1):
            assert history.append(number, deltas[number - 1]) is None
            acknowledged = number
            history.release(number - 1)

    for objects in killed_everywhere(live):
        survivor = History(objects, "t", start=START)
        check_tidy(objects)
        last = survivor.last()
        assert acknowledged <= last <= acknowledged + 1
        for number in range(max(acknowledged - 1, 0), last + 1):
            assert survivor.load(number) == merged(START, deltas[:number])
        assert [survivor.delta(n) for n in range(max(acknowledged, 1), last + 1)] == (
            deltas[max(acknowledged, 1) - 1 : last]
        )
        live(objects)
        assert History(objects, "t").load(11) == merged(START, deltas)
        check_tidy(objects)


@pytest.mark.long
def test_a_reset_that_is_killed_is_done_or_not() -> None:
    outcomes = Counter[int]()

    def live(objects: Objects) -> None:
        history = History(objects, "t", start=START, full_every=2)
        for number in range(1, 6):
            history.append(number, step(number))
        history.release(2)
        for salt in range(3):
            reset_task(objects, "t", step(9, salt))

    for objects in killed_everywhere(live):
        if not labels(objects, "generations"):
            continue
        (_, generation), *_ = reversed(labels(objects, "generations"))
        outcomes[generation] += 1
        survivor = History(objects, "t")
        check_tidy(objects)
        if generation:
            assert survivor.last() == 0
            assert survivor.load(0) == step(9, generation - 1)
        else:
            last = survivor.last()
            assert survivor.load(last) == merged(START, [step(n) for n in range(1, last + 1)])
        assert survivor.append(survivor.last() + 1, step(10)) is None
    assert outcomes.keys() == {0, 1, 2, 3}


# -- processes at the same time ------------------------------------------------------------


class User:
    """Does this and that with a task, and holds every answer against what was first put."""

    def __init__(self, witness: RecordingObjects, rng: Random, seen: Counter[str]) -> None:
        self._witness = witness
        self._rng = rng
        self._seen = seen

    def __call__(self, objects: Objects) -> None:
        try:
            if self._rng.random() < 0.05:
                reset_task(objects, "t", START)
            history = History(objects, "t", start=START, full_every=self._rng.choice([1, 2, 4]))
            self._last = history.last()
        except UsageError:
            return
        for _ in range(self._rng.randrange(12)):
            do = self._rng.choice([self._append, self._append, self._load, self._delta])
            try:
                do(history)
                if self._rng.random() < 0.5:
                    history.release(max(0, self._last - self._rng.randrange(3)))
            except UsageError:
                self._seen["refused"] += 1

    def _append(self, history: History) -> None:
        number = self._last + 1
        mine = step(number, self._rng.randrange(1 << 30))
        winner = history.append(number, mine)
        assert (winner or mine) == self._witness.delta(history.generation, number)
        self._last = number
        self._seen["lost" if winner else "won"] += 1

    def _load(self, history: History) -> None:
        number = self._rng.randint(max(0, self._last - 3), self._last)
        assert history.load(number) == self._witness.whole(history.generation, number)
        self._seen["loaded"] += 1

    def _delta(self, history: History) -> None:
        number = self._rng.randint(max(1, self._last - 3), max(1, self._last))
        assert history.delta(number) == self._witness.delta(history.generation, number)


def check_interleavings(seeds: Iterator[int] | range) -> Counter[str]:
    seen = Counter[str]()
    for seed in seeds:
        rng = Random(seed)
        witness = RecordingObjects()
        users = [User(witness, rng, seen) for _ in range(5)]
        try:
            seen["killed"] += run_interleaved(witness, users, rng, kills=0.003)  # type: ignore[arg-type]
            final = History(witness, "t", start=START)  # type: ignore[arg-type]
            last = final.last()
            assert final.load(last) == witness.whole(final.generation, last)
            check_tidy(witness)  # type: ignore[arg-type]
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        seen["put again"] += witness.put_again
    return seen


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "ask", [lambda o: History(o, "t").last(), lambda o: describe_task(o, "t").last]
)
def test_the_last_does_not_go_back_while_another_process_releases_it(
    ask: Callable[[Objects], int], seed: int
) -> None:
    """At any step of who asks, in several orders of directories."""
    for steps in count():
        objects = open_objects("memory://")
        other = History(objects, "t", full_every=2)
        for number in range(1, 6):
            other.append(number, step(number))
        told: list[int] = []

        def program(stepped: Objects, told: list[int] = told) -> None:
            told.append(ask(stepped))

        asking = Process(objects, program, Random(seed))
        for _ in range(steps):
            asking.step()
            if not asking.is_alive:
                return
        other.release(5)
        while asking.is_alive:
            asking.step()
        assert told == [5], f"after {steps} steps"


@pytest.mark.long
def test_nobody_is_told_anything_but_what_was_first_appended() -> None:
    seen = check_interleavings(range(120))
    assert min(seen[what] for what in ("won", "lost", "refused", "loaded", "killed")) > 20, seen
    # Some did append where others had released, and were refused.
    assert seen["put again"] > 3


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_nobody_is_told_anything_else_in_many_orders() -> None:
    first = chosen_seed()
    check_interleavings(range(first, first + 5_000))
