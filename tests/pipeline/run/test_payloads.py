"""Payloads: what was stored comes back, and what is missing or damaged is named."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import DataError
from headrace.pipeline.run.payloads import Payloads, payload_place
from headrace.storage.local_objects import LocalObjects


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "objects")


@pytest.fixture
def payloads(objects: LocalObjects) -> Payloads:
    return Payloads(objects, "pipelines/job/payloads")


def rows(first: int, bytes_each: int = 1) -> pa.Table:
    return pa.table({"n": [first, first + 1], "text": ["x" * bytes_each] * 2})


@pytest.mark.long
def test_small_units_share_an_object_and_large_ones_do_not(
    payloads: Payloads, objects: LocalObjects
) -> None:
    small = payloads.put_all("source", (rows(n) for n in range(100)))
    assert len(objects.list()) == 1
    large = payloads.put_all("source", (rows(n, 5 << 20) for n in range(3)))
    assert len(objects.list()) == 1 + 3
    assert [payloads.get(ref) for ref in small] == [rows(n) for n in range(100)]
    assert payloads.get(large[2]) == rows(2, 5 << 20)
    assert {payloads.schema(ref) for ref in small + large} == {rows(0).schema}
    assert payloads.put_all("source", []) == []


def test_a_reference_tells_its_object(payloads: Payloads, objects: LocalObjects) -> None:
    alone = payloads.put("stage", "unit", rows(1))
    shared = payloads.put_all("source", [rows(1), rows(2)])
    keys = {payload_place(ref).key for ref in (alone, *shared)}
    assert keys == {info.key for info in objects.list()}


def test_a_shared_object_that_is_missing_or_cut_off_is_named(
    payloads: Payloads, objects: LocalObjects
) -> None:
    first, last = payloads.put_all("source", [rows(1), rows(2)])
    key = payload_place(first).key
    objects.put(key, objects.get(key)[:-10])
    assert payloads.get(first) == rows(1)
    with pytest.raises(DataError, match=r"the payload pipelines/.*\+\d+ is cut off"):
        payloads.get(last)
    objects.delete(key)
    for read in (payloads.get, payloads.schema):
        with pytest.raises(DataError, match=f"the payload {key} is missing"):
            read(first)
