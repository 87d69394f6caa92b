"""Results in memory, where the store keeps them on disk."""

from __future__ import annotations

from headrace.pipeline.ledger.keys import CallKey, ContentKey, content_key
from headrace.pipeline.ledger.totals import Nanos


class MemoryResults:
    """`state.Results` in dicts."""

    def __init__(self) -> None:
        self.results: dict[CallKey, bytes] = {}
        self.contents: dict[ContentKey, CallKey] = {}

    def find_result(self, key: CallKey) -> bytes | None:
        return self.results.get(key)

    def find_equal(self, key: CallKey) -> CallKey | None:
        return self.contents.get(content_key(key))

    def put_result(self, key: CallKey, cost: Nanos, result: bytes) -> bool:
        if key in self.results:
            return False
        self.results[key] = result
        self.contents.setdefault(content_key(key), key)
        return True
