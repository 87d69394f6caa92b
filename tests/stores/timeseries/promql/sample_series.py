"""Series for the tests: counters, gauges and histograms, with everything that goes wrong."""

from __future__ import annotations

import random

import numpy as np

from headrace.stores.timeseries.series import STALE_BITS
from tests.stores.timeseries.promql.prometheus_server import Written

BASE_MS = 1_700_000_000_000 // 3_600_000 * 3_600_000
"""The data of all tests begins here, on the hour."""
STALE = float(np.int64(STALE_BITS).view(np.float64))
SECOND = 1_000
MINUTE = 60_000

_BOUNDS = ("0.1", "0.5", "1", "2.5", "+Inf")


def made_series(seed: int = 7) -> Written:
    dice = random.Random(seed)
    found: list[tuple[dict[str, str], list[tuple[int, float]]]] = []
    for job in ("api", "web"):
        for instance in ("a", "b", "c"):
            labels = {"job": job, "instance": instance}
            found.append(({"__name__": "requests_total", **labels}, _counter(dice)))
            found.append(({"__name__": "load", **labels}, _gauge(dice)))
            found.append(({"__name__": "up", **labels}, _flag(dice)))
            found += [
                ({"__name__": "latency_bucket", "le": bound, **labels}, samples)
                for bound, samples in zip(_BOUNDS, _buckets(dice), strict=True)
            ]
        found.append(({"__name__": "limit", "job": job, "team": f"team-{job}"}, _flag(dice)))
    found.append(({"__name__": "strange", "kind": "nan"}, _strange(dice, [float("nan"), 1.0])))
    found.append(({"__name__": "strange", "kind": "inf"}, _strange(dice, [float("inf"), 2.0])))
    infinities = [float("inf"), -float("inf"), 3.0]
    found.append(({"__name__": "strange", "kind": "both"}, _strange(dice, infinities)))
    found.append(({"__name__": "strange", "kind": "stale"}, _strange(dice, [STALE, 4.0, 5.5])))
    found.append(({"__name__": "constant", "kind": "seven"}, _strange(dice, [7.0])))
    found.append(({"__name__": "huge", "kind": "max"}, _strange(dice, [1e308, 1.5e308, 3.0])))
    found.append(({"__name__": "once", "kind": "single"}, [(BASE_MS + 20 * MINUTE, 5.0)]))
    return found


def _times(dice: random.Random) -> list[int]:
    """About four a minute for 40 minutes, with gaps."""
    times = []
    now = BASE_MS + dice.randrange(15 * SECOND)
    while now < BASE_MS + 40 * MINUTE:
        times.append(now)
        now += 15 * SECOND + dice.choice([0, 0, 0, -40, 35, 7])
        if dice.random() < 0.02:
            now += dice.randrange(1, 8) * MINUTE
    return times


def _counter(dice: random.Random) -> list[tuple[int, float]]:
    found = []
    value = float(dice.randrange(100))
    for time in _times(dice):
        value = 0.0 if dice.random() < 0.03 else value + dice.randrange(0, 80) / 4
        found.append((time, value))
        if dice.random() < 0.01:
            found.append((time + 1, STALE))
    return found


def _gauge(dice: random.Random) -> list[tuple[int, float]]:
    return [(time, dice.randrange(-4000, 4000) / 16) for time in _times(dice)]


def _flag(dice: random.Random) -> list[tuple[int, float]]:
    return [(time, float(dice.random() < 0.8)) for time in _times(dice)]


def _strange(dice: random.Random, values: list[float]) -> list[tuple[int, float]]:
    return [(time, dice.choice(values)) for time in _times(dice)]


def _buckets(dice: random.Random) -> list[list[tuple[int, float]]]:
    counts = [0.0] * len(_BOUNDS)
    found: list[list[tuple[int, float]]] = [[] for _ in _BOUNDS]
    for time in _times(dice):
        grown = sorted(dice.randrange(0, 9) for _ in _BOUNDS)
        for place, growth in enumerate(grown):
            counts[place] += growth
            if dice.random() < 0.98:
                found[place].append((time, counts[place]))
    return found
