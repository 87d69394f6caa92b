"""What functions of a window and aggregations give, written as their definitions read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

Samples = Sequence[tuple[int, float]]
"""Times in milliseconds, and values."""
NAN = float("nan")


def _over_values(function: Callable[[list[float]], float]) -> Callable[..., float]:
    return lambda samples, start, end: function([value for _, value in samples])


def _numbers_first(pick: Callable[[list[float]], float]) -> Callable[[list[float]], float]:
    """NaN counts only where there is nothing else."""

    def chosen(values: list[float]) -> float:
        numbers = [value for value in values if not math.isnan(value)]
        return pick(numbers) if numbers else NAN

    return chosen


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _variance(values: list[float]) -> float:
    mean = _mean(values)
    return _mean([(value - mean) ** 2 for value in values])


def quantile(rank: float, values: list[float]) -> float:
    if math.isnan(rank) or not values:
        return NAN
    if not 0 <= rank <= 1:
        return -math.inf if rank < 0 else math.inf
    ascending = sorted(values, key=lambda value: (not math.isnan(value), value))
    place = rank * (len(values) - 1)
    lower = math.floor(place)
    upper = min(lower + 1, len(values) - 1)
    return ascending[lower] * (1 - place + lower) + ascending[upper] * (place - lower)


def _changes(values: list[float]) -> float:
    pairs = pairwise(values)
    return float(sum(a != b and not (math.isnan(a) and math.isnan(b)) for a, b in pairs))


def _resets(values: list[float]) -> float:
    return float(sum(b < a for a, b in pairwise(values)))


def _increase(samples: Samples, start: int, end: int, *, counter: bool = True) -> float | None:
    """Extend the growth between the first and the last sample to the edges of the window."""
    if len(samples) < 2:
        return None
    (first_time, first), (last_time, last) = samples[0], samples[-1]
    growth = last - first
    if counter:
        for (_, before), (_, after) in pairwise(samples):
            growth += before if after < before else 0.0
    sampled = (last_time - first_time) / 1000
    average = sampled / (len(samples) - 1)
    to_start, to_end = (first_time - start) / 1000, (end - last_time) / 1000
    if counter and growth > 0 and first >= 0:
        to_start = min(to_start, sampled * (first / growth))
    to_start = to_start if to_start < average * 1.1 else average / 2
    to_end = to_end if to_end < average * 1.1 else average / 2
    return growth * ((sampled + to_start + to_end) / sampled)


def _rate(samples: Samples, start: int, end: int) -> float | None:
    growth = _increase(samples, start, end)
    return None if growth is None else growth / ((end - start) / 1000)


def _delta(samples: Samples, start: int, end: int) -> float | None:
    return _increase(samples, start, end, counter=False)


def _idelta(samples: Samples, start: int, end: int) -> float | None:
    return samples[-1][1] - samples[-2][1] if len(samples) > 1 else None


def _irate(samples: Samples, start: int, end: int) -> float | None:
    if len(samples) < 2:
        return None
    (before_time, before), (time, value) = samples[-2:]
    return (value if value < before else value - before) / ((time - before_time) / 1000)


WINDOW_FUNCTIONS: dict[str, Callable[..., float | None]] = {
    "sum_over_time": _over_values(lambda values: sum(values, 0.0)),
    "avg_over_time": _over_values(_mean),
    "min_over_time": _over_values(_numbers_first(min)),
    "max_over_time": _over_values(_numbers_first(max)),
    "count_over_time": _over_values(lambda values: float(len(values))),
    "last_over_time": _over_values(lambda values: values[-1]),
    "present_over_time": _over_values(lambda values: 1.0),
    "stddev_over_time": _over_values(lambda values: math.sqrt(_variance(values))),
    "changes": _over_values(_changes),
    "resets": _over_values(_resets),
    "rate": _rate,
    "increase": _increase,
    "delta": _delta,
    "idelta": _idelta,
    "irate": _irate,
}
"""Each takes the samples, the start and the end of a window; None is no value."""

AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": lambda values: sum(values, 0.0),
    "avg": _mean,
    "min": _numbers_first(min),
    "max": _numbers_first(max),
    "count": lambda values: float(len(values)),
    "group": lambda values: 1.0,
    # One value, even NaN, has no spread.
    "stddev": lambda values: math.sqrt(_variance(values)) if len(values) > 1 else 0.0,
}
