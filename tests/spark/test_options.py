"""What may be written after `format("headrace")`."""

from __future__ import annotations

import re

import pytest

from headrace.errors import UsageError
from headrace.spark.options import parse_batch, parse_stream

HERE = {"workspace": "data", "collections": "a, b"}


def test_a_batch_is_split_and_limited_as_it_says() -> None:
    reads = parse_batch({**HERE, "Partitions": "3", "task": "t", "fromCheckpoint": "0"})
    assert (reads.partitions, reads.task, reads.first, reads.last) == (3, "t", 0, None)
    assert [each.collection for each in reads.bindings] == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": "2"}, "option 'shards' is for a stream, and this is a batch"),
        ({"pollSeconds": "1"}, "option 'pollseconds' is for a stream, and this is a batch"),
        ({"toCheckpoint": "2"}, "checkpoints are of a task, and none is named"),
        ({"fromCheckpoint": "0"}, "checkpoints are of a task, and none is named"),
        ({"partitions": "0"}, "option 'partitions' is '0'; write a whole number from 1 on"),
        ({"task": "t", "fromCheckpoint": "-1"}, "is '-1'; write a whole number from 0 on"),
        ({"task": "t", "toCheckpoint": "x"}, "is 'x'; write a whole number from 0 on"),
    ],
)
def test_what_a_batch_cannot_have_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_batch({**HERE, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a task"),
        ({"task": "t", "partitions": "2"}, "option 'partitions' is for a batch"),
        ({"task": "t", "toCheckpoint": "2"}, "option 'tocheckpoint' is for a batch"),
    ],
)
def test_what_a_stream_cannot_have_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_stream({**HERE, **options})
