"""Functions of one value at a time: mathematics and the calendar. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.stores.timeseries.promql.step_matrix import Floats

_DAY_S = 86_400


def _round(values: Floats, nearest: Floats | float = 1.0) -> Floats:
    inverse = 1.0 / np.asarray(nearest)
    return np.asarray(np.floor(values * inverse + 0.5) / inverse)


def _sgn(values: Floats) -> Floats:
    return np.where(values < 0, -1.0, np.where(values > 0, 1.0, values))


def _clamp_min(values: Floats, least: Floats) -> Floats:
    # Infinity is the larger of any two, even beside NaN.
    infinite = np.isposinf(values) | np.isposinf(least)
    return np.where(infinite, np.inf, np.maximum(values, least))


def _clamp_max(values: Floats, most: Floats) -> Floats:
    infinite = np.isneginf(values) | np.isneginf(most)
    return np.where(infinite, -np.inf, np.minimum(values, most))


def _clamp(values: Floats, least: Floats, most: Floats) -> Floats:
    return _clamp_min(_clamp_max(values, most), least)


VALUE_FUNCTIONS: dict[str, Callable[..., Floats]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "exp": np.exp,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "sgn": _sgn,
    "round": _round,
    "clamp": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "deg": lambda values: values * 180 / np.pi,
    "rad": lambda values: values * np.pi / 180,
}
"""Each takes the values of a vector, and then for each step its other arguments."""


def _date(values: Floats) -> np.ndarray:
    return (np.trunc(values) // _DAY_S).astype("datetime64[D]")


def _minute(values: Floats) -> Floats:
    return np.asarray(np.trunc(values) % 3600 // 60)


def _hour(values: Floats) -> Floats:
    return np.asarray(np.trunc(values) % _DAY_S // 3600)


def _day_of_week(values: Floats) -> Floats:
    return np.asarray((np.trunc(values) // _DAY_S + 4) % 7)  # 1970 began on a Thursday


def _day_of_month(values: Floats) -> Floats:
    date = _date(values)
    return np.asarray((date - date.astype("datetime64[M]")).astype(np.float64) + 1)


def _day_of_year(values: Floats) -> Floats:
    date = _date(values)
    return np.asarray((date - date.astype("datetime64[Y]")).astype(np.float64) + 1)


def _days_in_month(values: Floats) -> Floats:
    month = _date(values).astype("datetime64[M]")
    following = (month + 1).astype("datetime64[D]")
    days = following - month.astype("datetime64[D]")
    return np.asarray(days.astype(np.float64))


def _month(values: Floats) -> Floats:
    return (_date(values).astype("datetime64[M]").astype(np.int64) % 12 + 1).astype(np.float64)


def _year(values: Floats) -> Floats:
    return (_date(values).astype("datetime64[Y]").astype(np.int64) + 1970).astype(np.float64)


_CALENDAR: dict[str, Callable[[Floats], Floats]] = {
    "minute": _minute,
    "hour": _hour,
    "day_of_week": _day_of_week,
    "day_of_month": _day_of_month,
    "day_of_year": _day_of_year,
    "days_in_month": _days_in_month,
    "month": _month,
    "year": _year,
}
CALENDAR_FUNCTIONS = frozenset(_CALENDAR)


def calendar_value(name: str, seconds: Floats) -> Floats:
    """Return a part of the date in UTC. Seconds that are no date give NaN."""
    dated = np.abs(seconds) < 1e11
    return np.where(dated, _CALENDAR[name](np.where(dated, seconds, 0.0)), np.nan)
