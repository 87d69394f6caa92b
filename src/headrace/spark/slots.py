"""The slots of a session: how many tasks it runs at once, and what Headrace holds of them.

Members and the workers of pipelines hold a slot each for as long as they live. Spark does not count
them, so the driver does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from headrace.errors import UsageError

_EXECUTORS_S = 60.0
_LOOK_AGAIN_S = 0.2

_waited: set[str] = set()
"""The applications whose executors have had the time to start."""
_taken: dict[str, int] = {}
"""The slots that this driver holds, by application."""
_taking = threading.Lock()


@contextmanager
def slots_for_members(spark: SparkSession, members: int) -> Iterator[None]:
    """Reserve the slots of members; raise UsageError if there are too few.

    Each member holds a slot for as long as it lives, and the query needs one more. On a cluster
    this waits for executors that are still starting.
    """
    application = _application(spark)
    deadline = _deadline(spark)
    while _take(application, members, _slots(spark) - 1, at_least=members) < members:
        if time.monotonic() > deadline:
            held, slots = _taken.get(application, 0), _slots(spark)
            beside = f", of which others hold {held}" if held else ""
            raise UsageError(
                f"{members} members and the query beside them need {members + 1} slots, and"
                f" {spark.sparkContext.master} has {slots}{beside}",
                do=f"give Spark {held + members + 1 - slots} more cores, or use fewer shards",
            )
        time.sleep(_LOOK_AGAIN_S)
    with _holding(application, members):
        yield


@contextmanager
def slots_for_workers(spark: SparkSession, wanted: int) -> Iterator[int]:
    """Reserve as many of the wanted slots as are free, and yield how many; at least one.

    On a cluster this waits for executors that are still starting.
    """
    application = _application(spark)
    taken = 0
    for _ in until_executors(spark):
        if taken := _take(application, wanted, _slots(spark), at_least=wanted):
            break
    taken = taken or _take(application, wanted, _slots(spark), at_least=1)
    # If others hold all slots, Spark lets the one worker wait until they give one back.
    taken = taken or _take(application, 1, _taken.get(application, 0) + 1, at_least=1)
    with _holding(application, taken):
        yield taken


def until_executors(spark: SparkSession) -> Iterator[None]:
    """Yield again and again until executors have had the time to start; at least once."""
    application = _application(spark)
    deadline = _deadline(spark) if application not in _waited else 0.0
    yield
    while time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
        yield
    _waited.add(application)


def has_cluster(spark: SparkSession) -> bool:
    """Return True if executors are processes of their own."""
    master = str(spark.sparkContext.master)
    return not master.startswith("local") or master.startswith("local-cluster")


def free_slots(spark: SparkSession) -> int:
    """Return the slots that neither members nor workers hold."""
    return max(0, _slots(spark) - _taken.get(_application(spark), 0))


@contextmanager
def _holding(application: str, count: int) -> Iterator[None]:
    try:
        yield
    finally:
        with _taking:
            _taken[application] -= count


def _take(application: str, wanted: int, slots: int, *, at_least: int) -> int:
    """Reserve the wanted slots, or as many as are free; none if fewer than `at_least` are."""
    with _taking:
        held = _taken.get(application, 0)
        count = min(wanted, slots - held)
        if count < at_least:
            return 0
        _taken[application] = held + count
        return count


def _application(spark: SparkSession) -> str:
    return str(spark.sparkContext.applicationId)


def _deadline(spark: SparkSession) -> float:
    return time.monotonic() + (_EXECUTORS_S if has_cluster(spark) else 0)


def _slots(spark: SparkSession) -> int:
    context = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))
