"""Samples as Python dicts and as lines of JSON. Pure.

A document has the `labels` of a series, and either one sample, `timestamp` and `value`, or many,
`timestamps` and `values`. Times are milliseconds since 1970, or ISO 8601 with a time zone. JSON has
no NaN: it and the infinities are strings, "NaN", "Inf" and "-Inf".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from headrace.decoders import convert
from headrace.errors import DocumentError
from headrace.stores.timeseries.labels import encode_labels, make_labels
from headrace.stores.timeseries.sample_batch import SampleBatch

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WORDS = {
    "nan": float("nan"),
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
}
_TIMES = (-(1 << 63), (1 << 63) - 1)


class SampleDocument(msgspec.Struct, forbid_unknown_fields=True):
    """One or many samples of one series."""

    labels: dict[str, str]
    timestamp: int | str | None = None
    value: float | str | None = None
    timestamps: list[int | str] | None = None
    values: list[float | str] | None = None


_DECODER = msgspec.json.Decoder(SampleDocument)


def read_documents(documents: Iterable[Mapping[str, Any]]) -> SampleBatch:
    """Return the samples of dicts. Raises DocumentError, which names the document that is wrong."""

    def converted() -> Iterator[tuple[str, SampleDocument]]:
        for number, document in enumerate(documents):
            where = f"document {number}"
            try:
                yield where, convert(_plain_times(document), SampleDocument)
            except (msgspec.ValidationError, TypeError, ValueError) as error:
                raise _unreadable(where, error) from error

    return _batch(converted())


def read_ndjson(lines: bytes) -> SampleBatch:
    """Return the samples of lines of JSON. Raises DocumentError, which names the wrong line."""
    try:
        found = _DECODER.decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    # Line by line only to find the one that is wrong.
    numbered = _decode_each(lines) if found is None else enumerate(found, 1)
    return _batch((f"line {number}", document) for number, document in numbered)


def _decode_each(lines: bytes) -> Iterator[tuple[int, SampleDocument]]:
    for number, line in enumerate(lines.split(b"\n"), 1):
        if line.strip():
            try:
                yield number, _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise _unreadable(f"line {number}", error) from error


def _batch(documents: Iterable[tuple[str, SampleDocument]]) -> SampleBatch:
    series: dict[tuple[tuple[str, str], ...], int] = {}
    encoded: list[bytes] = []
    codes: list[int] = []
    times: list[int] = []
    values: list[float] = []
    for where, document in documents:
        pairs = tuple(document.labels.items())
        code = series.get(pairs)
        if code is None:
            encoded.append(encode_labels(make_labels(pairs, where=where)))
            code = series[pairs] = len(series)
        of_times, of_values = _samples(where, document)
        codes += [code] * len(of_times)
        times += (_time_ms(where, each) for each in of_times)
        values += (_number(where, each) for each in of_values)
    return SampleBatch(
        encoded,
        np.array(codes, dtype=np.int64),
        np.array(times, dtype=np.int64),
        np.array(values, dtype=np.float64),
    )


def _samples(where: str, document: SampleDocument) -> tuple[list[int | str], list[float | str]]:
    one = document.timestamp, document.value
    many = document.timestamps, document.values
    if one[0] is not None and one[1] is not None and many == (None, None):
        return [one[0]], [one[1]]
    if one == (None, None) and many[0] is not None and many[1] is not None:
        if len(many[0]) != len(many[1]):
            raise DocumentError(
                f"{where} has {len(many[0])} timestamps and {len(many[1])} values",
                do="give one value for each time",
            )
        return many[0], many[1]
    raise DocumentError(
        f"{where} does not say its samples",
        do="give timestamp and value, or timestamps and values",
    )


def _plain_times(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with its datetimes as text, as JSON would have them."""
    plain = dict(document)
    if isinstance(plain.get("timestamp"), datetime):
        plain["timestamp"] = plain["timestamp"].isoformat()
    if isinstance(plain.get("timestamps"), list | tuple):
        plain["timestamps"] = [
            each.isoformat() if isinstance(each, datetime) else each for each in plain["timestamps"]
        ]
    return plain


def _time_ms(where: str, given: int | str) -> int:
    if isinstance(given, str):
        try:
            moment = datetime.fromisoformat(given)
        except ValueError as error:
            raise DocumentError(
                f"{where} has the time {given!r}", do="write it like 2024-05-01T12:00:00Z"
            ) from error
        if moment.tzinfo is None:
            raise DocumentError(
                f"{where} has the time {given!r} without a time zone", do="add one, such as Z"
            )
        since = moment - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if not _TIMES[0] <= given <= _TIMES[1]:
        raise DocumentError(f"{where} has the time {given}", do="give milliseconds since 1970")
    return given


def _number(where: str, given: float | str) -> float:
    if isinstance(given, str):
        found = _WORDS.get(given.lower())
        if found is None:
            raise DocumentError(
                f"{where} has the value {given!r}", do='give a number, "NaN", "Inf" or "-Inf"'
            )
        return found
    return given


def _unreadable(where: str, error: Exception) -> DocumentError:
    return DocumentError(
        f"{where} cannot be read: {error}",
        do='write it like {"labels": {"__name__": "up"}, "timestamp": 1700000000000, "value": 1}',
    )
