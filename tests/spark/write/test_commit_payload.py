"""Which batch a publisher has committed, from the payload of its last commit."""

from __future__ import annotations

import pytest

from headrace.errors import DataError, UsageError
from headrace.spark.write.commit_payload import (
    PublishedCheckpoint,
    QueryBatch,
    decode_payload,
    encode_payload,
    is_published,
    last_checkpoint,
)

CHECKPOINT = b'{"generation":"g1","checkpoint":7}'
BATCH = b'{"type":"spark-batch","query":"q","number":7}'


def test_payloads_are_written_as_publishers_have_them() -> None:
    assert encode_payload(PublishedCheckpoint("g1", 7)) == CHECKPOINT
    assert encode_payload(QueryBatch("q", 7)) == BATCH
    assert encode_payload(None) == b""
    assert decode_payload(CHECKPOINT, PublishedCheckpoint, "p") == PublishedCheckpoint("g1", 7)
    assert decode_payload(BATCH, QueryBatch, "p") == QueryBatch("q", 7)
    assert decode_payload(b"", QueryBatch, "p") is None


@pytest.mark.parametrize("payload", [b"not ours", BATCH, b"{}"])
def test_a_payload_that_no_task_wrote_is_refused(payload: bytes) -> None:
    with pytest.raises(DataError, match=r"publisher 'p' was not used by a task.*; give the task"):
        decode_payload(payload, PublishedCheckpoint, "p")


@pytest.mark.parametrize("payload", [b"not ours", CHECKPOINT, b"{}"])
def test_a_payload_that_no_query_wrote_is_refused(payload: bytes) -> None:
    with pytest.raises(DataError, match=r"publisher 'p' was not used by a query.*; give the query"):
        decode_payload(payload, QueryBatch, "p")


def test_a_new_generation_has_published_nothing() -> None:
    """# proves G14"""
    assert last_checkpoint(None, "g1") == 0
    assert last_checkpoint(PublishedCheckpoint("g1", 7), "g1") == 7
    assert last_checkpoint(PublishedCheckpoint("g1", 7), "g2") == 0


@pytest.mark.parametrize(
    ("last", "batch", "outcome"),
    [
        (None, ("q", 0), False),
        (None, ("q", 7), False),
        (("q", 0), ("q", 1), False),
        (("q", 7), ("q", 7), True),
        (("q", 7), ("r", 7), "batch 7 of query q, and this is batch 7 of query r"),
        (("q", 7), ("r", 8), "batch 8 of query r: another checkpoint directory"),
        (("q", 7), ("r", 0), "batch 0 of query r: another checkpoint directory"),
        (("q", 7), ("q", 0), "at batch 7, and the query at 0: its checkpoint directory"),
        (("q", 7), ("q", 6), "at batch 7, and the query at 6: its checkpoint directory"),
        (("q", 7), ("q", 9), "at batch 7, and the query at 9: its checkpoint directory"),
    ],
)
def test_a_batch_must_be_the_last_or_follow_it(
    last: tuple[str, int] | None, batch: tuple[str, int], outcome: bool | str
) -> None:
    """# proves G14"""
    before = QueryBatch(*last) if last else None
    if isinstance(outcome, str):
        with pytest.raises(UsageError, match=outcome):
            is_published(before, QueryBatch(*batch), "p")
    else:
        assert is_published(before, QueryBatch(*batch), "p") is outcome
