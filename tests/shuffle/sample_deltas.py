"""Sample deltas of a task, one for each number, and checks of the objects that store them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from headrace.shuffle import Checkpoint
from headrace.shuffle.checkpoints.checkpoint_objects import parse_key
from headrace.storage import Objects
from tests.shuffle.test_checkpoint import Rows, checkpoint

START = checkpoint({(0, 0): (5, {9: (1, 2)})}, {0: "a"})


def step(number: int, salt: int = 0) -> Checkpoint:
    """The delta of this number: two journals advance, and some numbers introduce a new one."""
    rows: Rows = {
        (number % 5, 0): (100 * number + salt, {1 + number % 3: (number, 100 * number - 50)}),
        (7, number % 2): (10 * number + salt, {}),
    }
    return checkpoint(rows, {0: "a", 1: "b"})


def merged(start: Checkpoint, deltas: Sequence[Checkpoint]) -> Checkpoint:
    return reduce(Checkpoint.merge, deltas, start)


def labels(objects: Objects, *kinds: str) -> list[tuple[str, int]]:
    found = filter(None, (parse_key(each.key) for each in objects.list()))
    return sorted((each.kind, each.number) for each in found if each.kind in kinds)


def keys(objects: Objects) -> list[str]:
    return [each.key for each in objects.list()]


def check_tidy(objects: Objects) -> None:
    """Assert that the store holds only objects that a load reads."""
    assert len(labels(objects, "generations")) == 1
    ((_, floor),) = labels(objects, "full")
    assert all(number > floor for _, number in labels(objects, "delta"))
