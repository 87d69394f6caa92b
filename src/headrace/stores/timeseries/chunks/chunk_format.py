"""The bytes of a chunk: samples of many series, in one bucket of time. Pure.

All samples of a flush are encoded at once, and many series share a chunk: what is the same in all
of them, such as the time between two samples, costs next to nothing.

    version, series, samples           u8, u32, u32
    ids, counts                        of each series
    first times, differences           in milliseconds; see `column_codec` for the columns
    scales                             of each series: 0 to 3, or 255
    first integers, differences        of series with a scale s: the value is integer / 10 ** s
    exceptions: count, places, bits    values of those series that are no such quotient, like NaN
    XOR of each value with the one before it, as bits: of the series with scale 255
    checksum                           u64, xxh3

Every bit of every value comes back: staleness markers, payloads of NaNs, and the sign of zero.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.errors import DataError
from headrace.stores.timeseries.chunks.column_codec import put_column, take_column

_HEADER = struct.Struct("<BII")
_COUNT = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_VERSION = 1

_XOR = 255
_SCALES = (0, 1, 2, 3)
_EXCEPTIONS_SHARE = 8
"""A series keeps its scale if at most one of so many values is an exception."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SeriesSamples:
    """Samples of series that are named by ids.

    Series i has the samples from `offsets[i]` up to `offsets[i + 1]`, at least one, by ascending
    time. The ids ascend.
    """

    ids: Ints
    offsets: Ints
    timestamps: Ints
    values: Floats


def encode_chunk(samples: SeriesSamples) -> bytes:
    """Return the samples as bytes."""
    starts = samples.offsets[:-1]
    counts = np.diff(samples.offsets)
    pieces = [_HEADER.pack(_VERSION, len(starts), len(samples.timestamps))]
    put_column(pieces, np.diff(samples.ids, prepend=0))
    put_column(pieces, counts)
    _put_differences(pieces, samples.timestamps, starts)
    _put_values(pieces, samples.values, starts, counts)
    body = b"".join(pieces)
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def decode_chunk(stored: bytes, where: str = "a chunk") -> SeriesSamples:
    """Return the samples. Raises DataError, which names the place, if the bytes are damaged."""
    end = len(stored) - _CHECKSUM.size
    if (
        end < _HEADER.size
        or stored[0] != _VERSION
        or _CHECKSUM.unpack_from(stored, end)[0] != xxhash.xxh3_64_intdigest(stored[:end])
    ):
        raise DataError(f"{where} is damaged", do="restore the store from a copy")
    view = memoryview(stored)
    _, series, _ = _HEADER.unpack_from(stored)
    ids, position = take_column(view, _HEADER.size, series)
    counts, position = take_column(view, position, series)
    offsets = np.zeros(series + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    timestamps, position = _take_differences(view, position, offsets)
    values = _take_values(view, position, offsets)
    return SeriesSamples(np.cumsum(ids), offsets, timestamps, values)


def chunk_samples(stored: bytes) -> int:
    """Return how many samples a chunk has, without a look at the rest of it."""
    return int(_HEADER.unpack_from(stored)[2])


def _put_differences(pieces: list[bytes], column: Ints, starts: Ints) -> None:
    """Append the first of each series, then the difference of each other to the one before."""
    put_column(pieces, column[starts])
    inner = np.ones(len(column), dtype=np.bool_)
    inner[starts] = False
    put_column(pieces, np.diff(column, prepend=0)[inner])


def _take_differences(view: memoryview, position: int, offsets: Ints) -> tuple[Ints, int]:
    starts, counts = offsets[:-1], np.diff(offsets)
    firsts, position = take_column(view, position, len(starts))
    inner, position = take_column(view, position, int(offsets[-1]) - len(starts))
    sums = np.zeros(int(offsets[-1]), dtype=np.int64)
    if len(starts) > 1:
        mask = np.ones(len(sums), dtype=np.bool_)
        mask[starts] = False
        sums[mask] = inner
    else:
        sums[1:] = inner
    np.cumsum(sums, out=sums)
    sums += np.repeat(firsts - sums[starts], counts)
    return sums, position


def _put_values(pieces: list[bytes], values: Floats, starts: Ints, counts: Ints) -> None:
    scales, integers, exceptional = _scale(values, starts, counts)
    put_column(pieces, scales)
    is_xor = scales == _XOR
    in_xor = np.repeat(is_xor, counts)
    scaled = integers if not is_xor.any() else integers[~in_xor]
    places = np.flatnonzero(exceptional if not is_xor.any() else exceptional[~in_xor])
    if len(places):
        # The integer before stands in for an exception, so that the differences stay small.
        usable = np.arange(len(scaled))
        usable[places] = 0
        scaled = scaled[np.maximum.accumulate(usable)]
    _put_differences(pieces, scaled, _starts(counts[~is_xor]))
    bits = values.view(np.int64)
    pieces.append(_COUNT.pack(len(places)))
    put_column(pieces, places)
    put_column(pieces, bits[~in_xor][places])
    rest = bits[in_xor]
    put_column(pieces, rest ^ np.concatenate([np.zeros(1, np.int64), rest])[:-1])


def _take_values(view: memoryview, position: int, offsets: Ints) -> Floats:
    counts = np.diff(offsets)
    scales, position = take_column(view, position, len(counts))
    is_xor = scales == _XOR
    of_scaled = counts[~is_xor]
    scaled_offsets = np.append(_starts(of_scaled), of_scaled.sum())
    integers, position = _take_differences(view, position, scaled_offsets)
    values = integers.astype(np.float64)
    if scales[~is_xor].any():
        values /= np.repeat(10.0 ** scales[~is_xor], of_scaled)
    (exceptions,) = _COUNT.unpack_from(view, position)
    places, position = take_column(view, position + _COUNT.size, exceptions)
    bits, position = take_column(view, position, exceptions)
    values.view(np.int64)[places] = bits
    if not is_xor.any():
        return values
    rest, position = take_column(view, position, int(offsets[-1]) - len(values))
    in_xor = np.repeat(is_xor, counts)
    found = np.empty(len(in_xor), dtype=np.float64)
    found[~in_xor] = values
    found.view(np.int64)[in_xor] = np.bitwise_xor.accumulate(rest)
    return found


def _scale(values: Floats, starts: Ints, counts: Ints) -> tuple[Ints, Ints, Mask]:
    """Return the scale of each series, the integers of the samples, and which are exceptions."""
    scales = np.full(len(starts), _XOR, dtype=np.int64)
    integers = np.zeros(len(values), dtype=np.int64)
    exceptional = np.zeros(len(values), dtype=np.bool_)
    if not len(starts):
        return scales, integers, exceptional
    left = np.arange(len(starts))
    inside: Ints | slice = slice(None)
    for scale in _SCALES:
        some = values[inside]
        found, wrong = _integers(some, 10.0**scale)
        begins = _starts(counts[left])
        misses = np.add.reduceat(wrong, begins, dtype=np.int64)
        fits = misses * _EXCEPTIONS_SHARE <= counts[left]
        scales[left[fits]] = scale
        if scale == 0 and fits.all():
            return scales, found, wrong
        in_fit = np.repeat(fits, counts[left])
        positions = np.flatnonzero(in_fit) if isinstance(inside, slice) else inside[in_fit]
        integers[positions] = found[in_fit]
        exceptional[positions] = wrong[in_fit]
        inside = np.flatnonzero(~in_fit) if isinstance(inside, slice) else inside[~in_fit]
        left = left[~fits]
        if not len(left):
            break
    return scales, integers, exceptional


def _integers(values: Floats, factor: float) -> tuple[Ints, Mask]:
    """Return value * factor as integers, and which of them do not give the same bits back."""
    with np.errstate(invalid="ignore", over="ignore"):
        found = (np.rint(values * factor) if factor != 1 else values).astype(np.int64)
    back = found.astype(np.float64)
    if factor != 1:
        back /= factor
    return found, back.view(np.int64) != values.view(np.int64)


def _starts(counts: Ints) -> Ints:
    starts = np.zeros(len(counts), dtype=np.int64)
    np.cumsum(counts[:-1], out=starts[1:])
    return starts
