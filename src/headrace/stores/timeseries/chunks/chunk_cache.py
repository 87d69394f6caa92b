"""Chunks that were read lately, decoded. A chunk never changes, so none can be out of date."""

from __future__ import annotations

import threading
from collections import OrderedDict

from headrace.stores.timeseries.chunks.chunk_format import SeriesSamples

_SAMPLE_BYTES = 16


class ChunkCache:
    """Keeps the chunks that were used last. Any thread may use it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._chunks: OrderedDict[int, SeriesSamples] = OrderedDict()

    def get(self, number: int) -> SeriesSamples | None:
        with self._lock:
            found = self._chunks.get(number)
            if found is not None:
                self._chunks.move_to_end(number)
            return found

    def add(self, number: int, chunk: SeriesSamples) -> None:
        size = _size_bytes(chunk)
        with self._lock:
            if number in self._chunks or size > self._bytes_max:
                return
            self._chunks[number] = chunk
            self._bytes += size
            while self._bytes > self._bytes_max:
                _, removed = self._chunks.popitem(last=False)
                self._bytes -= _size_bytes(removed)


def _size_bytes(chunk: SeriesSamples) -> int:
    return _SAMPLE_BYTES * (len(chunk.timestamps) + len(chunk.ids))
