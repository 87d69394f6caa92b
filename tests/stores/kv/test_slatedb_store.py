"""The key-value store on SlateDB, in a directory and on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stores.kv.slatedb_store import SlatedbKeyValueStore
from headrace.testing.kv_conformance import KvConformance, KvOpener


class TestSlatedbKeyValueStore(KvConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> KvOpener:
        return lambda: SlatedbKeyValueStore(tmp_path / "a # store%20")
