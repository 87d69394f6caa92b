"""Parses values that JSON has no form for from text, a column at a time.

| type | text |
|---|---|
| float, double | `NaN`, `Infinity`, `-Infinity` |
| decimal | digits, with a point or an exponent |
| binary | base64 with its padding, in the standard alphabet |
| date | `2024-02-29` |
| timestamp | `2024-02-29T12:30:01.000005Z`, or an offset instead of the `Z` |
| timestamp_ntz | the same without `Z` or offset |

Years outside of 0000 to 9999 have a sign, as in ISO 8601: `+12024-02-29`.
"""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

FAILURES = (pa.ArrowException, ValueError, OverflowError, TypeError)
"""The errors that the conversion of a column may raise; `UnfitValueError` is a ValueError."""

WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)

_ERA_YEARS = 400
_ERA_DAYS = 146_097
"""The calendar repeats after `_ERA_YEARS`, which have `_ERA_DAYS`."""
_ERAS_TO_2000 = 2000 // _ERA_YEARS
_FAR = re.compile(r"([+-]\d{4,7})(-.*)", re.ASCII)
_DAY_US = 86_400_000_000

_PAD = ord("=")
_INVALID = 255
_SIX_BITS = np.full(256, _INVALID, np.uint8)
_SIX_BITS[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = np.arange(64)
_SIX_BITS[_PAD] = 0


class UnfitValueError(ValueError):
    """A value does not fit its type; `do` is the remedy."""

    def __init__(self, do: str = "change the value, or the type of the field") -> None:
        super().__init__(do)
        self.do = do


def has_text(kind: pa.DataType) -> bool:
    """Return True if text may stand for a value of this type."""
    return bool(
        pt.is_temporal(kind) or pt.is_binary(kind) or pt.is_floating(kind) or pt.is_decimal(kind)
    )


def parse_text(strings: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Return the values that the strings stand for, floats as doubles; null stays null."""
    if not has_text(kind):
        raise UnfitValueError
    try:
        if pt.is_temporal(kind):
            return _parse_times(strings, kind)
        if pt.is_binary(kind):
            return _decode_base64(strings)
        texts = strings.to_pylist()
        if pt.is_floating(kind):
            return pa.array([None if each is None else WORDS[each] for each in texts], pa.float64())
        return pa.array([None if each is None else _decimal(each) for each in texts], kind)
    except (*FAILURES, KeyError):
        raise UnfitValueError(_advice(strings, kind)) from None


def _decimal(text: str) -> Decimal:
    if not _DECIMAL.fullmatch(text):
        raise ValueError(text)
    return Decimal(text)


# Times.


def _parse_times(strings: pa.StringArray, kind: pa.DataType) -> pa.Array:
    is_far = pc.match_substring_regex(strings, "^[+-]")
    if not pc.any(is_far).as_py():
        return strings.cast(kind)
    near = pc.if_else(is_far, None, strings).cast(kind)
    far = [
        _far_count(text, kind) if is_one else None
        for text, is_one in zip(strings.to_pylist(), is_far.to_pylist(), strict=True)
    ]
    counted = pa.array(far, pa.int32() if pt.is_date(kind) else pa.int64()).cast(kind)
    return pc.coalesce(near, counted)


def _far_count(text: str, kind: pa.DataType) -> int:
    """Return days or microseconds since 1970, computed from the same day in 2000 to 2399."""
    found = _FAR.fullmatch(text)
    if not found:
        raise ValueError(text)
    eras, year = divmod(int(found[1]), _ERA_YEARS)
    near = pa.array([f"{2000 + year}{found[2]}"]).cast(kind)
    count: int = near.cast(pa.int32() if pt.is_date(kind) else pa.int64())[0].as_py()
    era = _ERA_DAYS if pt.is_date(kind) else _ERA_DAYS * _DAY_US
    return count + (eras - _ERAS_TO_2000) * era


def zone_advice(text: str, kind: pa.DataType) -> str:
    """Return the remedy for a time whose zone is missing or superfluous."""
    if kind.tz:
        return f"give it a time zone, e.g. {text}Z"
    return f"leave the time zone out, which timestamp_ntz does not take, e.g. {text}"


def _advice(strings: pa.StringArray, kind: pa.DataType) -> str:
    bad = next((each for each in strings.to_pylist() if each and not _fits(each, kind)), "")
    if pt.is_timestamp(kind):
        local = pa.timestamp("us")
        if kind.tz and _fits(bad, local):
            # A date without a time cannot have a zone.
            return zone_advice(bad if len(bad) > len("2024-02-29") else f"{bad}T00:00:00", kind)
        if not kind.tz and _fits(bad, pa.timestamp("us", "UTC")):
            return zone_advice(re.sub(r"(Z|[+-]\d\d:?(\d\d)?)$", "", bad), kind)
        now = "2024-02-29T12:30:00.000001"
        return f"write it as {now}{'Z' if kind.tz else ''}"
    if pt.is_date(kind):
        return "write it as 2024-02-29"
    if pt.is_binary(kind):
        return "write binary as base64, with its padding"
    if pt.is_floating(kind):
        return 'give a number, or one of the texts "NaN", "Infinity" and "-Infinity"'
    return "give a number that fits, or such a number as text"


def _fits(text: str, kind: pa.DataType) -> bool:
    try:
        pa.array([text]).cast(kind) if not _FAR.fullmatch(text) else _far_count(text, kind)
    except FAILURES:
        return False
    return True


def text_of(value: Any) -> str:
    """Return a datetime as text without its zone."""
    return value.replace(tzinfo=None).isoformat() if isinstance(value, datetime) else str(value)


# Binary.


def _decode_base64(strings: pa.StringArray) -> pa.BinaryArray:
    filled = pc.fill_null(strings, "")
    _, offsets_buffer, data_buffer = filled.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[filled.offset :][: len(filled) + 1]
    if data_buffer is None or offsets[0] == offsets[-1]:
        return strings.cast(pa.binary())
    text = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    lengths = np.diff(offsets)
    if (lengths % 4).any():
        raise ValueError("base64 comes in groups of four")
    ends = offsets[1:][lengths > 0]
    pads = text == _PAD
    at_end = np.zeros(len(text), np.bool_)
    at_end[ends - 1] = True
    at_end[ends - 2] = pads[ends - 1]
    six = _SIX_BITS[text]
    if (six == _INVALID).any() or (pads & ~at_end).any():
        raise ValueError("not base64")
    groups = six.reshape(-1, 4).astype(np.uint32)
    words = groups[:, 0] << 18 | groups[:, 1] << 12 | groups[:, 2] << 6 | groups[:, 3]
    octets = np.stack([words >> 16, words >> 8, words], axis=1).astype(np.uint8)
    padding = pads.reshape(-1, 4).sum(axis=1)
    kept = np.arange(3) < 3 - padding[:, None]
    if octets[~kept].any():
        raise ValueError("base64 with bits beyond its end")
    before = np.r_[0, np.cumsum(3 - padding)].astype(np.int32)
    starts = pa.py_buffer(before[offsets // 4])
    found = pa.Array.from_buffers(
        pa.binary(), len(filled), [None, starts, pa.py_buffer(octets[kept])]
    )
    return pc.if_else(strings.is_valid(), found, pa.scalar(None, pa.binary()))
