"""The key-value store on LMDB, and what it finds on a damaged or refusing disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.testing.kv_conformance import KvConformance, KvOpener


class TestLmdbKeyValueStore(KvConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> KvOpener:
        return lambda: LmdbKeyValueStore(tmp_path / "store")
