"""Histories of tasks and real processes: some race, some are killed with `kill -9`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import pytest

from headrace.shuffle import Checkpoint, History
from headrace.storage import Objects, open_objects
from headrace.testing.crash import Child, chosen_seed, eventually
from tests.s3 import BUCKET, s3_server
from tests.shuffle.sample_deltas import START, check_tidy, merged, step

ROUNDS = 15
FULL_EVERY = 3
WAIT_S = 60.0

OPEN = "from headrace.shuffle import History; history = History(objects, 't')"
LIVE = "from tests.shuffle.crash.test_history import live"
DIE = """
from headrace.testing.crash import end_uncleanly
from tests.shuffle.faulty_objects import KillingObjects
objects = KillingObjects(objects, change, when, end_uncleanly)
"""


@pytest.fixture(params=["local", "s3"])
def objects(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Objects]:
    """Of the kinds that several processes reach."""
    if request.param == "local":
        yield open_objects(str(tmp_path / "objects"))
        return
    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        yield open_objects(f"s3://{BUCKET}/history", **options)


def test_of_two_processes_that_append_a_number_one_wins_and_both_know_which(
    objects: Objects,
) -> None:
    with ExitStack() as stack:
        pair = [stack.enter_context(Child(OPEN, objects=objects)) for _ in range(2)]
        assert len({each.run("history.generation") for each in pair}) == 1
        wins = [0, 0]
        expected = Checkpoint()
        for number in range(1, ROUNDS + 1):
            deltas = [step(number, salt=salt) for salt in (1, 2)]
            for each, delta in zip(pair, deltas, strict=True):
                each.start("history.append(number, delta)", number=number, delta=delta)
            answers = [each.answer() for each in pair]
            winner = answers.index(None)
            wins[winner] += 1
            assert answers[1 - winner] == deltas[winner]
            expected = expected.merge(deltas[winner])
            assert [each.run(f"history.load({number})") for each in pair] == [expected] * 2
        assert sum(wins) == ROUNDS
    assert History(objects, "t").load(ROUNDS) == expected


def live(objects: Objects, told: Path, until: int) -> None:
    """Append and release, and tell in a file what was acknowledged."""
    history = History(objects, "t", start=START, full_every=FULL_EVERY)
    with told.open("a") as file:
        for number in range(history.last() + 1, until + 1):
            assert history.append(number, step(number)) is None
            file.write(f"{number}\n")
            file.flush()
            history.release(number - 1)


def newest(told: Path) -> int:
    return int((told.read_text().split() or ["0"])[-1])


def has_reached(told: Path, number: int) -> bool:
    return newest(told) >= number


def check_whole(objects: Objects, told: Path, before: int) -> int:
    """What was there or acknowledged is there, and nothing else but the one on its way."""
    known = max(before, newest(told))
    history = History(objects, "t", start=START)
    check_tidy(objects)
    last = history.last()
    assert known <= last <= known + 1
    for number in range(max(known - 1, 0), last + 1):
        assert history.load(number) == merged(START, [step(n) for n in range(1, number + 1)])
    return last


def kill_at_changes(folder: Path, rng: Random, kills: int) -> None:
    objects, told = open_objects(str(folder / "objects")), folder / "told"
    told.touch()
    last = 0
    for _ in range(kills):
        with Child(LIVE, objects=objects, told=told) as child:
            # In every FULL_EVERY rounds there are as many appends, a full one and the deletions.
            change, when = rng.randrange(4 * FULL_EVERY), rng.choice(["before", "after"])
            child.start(DIE, change=change, when=when)
            child.start(f"live(objects, told, {last + 100})")
            assert child.wait(WAIT_S) == -signal.SIGKILL
        last = check_whole(objects, told, last)
    live(objects, told, last + 10)
    assert check_whole(objects, told, last) == last + 10


def kill_at_moments(folder: Path, rng: Random, kills: int) -> None:
    objects, told = open_objects(str(folder / "objects")), folder / "told"
    told.touch()
    last = 0
    for _ in range(kills):
        target = last + rng.randrange(1, 10)
        with Child(LIVE, objects=objects, told=told) as child:
            child.start(f"live(objects, told, {last + 100_000})")
            eventually(partial(has_reached, told, target), WAIT_S, f"checkpoint {target}")
            child.kill()
        last = check_whole(objects, told, last)


def test_what_was_acknowledged_survives_a_kill_at_any_change(tmp_path: Path) -> None:
    kill_at_changes(tmp_path, Random(chosen_seed(default=5)), kills=6)


def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    kill_at_moments(tmp_path, Random(chosen_seed(default=5)), kills=4)


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_what_was_acknowledged_survives_two_hundred_kills(tmp_path: Path) -> None:
    seed = chosen_seed()
    for name, kill in (("changes", kill_at_changes), ("moments", kill_at_moments)):
        (tmp_path / name).mkdir()
        kill(tmp_path / name, Random(f"{seed}/{name}"), kills=100)
