"""The key-value store in memory does what every one must."""

from __future__ import annotations

import pytest

from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.testing.kv_conformance import KvConformance, KvOpener


class TestMemoryKeyValueStore(KvConformance):
    OUTLIVES_CLOSE = False

    @pytest.fixture
    def opener(self) -> KvOpener:
        return MemoryKeyValueStore
