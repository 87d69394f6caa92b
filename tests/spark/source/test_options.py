"""What may be written after `format("headrace")`."""

from __future__ import annotations

import re

import pytest

from headrace.errors import UsageError
from headrace.spark.source.options import parse_batch, parse_stream, parse_writes

HERE = {"workspace": "data", "collections": "a, b"}


def test_a_batch_is_split_and_limited_as_it_says() -> None:
    reads = parse_batch({**HERE, "Partitions": "3", "task": "t", "fromCheckpoint": "0"})
    assert (reads.partitions, reads.task, reads.first, reads.last) == (3, "t", 0, None)
    assert [each.collection for each in reads.bindings] == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": "2"}, "option 'shards' is for a stream, and this is a batch"),
        ({"pollSeconds": "1"}, "option 'pollSeconds' is for a stream, and this is a batch"),
        ({"SHARDS": "2"}, "option 'shards' is for a stream, and this is a batch"),
        ({"toCheckpoint": "2"}, "fromCheckpoint and toCheckpoint need a task"),
        ({"fromCheckpoint": "0"}, "fromCheckpoint and toCheckpoint need a task"),
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
        ({"task": "t", "toCheckpoint": "2"}, "option 'toCheckpoint' is for a batch"),
    ],
)
def test_what_a_stream_cannot_have_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_stream({**HERE, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fromcheckpoin": "1"}, "has no option 'fromcheckpoin'; use fromCheckpoint"),
        ({"MaxDocumentPerTrigger": "1"}, "'MaxDocumentPerTrigger'; use maxDocumentsPerTrigger"),
        (
            {"zzz": "1"},
            "has no option 'zzz'; use one of bindings, collections, fromCheckpoint,"
            " maxDocumentsPerTrigger, members, membersToken, meta, partitions, path, pollSeconds,"
            " shards, task, toCheckpoint, token, workspace",
        ),
        ({"pollSeconds": "3600.1"}, "option 'pollSeconds' is '3600.1'; write seconds, 0 to 3600"),
        ({"POLLSECONDS": "x"}, "option 'pollSeconds' is 'x'; write seconds, 0 to 3600"),
    ],
)
def test_an_option_is_named_as_it_is_documented(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_stream({**HERE, "task": "t", **options})
    written = {"workspace": "data", "colection": "a"}
    with pytest.raises(UsageError, match=r"has no option 'colection'; use collection$"):
        parse_writes(written, is_stream=False)
