"""Readers, writers and cleanup in every order of their requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import pytest

from headrace.errors import FencedError, NotFoundError
from headrace.exchange import (
    AttemptCleanup,
    MapOutputReader,
    OutputRegistry,
    PinnedStage,
    Publication,
)
from headrace.exchange.cleanup import pinned_stage, removal_marks
from headrace.exchange.cleanup.cleanup_plan import TaskCleanup
from headrace.storage import Objects
from tests.exchange.interleavings import Program, explore
from tests.exchange.outputs import TASK, Rows, filled, keys_of, stored, write

pytestmark = pytest.mark.long

FAR_MS = 1 << 50
Errors = Mapping[str, BaseException | None]


class Tokens:
    """Take the place of `secrets`, and give out the same tokens in every run."""

    def __init__(self) -> None:
        self.given = 0

    def token_hex(self, _: int) -> str:
        self.given += 1
        return f"{self.given:04}"


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    """Make runs repeatable: the same keys, and no thread that renews pins at its own pace."""
    tokens = Tokens()
    for module in (pinned_stage, removal_marks):
        monkeypatch.setattr(module, "secrets", tokens)
    monkeypatch.setattr(PinnedStage, "_renew_in_time", lambda _: None)
    return tokens


def clean_up(plans: list[TaskCleanup]) -> Program:
    def carry_out(objects: Objects) -> None:
        AttemptCleanup(objects, now_ms=lambda: FAR_MS).carry_out(plans)

    return carry_out


def read_pinned(attempt: int) -> Program:
    """Pin the stage, look the attempt up, and read it: a reader that was let in must succeed."""

    def read(objects: Objects) -> None:
        pinned = PinnedStage(objects, 1, 2, now_ms=lambda: FAR_MS)
        try:
            output = pinned.lookup(3, attempt)
        except NotFoundError:
            return
        reader = MapOutputReader(objects)
        assert keys_of(reader.read(reader.index(output), 0)) == [output.attempt]

    return read


def no_error(objects: Objects, errors: Errors) -> None:
    for name, error in errors.items():
        assert error is None, f"{name}: {error!r}"
    assert keys_of(MapOutputReader(objects).read_partition(TASK, 0)) == [2]


@pytest.mark.parametrize(
    ("attempt", "cleanups"),
    [(1, 1), (0, 1), pytest.param(1, 2, marks=[pytest.mark.deep, pytest.mark.timeout(3600)])],
)
def test_no_reader_that_was_let_in_loses_a_file(
    tokens: Tokens, attempt: int, cleanups: int
) -> None:  # proves G22
    plans: list[TaskCleanup] = []

    def prepare(objects: Objects) -> None:
        tokens.given = 0
        write(objects, {0: [1]})
        write(objects, {0: [2]}, replaces=1)
        plans[:] = AttemptCleanup(objects, now_ms=lambda: FAR_MS).plan(0)
        assert [output.attempt for plan in plans for output in plan.replaced] == [1]

    programs = {"reader": read_pinned(attempt)}
    programs |= {f"cleanup {number}": clean_up(plans) for number in range(cleanups)}
    assert explore(prepare, lambda: programs, no_error) > 1


def publish(rows: Rows, outcomes: list[Publication]) -> Program:
    def write_and_publish(objects: Objects) -> None:
        outcomes.append(filled(objects, rows).publish())

    return write_and_publish


def test_of_two_writers_one_wins_whatever_the_order_and_a_reader_sees_it_or_nothing() -> None:
    # proves G19
    outcomes: list[Publication] = []
    seen: list[list[int]] = []

    def read(objects: Objects) -> None:
        with suppress(NotFoundError):
            seen.append(keys_of(MapOutputReader(objects).read_partition(TASK, 0)))

    def programs() -> Mapping[str, Program]:
        outcomes.clear()
        seen.clear()
        return {
            "first": publish({0: [1]}, outcomes),
            "second": publish({0: [2]}, outcomes),
            "reader": read,
        }

    def check(objects: Objects, errors: Errors) -> None:
        assert list(errors.values()) == [None] * 3
        [winner] = {each.output.attempt for each in outcomes}
        assert [each.is_mine for each in outcomes].count(True) == 1
        rows = keys_of(MapOutputReader(objects).read_partition(TASK, 0))
        assert seen in ([], [rows])
        directories = {key.split("/")[4] for key in stored(objects, TASK.directory)}
        assert directories == {str(winner)}

    assert explore(lambda _: None, programs, check) > 1


def test_a_writer_publishes_a_whole_attempt_or_cleanup_stops_it() -> None:  # proves G19
    def clean_up_all(objects: Objects) -> None:
        AttemptCleanup(objects, now_ms=lambda: FAR_MS).cleanup_expired_attempts(0)

    outcomes: list[Publication] = []

    def programs() -> Mapping[str, Program]:
        outcomes.clear()
        return {"writer": publish({0: [1]}, outcomes), "cleanup": clean_up_all}

    def check(objects: Objects, errors: Errors) -> None:
        assert errors["cleanup"] is None
        if errors["writer"] is None:
            assert keys_of(MapOutputReader(objects).read_partition(TASK, 0)) == [1]
        else:
            assert isinstance(errors["writer"], FencedError)
            assert OutputRegistry(objects).latest(TASK) is None

    assert explore(lambda _: None, programs, check) > 1
