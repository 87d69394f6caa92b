"""Kills this process at one step of applying the parts of a checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Literal

from headrace.stores.kv.lmdb_store import LmdbKeyValueStore

Step = Literal[
    "os.mkdir",
    "os.rename",  # a part is complete
    "write",  # rows and checkpoint go into the key-value store
    "wait_durable",  # and become durable
    "open",  # the mark that they are there
    "os.remove",  # a part goes
    "shutil.rmtree",  # the parts of earlier checkpoints go
]


def die_before(step: Step, times: int, place: str) -> None:
    """Kill this process before it passes the step for that time, counted from 1."""
    staged = str(Path(place) / "staged")
    passed = 0

    def reach() -> None:
        nonlocal passed
        passed += 1
        if passed == times:
            os.kill(os.getpid(), signal.SIGKILL)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == step and str(arguments[0]).startswith(staged):
            reach()

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any) -> Any:
            reach()
            return method(*arguments)

        return call

    if step in ("write", "wait_durable"):
        setattr(LmdbKeyValueStore, step, dying(getattr(LmdbKeyValueStore, step)))
    else:
        sys.addaudithook(look)
