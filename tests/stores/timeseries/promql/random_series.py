"""Random series: irregular scrapes, gaps, counter resets, NaN, infinities and staleness markers.

All numbers and seconds are multiples of 1/8, so that sums of them are exact in any order.
"""

from __future__ import annotations

import random
from functools import cache

from headrace.stores.timeseries.memory_source import MemorySource
from tests.stores.timeseries.promql.prometheus_server import Written
from tests.stores.timeseries.promql.sample_series import BASE_MS, MINUTE, SECOND, STALE

LENGTH_MS = 20 * MINUTE
TICK_MS = 125
BOUNDS = ("0.25", "1", "4", "+Inf")

_Samples = list[tuple[int, float]]


@cache
def random_series(seed: int) -> Written:
    """Return the same series for the same seed. Their names end with it."""
    dice = random.Random(seed)
    unequal = iter(dice.sample(range(-(10**6), 10**6), 10_000))
    found: list[tuple[dict[str, str], _Samples]] = []
    for job in ("api", "web"):
        for instance in ("a", "b", "c")[: dice.randint(1, 3)]:
            labels = {"job": job, "instance": instance}
            for name, samples in (
                ("gauge", _with_markers(dice, _gauge(dice))),
                ("counter", _with_markers(dice, _counter(dice))),
                ("distinct", [(time, next(unequal) / 8) for time in _times(dice)]),
                ("odd", _with_markers(dice, _odd(dice))),
                ("flag", [(time, float(dice.random() < 0.7)) for time in _times(dice)]),
            ):
                found.append(({"__name__": f"{name}_{seed}", **labels}, samples))
            buckets = zip(BOUNDS, _buckets(dice), strict=True)
            found += [
                ({"__name__": f"latency_{seed}_bucket", "le": bound, **labels}, samples)
                for bound, samples in buckets
            ]
        limit = {"__name__": f"limit_{seed}", "job": job, "team": f"team-{job}"}
        found.append((limit, _gauge(dice)))
    return [(labels, samples) for labels, samples in found if samples]


@cache
def random_source(seed: int) -> MemorySource:
    return MemorySource(random_series(seed))


def _times(dice: random.Random) -> list[int]:
    """Return moments about every 5, 15 or 30 seconds, with gaps, in all or a part of the time."""
    interval = dice.choice([5, 15, 30]) * SECOND
    jitter = dice.choice([0, 0, 8, 30])
    begin = dice.choice([0, 0, 0, 0, dice.randrange(LENGTH_MS // 2)])
    end = dice.choice([LENGTH_MS, LENGTH_MS, LENGTH_MS, dice.randrange(LENGTH_MS)])
    times = []
    now = BASE_MS + (begin + dice.randrange(interval)) // TICK_MS * TICK_MS
    while now < BASE_MS + end:
        times.append(now)
        now += interval + dice.randint(-jitter, jitter) * TICK_MS
        if dice.random() < 0.03:
            now += dice.randrange(1, 7) * MINUTE
    return times


def _with_markers(dice: random.Random, samples: _Samples) -> _Samples:
    often = dice.choice([0.0, 0.02, 0.2])
    return [(time, STALE if dice.random() < often else value) for time, value in samples]


def _gauge(dice: random.Random) -> _Samples:
    width = dice.choice([8, 4000])
    return [(time, dice.randint(-width, width) / 8) for time in _times(dice)]


def _counter(dice: random.Random) -> _Samples:
    often = dice.choice([0.0, 0.03, 0.3])
    found: _Samples = []
    value = float(dice.choice([0, dice.randrange(1000)]))
    for time in _times(dice):
        value = dice.choice([0.0, value / 2 // 1]) if dice.random() < often else value
        value += dice.choice([0, dice.randrange(80) / 8])
        found.append((time, value))
    return found


def _odd(dice: random.Random) -> _Samples:
    kinds = [[float("nan"), 1.0], [float("inf"), -float("inf"), 3.0], [2.0], [0.0, -0.0, 1.0]]
    values = dice.choice(kinds)
    return [(time, dice.choice(values)) for time in _times(dice)]


def _buckets(dice: random.Random) -> list[_Samples]:
    """Return the counts of buckets, of which some miss some scrapes."""
    found: list[_Samples] = [[] for _ in BOUNDS]
    counts = [0.0] * len(BOUNDS)
    missed = dice.choice([0.0, 0.05])
    for time in _times(dice):
        growth = sorted(dice.randrange(9) for _ in BOUNDS)
        counts = [count + more for count, more in zip(counts, growth, strict=True)]
        for samples, count in zip(found, counts, strict=True):
            if dice.random() >= missed:
                samples.append((time, count))
    return found
