"""Key hashes: 64 bits per document, the same for ever, on every machine.

Stored documents were routed by these hashes, so this definition never changes. All arithmetic is
modulo 2^64; `mix` is the finalizer of SplitMix64:

    mix(x)      x ^= x >> 30;  x *= BF58476D1CE4E5B9;  x ^= x >> 27;  x *= 94D049BB133111EB;
                x ^= x >> 31
    step(h, w)  h ^= w;  h *= 9E3779B97F4A7C15;  h ^= h >> 32

    key             h = 0; for each field in order: h = mix(h * 9E3779B97F4A7C15 + field)
    null            a constant
    string, binary  h = mix(length + salt); h = step(h, w) for each 8-byte little-endian word w of
                    the bytes, the last one padded with zeros; mix(h).
                    Over 256 bytes the words are those of the bytes' XXH3-64, one word.
    decimal         h = salt; step(h, low); step(h, high) of the unscaled 128-bit integer; mix(h)
    others          mix(value + salt), where value is the integer that Arrow stores, sign-extended

The salt is one constant for each of: bytes, integers, booleans, dates, timestamps, decimals. So a
string and a binary of the same bytes hash alike, as do integers of any width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash
from numpy.typing import NDArray

from headrace.arrow_numbers import numpy_numbers
from headrace.errors import SchemaError

Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x6E756C6C6B657931)

_BYTES = np.uint64(0xA0761D6478BD642F)
_INTEGER = np.uint64(0xE7037ED1A0B428DB)
_BOOLEAN = np.uint64(0x8EBC6AF09C88C6E3)
_DATE = np.uint64(0x589965CC75374CC3)
_TIMESTAMP = np.uint64(0x1D8E4E27C47D124F)
_DECIMAL = np.uint64(0xEB44ACCAB455D165)

_WORD_BYTES = 8
_LONG_BYTES = 256
_BLOCK = 8192


def key_hash(batch: pa.RecordBatch, key_fields: Sequence[str]) -> Hashes:
    """Return the hash of each row's key. It depends on the key alone, not on its row or batch."""
    hashes = np.zeros(batch.num_rows, np.uint64)
    for name in key_fields:
        hashes *= _GOLDEN
        hashes += _hash_column(batch[name], name)
        _mix(hashes)
    return hashes


def _hash_column(column: pa.Array, name: str) -> Hashes:
    kind = column.type
    if pt.is_string(kind) or pt.is_binary(kind):
        hashes = _hash_bytes(column)
    elif pt.is_signed_integer(kind):
        hashes = _hash_integers(_values(column, f"<i{kind.bit_width // 8}"), _INTEGER)
    elif pt.is_boolean(kind):
        hashes = _hash_integers(_values(column.cast(pa.uint8()), "<u1"), _BOOLEAN)
    elif pt.is_date32(kind):
        hashes = _hash_integers(_values(column, "<i4"), _DATE)
    elif pt.is_timestamp(kind):
        hashes = _hash_integers(_values(column, "<i8"), _TIMESTAMP)
    elif pt.is_decimal128(kind):
        hashes = _hash_decimals(_values(column, [("low", "<u8"), ("high", "<u8")]))
    else:
        raise SchemaError(
            f"key field {name!r} has type {kind}, which cannot be hashed",
            do="use an integer, decimal, string, binary, boolean, date or timestamp",
        )
    if column.null_count:
        hashes[numpy_numbers(pc.is_null(column))] = _NULL
    return hashes


def _values(column: pa.Array, dtype: Any) -> NDArray[Any]:
    """Return the stored values, including those of null slots."""
    data = column.buffers()[1]
    if not len(column):
        return np.zeros(0, dtype)
    values = np.frombuffer(data, dtype, count=column.offset + len(column))
    return values[column.offset :]


def _hash_integers(values: NDArray[Any], salt: np.uint64) -> Hashes:
    hashes = values.astype(np.int64).view(np.uint64)
    hashes += salt
    return _mix(hashes)


def _hash_decimals(values: NDArray[Any]) -> Hashes:
    hashes = np.full(len(values), _DECIMAL)
    hashes = _step(_step(hashes, values["low"]), values["high"])
    return _mix(hashes)


def _hash_bytes(column: pa.Array) -> Hashes:
    count = len(column)
    if not count:
        return np.zeros(0, np.uint64)
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, "<i4", count=column.offset + count + 1)
    offsets = offsets[column.offset :].astype(np.int64)
    first, last = offsets[0], offsets[-1]
    # Pad the copy, so that a word can be loaded at any byte of it, even the last.
    text = np.zeros(last - first + _WORD_BYTES, np.uint8)
    if last > first:
        text[: last - first] = np.frombuffer(data, np.uint8)[first:last]
    starts = offsets[:-1] - first
    lengths = np.diff(offsets)
    hashes = _mix(lengths.view(np.uint64) + _BYTES)
    _absorb_short(hashes, text, starts, lengths)
    _absorb_long(hashes, text, starts, lengths)
    return _mix(hashes)


def _absorb_short(
    hashes: Hashes, text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> None:
    """Absorb one word of each short row per round, as long as the row has such a word."""
    words = np.ndarray((len(text) - _WORD_BYTES + 1,), "<u8", buffer=text.data, strides=(1,))
    longest = int(lengths.max(initial=0, where=lengths <= _LONG_BYTES))
    shortest = int(lengths.min()) if longest == lengths.max() else 0
    for start in range(0, longest, _WORD_BYTES):
        if start < shortest:
            # Every row has such a word, so none need be picked.
            word = words[starts + start]
            word &= _MASKS[np.maximum((start + _WORD_BYTES) - lengths, 0)]
            hashes[:] = _step(hashes, word)
            continue
        rows = np.flatnonzero((lengths > start) & (lengths <= _LONG_BYTES))
        word = words[starts[rows] + start]
        excess = (start + _WORD_BYTES) - lengths[rows]
        word &= _MASKS[np.maximum(excess, 0)]
        hashes[rows] = _step(hashes[rows], word)


def _absorb_long(
    hashes: Hashes, text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> None:
    rows = np.flatnonzero(lengths > _LONG_BYTES)
    if len(rows):
        ends = starts[rows] + lengths[rows]
        digests = [
            xxhash.xxh3_64_intdigest(text[start:end].data)
            for start, end in zip(starts[rows].tolist(), ends.tolist(), strict=True)
        ]
        hashes[rows] = _step(hashes[rows], np.array(digests, np.uint64))


# The bits to keep of a word, by the number of its bytes that lie beyond the end.
_MASKS = np.array([(1 << (64 - 8 * excess)) - 1 for excess in range(_WORD_BYTES)], np.uint64)


def _step(hashes: Hashes, word: Hashes) -> Hashes:
    hashes = hashes ^ word
    hashes *= _GOLDEN
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _mix(hashes: Hashes) -> Hashes:
    """Mix the hashes in place, and return them."""
    # A block and what is computed of it fit into the cache of a core.
    for begin in range(0, len(hashes), _BLOCK):
        block = hashes[begin : begin + _BLOCK]
        block ^= block >> np.uint64(30)
        block *= _MIX_1
        block ^= block >> np.uint64(27)
        block *= _MIX_2
        block ^= block >> np.uint64(31)
    return hashes
