"""A process that publishes map output twice, and dies at one of its changes to the file system."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from headrace.storage import open_objects
from headrace.testing.crash import KillPoint, end_uncleanly
from tests.exchange.outputs import Rows, write

FIRST: Rows = {0: range(100), 2: [7]}
SECOND: Rows = {0: [1], 1: range(50)}
CHANGES = ("fsync", "link", "mkdir", "replace", "unlink")


def die_at(point: KillPoint) -> None:
    """Kill this process before or after the change that `point` names."""

    def deadly(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            strikes = point.passes()
            if strikes and point.when == "before":
                end_uncleanly()
            value = change(*arguments, **options)
            if strikes:
                end_uncleanly()
            return value

        return changed

    for name in CHANGES:
        setattr(os, name, deadly(getattr(os, name)))


def main(directory: str, change: int, when: Any) -> None:
    point = KillPoint(change, when)
    die_at(point)
    objects = open_objects(directory)
    write(objects, FIRST)
    write(objects, SECOND, replaces=1)
    print(point._changes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
