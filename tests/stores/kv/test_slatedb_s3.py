"""The key-value store on SlateDB, on a real S3 server."""

from __future__ import annotations

from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from headrace.errors import FencedError, UsageError, VersionError
from headrace.storage import S3Options, open_objects
from headrace.stores.kv.kv_location import open_kv
from headrace.stores.kv.slatedb_store import SlatedbKeyValueStore
from headrace.testing.kv_conformance import KvConformance, KvOpener, batch_of, entries_of
from tests.s3 import BUCKET


@pytest.fixture
def url() -> str:
    return f"s3://{BUCKET}/stores/{uuid4().hex}"


class TestSlatedbOnS3(KvConformance):
    @pytest.fixture
    def opener(self, s3: S3Options, url: str) -> KvOpener:
        return lambda: SlatedbKeyValueStore(url, **s3)

    def test_a_store_that_is_open_is_refused_to_others(self, opener: KvOpener) -> None:
        """On S3 the last one to open it takes it over instead."""
        first = opener()
        first.wait_durable(first.write(batch_of(a=b"1")))
        with closing(opener()) as second:
            assert entries_of(second) == [(b"a", b"1")]
            for _ in range(2):
                with pytest.raises(FencedError, match="took over the store"):
                    first.wait_durable(first.write(batch_of(a=b"2")))
            first.close()
            second.wait_durable(second.write(batch_of(b=b"3")))
            assert entries_of(second) == [(b"a", b"1"), (b"b", b"3")]


def test_the_record_on_s3_is_checked(s3: S3Options, url: str) -> None:
    open_kv(url, **s3).close()
    open_kv(url, "slatedb", **s3).close()
    objects = open_objects(url, **s3)
    objects.put("kv.json", b'{"format": 2, "backend": "slatedb"}')
    with pytest.raises(VersionError, match="has format 2"):
        open_kv(url, **s3)


def test_only_slatedb_keeps_stores_on_s3(s3: S3Options, url: str) -> None:
    for backend in ("lmdb", "memory"):
        with pytest.raises(UsageError, match=f"backend {backend} cannot keep s3://"):
            open_kv(url, backend, **s3)


def test_options_that_do_not_fit_are_refused(s3: S3Options, url: str) -> None:
    unknown: Any = {**s3, "colour": "red"}
    with pytest.raises(UsageError, match="has no option colour"):
        open_kv(url, **unknown)
