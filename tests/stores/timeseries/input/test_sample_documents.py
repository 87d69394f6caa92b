"""Samples as dicts and as lines of JSON."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from headrace.errors import DocumentError
from headrace.stores.timeseries.input.sample_documents import read_documents, read_ndjson

LABELS = {"__name__": "up", "job": "api"}


def one(**changes: Any) -> dict[str, Any]:
    return {"labels": LABELS, "timestamp": 5, "value": 1.5, **changes}


def test_documents_hold_one_or_many_samples() -> None:
    documents = [
        one(),
        {"labels": LABELS, "timestamps": [1, "1970-01-01T00:00:02Z"], "values": [1, "NaN"]},
        one(labels={"a": "1"}, value="-inf"),
    ]
    lines = b"\n".join(json.dumps(each).encode() for each in documents) + b"\n\n"
    for batch in (read_documents(documents), read_ndjson(lines)):
        assert batch.codes.tolist() == [0, 0, 0, 1]
        assert batch.timestamps.tolist() == [5, 1, 2000, 5]
        assert batch.values[[0, 1, 3]].tolist() == [1.5, 1.0, -math.inf]
        assert math.isnan(batch.values[2])
        assert len(batch.series) == 2


def test_dicts_may_have_datetimes() -> None:
    early = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    east = datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    documents = [
        one(timestamp=early),
        {"labels": LABELS, "timestamps": [east], "values": [1.0]},
    ]
    assert read_documents(documents).timestamps.tolist() == [-1, 0]


# proves G27
@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "missing required field `labels`"),
        (one(labels=None), "Expected `object`, got `null`"),
        (one(labels={"a": 1}), "Expected `str`, got `int`"),
        (one(labels={}), "has no labels"),
        (one(labels={"a b": "1"}), "has the label name 'a b'"),
        (one(timestamp=None), "does not say its samples"),
        (one(value=None), "does not say its samples"),
        (one(timestamps=[1], values=[1]), "does not say its samples"),
        (one(timestamp=None, timestamps=[1], values=None), "does not say its samples"),
        ({"labels": LABELS, "timestamps": [1, 2], "values": [1]}, "2 timestamps and 1 values"),
        (one(value="1.5"), "has the value '1.5'"),
        (one(value=True), "Expected `float | str"),
        (one(timestamp="yesterday"), "has the time 'yesterday'"),
        (one(timestamp="2024-01-01T00:00:00"), "without a time zone"),
        (one(timestamp=1.5), "Expected `int | str"),
        (one(timestamp=1 << 63), "the time 9223372036854775808"),
        (one(extra=1), "unknown field `extra`"),
    ],
)
def test_the_wrong_document_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError, match=f"document 1 .*{message}"):
        read_documents([one(), document])
    lines = f"{json.dumps(one())}\n\n{json.dumps(document)}\n{json.dumps(one())}"
    with pytest.raises(DocumentError, match=f"line [23] .*{message}"):
        read_ndjson(lines.encode())


@pytest.mark.parametrize("line", [b"{", b"[]", b"\xff", b'{"labels": {"a": "\xff"}}', b"1", b"NaN"])
def test_the_line_that_is_no_document_is_named(line: bytes) -> None:
    lines = json.dumps(one()).encode() + b"\n" + line
    with pytest.raises(DocumentError, match="line 2 cannot be read"):
        read_ndjson(lines)


def test_nothing_is_no_samples() -> None:
    assert len(read_documents([]).codes) == len(read_ndjson(b"\n").codes) == 0
